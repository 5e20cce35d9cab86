//! A weight on the host, decoded row by row: what the reference multiplies by. It knows no op. Floats stay in their file, whose pages the system
//! reads and drops as it likes; codes are copied.

use std::ops::Range;
use std::sync::Arc;

use vllm_apple_ops::{DType, HostTensor, MappedFile, Parts, Quantised, Result, Scale, WeightFormat, WeightSource};

/// `[groups, rows, cols]`.
pub(crate) struct HostWeight {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    /// One after the other, each `[rows of the part, cols]`.
    parts: Vec<Part>,
    /// Rows of each part of a group.
    part_rows: Vec<usize>,
}

enum Part {
    Floats { dtype: DType, bytes: Bytes },
    Codes(Codes),
}

/// `[rows, cols]` codes, and scales for their groups.
struct Codes {
    quantised: Quantised,
    /// Of each row; two to a byte where they have up to 4 bits, the first in the lower half.
    codes: Vec<u8>,
    scales: Vec<f32>,
    /// Empty where there are none.
    biases: Vec<f32>,
}

/// A file's bytes where they are, else a copy.
enum Bytes {
    Of(Arc<dyn MappedFile>, Range<usize>),
    Copy(Vec<u8>),
}

impl HostWeight {
    /// What a backend makes of `source` in `format`, if it does as it should.
    pub fn new(source: &WeightSource<'_>, format: WeightFormat) -> Result<Self> {
        let (rows, cols) = source.check(format)?;
        let (parts, all_rows): (Vec<Part>, Vec<usize>) = match (source.parts, format) {
            (Parts::Float(parts), _) => parts.iter().map(|part| (floats(part), part.rows)).unzip(),
            (Parts::Quantised(parts), WeightFormat::Quantised(quantised)) => parts
                .iter()
                .map(|part| {
                    let read = |row, group, codes: &mut [u8]| part.groups.read(row, group, codes);
                    (Part::Codes(Codes::read(quantised, part.rows, cols, read)), part.rows)
                })
                .unzip(),
            (Parts::Quantised(_), WeightFormat::Float(_)) => unreachable!("`check` refuses it"),
        };
        let part_rows = all_rows[..all_rows.len() / source.groups].to_vec();
        Ok(Self { format, rows, cols, parts, part_rows })
    }

    /// Bytes that a weight takes here. Floats take none, unless all lie in no file and are copied, in this type.
    pub fn bytes(format: WeightFormat, copied: Option<DType>, groups: usize, rows: usize, cols: usize) -> u128 {
        let all = groups as u128 * rows as u128;
        match format {
            WeightFormat::Float(_) => copied.map_or(0, |dtype| all * (cols * dtype.size()) as u128),
            WeightFormat::Quantised(quantised) => {
                let of_group = size_of::<f32>() * (1 + usize::from(quantised.biases));
                all * (row_bytes(&quantised, cols) + quantised.groups(cols) * of_group) as u128
            }
        }
    }

    /// One row.
    pub fn row(&self, group: usize, row: usize) -> Vec<f32> {
        self.row_of(group, row, |quantised, code, Scale { scale, bias }| quantised.value(code, scale, bias))
    }

    /// The magnitudes of what the elements of a row are made of: where a bias takes away what a code gives, they are larger than these.
    pub fn row_sizes(&self, group: usize, row: usize) -> Vec<f32> {
        let size = |quantised: &Quantised, code, Scale { scale, bias }: Scale| {
            (quantised.codebook.value(code) * scale).abs() + bias.abs()
        };
        let mut sizes = self.row_of(group, row, size);
        sizes.iter_mut().for_each(|size| *size = size.abs());
        sizes
    }

    fn row_of(&self, group: usize, row: usize, of_code: impl Fn(&Quantised, u8, Scale) -> f32) -> Vec<f32> {
        let (mut part, mut row, cols) = (group * self.part_rows.len(), row, self.cols);
        while row >= self.part_rows[part % self.part_rows.len()] {
            row -= self.part_rows[part % self.part_rows.len()];
            part += 1;
        }
        match &self.parts[part] {
            Part::Floats { dtype, bytes } => {
                let size = cols * dtype.size();
                let mut values = dtype.decode(&bytes.get()[row * size..][..size]);
                if let WeightFormat::Float(format) = self.format
                    && format != *dtype
                {
                    values.iter_mut().for_each(|value| *value = format.round(*value));
                }
                values
            }
            Part::Codes(codes) => codes.row(row, cols, of_code),
        }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Makes of rows of activations what they are multiplied as.
    pub fn round(&self, x: &mut [f32]) {
        if let WeightFormat::Quantised(Quantised { activations, group_size, .. }) = self.format {
            let groups = x.chunks_mut(self.cols).flat_map(|row| row.chunks_mut(group_size));
            groups.for_each(|group| activations.round(group));
        }
    }
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Of(file, range) => &file.bytes()[range.clone()],
            Self::Copy(bytes) => bytes,
        }
    }
}

fn floats(part: &HostTensor<'_>) -> Part {
    let place = part.file.and_then(|file| {
        let start = (part.bytes.as_ptr() as usize).checked_sub(file.bytes().as_ptr() as usize)?;
        let range = start..start + part.bytes.len();
        (range.end <= file.bytes().len()).then(|| Bytes::Of(Arc::clone(file), range))
    });
    Part::Floats { dtype: part.dtype, bytes: place.unwrap_or_else(|| Bytes::Copy(part.bytes.to_vec())) }
}

/// Bytes of a row's codes.
fn row_bytes(quantised: &Quantised, cols: usize) -> usize {
    if are_two_to_a_byte(quantised) { cols.div_ceil(2) } else { cols }
}

fn are_two_to_a_byte(quantised: &Quantised) -> bool {
    quantised.codebook.bits() <= 4
}

impl Codes {
    fn read(quantised: Quantised, rows: usize, cols: usize, read: impl Fn(usize, usize, &mut [u8]) -> Scale) -> Self {
        let (groups, bytes) = (quantised.groups(cols), row_bytes(&quantised, cols));
        let mut all = Self {
            quantised,
            codes: Vec::with_capacity(rows * bytes),
            scales: Vec::with_capacity(rows * groups),
            biases: Vec::with_capacity(if quantised.biases { rows * groups } else { 0 }),
        };
        let mut codes = vec![0; cols];
        let rounded = |value| quantised.scales.round(value);
        for row in 0..rows {
            for (group, codes) in codes.chunks_mut(quantised.group_size).enumerate() {
                let Scale { scale, bias } = read(row, group, codes);
                all.scales.push(rounded(scale));
                if quantised.biases {
                    all.biases.push(rounded(bias));
                }
            }
            match are_two_to_a_byte(&quantised) {
                true => all.codes.extend(codes.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |code| code << 4))),
                false => all.codes.extend_from_slice(&codes),
            }
        }
        all
    }

    fn row(&self, row: usize, cols: usize, of_code: impl Fn(&Quantised, u8, Scale) -> f32) -> Vec<f32> {
        let quantised = &self.quantised;
        let (groups, bytes) = (quantised.groups(cols), row_bytes(quantised, cols));
        let codes = &self.codes[row * bytes..][..bytes];
        let code = |at: usize| match are_two_to_a_byte(quantised) {
            true => codes[at / 2] >> (4 * (at % 2)) & 15,
            false => codes[at],
        };
        let value = |at: usize| {
            let group = row * groups + at / quantised.group_size;
            let bias = self.biases.get(group).copied().unwrap_or(0.0);
            of_code(quantised, code(at), Scale { scale: self.scales[group], bias })
        };
        (0..cols).map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_ops::{Activations, Codebook, QuantisedTensor, ReadGroups, Scales};

    /// Codes that count up, and a scale and a bias for each group.
    struct Counted(Quantised);

    impl ReadGroups for Counted {
        fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
            let most = u8::MAX >> (8 - self.0.codebook.bits());
            codes.iter_mut().enumerate().for_each(|(i, code)| *code = (row * 5 + group * 3 + i) as u8 & most);
            Scale { scale: 1.0 + group as f32, bias: if self.0.biases { row as f32 } else { 0.0 } }
        }
    }

    #[test]
    fn codes_are_held_in_the_bytes_that_are_said() {
        for (bits, biases, bytes) in [(4, true, 10 + 16), (4, false, 10 + 8), (3, false, 10 + 8), (5, true, 19 + 16)] {
            let codebook = Codebook::Integer { bits, zero_point: 0 };
            let (input, scales, activations) = (DType::F32, Scales::Float(DType::F32), Activations::Exact);
            let quantised = Quantised { input, codebook, group_size: 16, scales, biases, activations };
            let (format, from) = (WeightFormat::Quantised(quantised), Counted(quantised));
            let parts = [2, 3].map(|rows| QuantisedTensor { rows, cols: 19, groups: &from });
            let weight = HostWeight::new(&WeightSource::quantised("w", 1, &parts), format).unwrap();
            for (row, of_part) in [(0, 0), (1, 1), (2, 0), (4, 2)] {
                let mut codes = [0; 19];
                let scales = [from.read(of_part, 0, &mut codes[..16]), from.read(of_part, 1, &mut codes[16..])];
                let value = |i: usize| quantised.value(codes[i], scales[i / 16].scale, scales[i / 16].bias);
                assert_eq!(weight.row(0, row), (0..19).map(value).collect::<Vec<_>>(), "{bits} bits, row {row}");
            }
            let held = weight.parts.iter().map(|part| match part {
                Part::Codes(Codes { codes, scales, biases, .. }) => codes.len() + 4 * (scales.len() + biases.len()),
                Part::Floats { .. } => unreachable!("they are codes"),
            });
            assert_eq!(held.sum::<usize>(), 5 * bytes);
            assert_eq!(HostWeight::bytes(format, None, 1, 5, 19), 5 * bytes as u128);
        }
    }

    #[test]
    fn floats_take_memory_only_where_they_lie_in_no_file() {
        let format = WeightFormat::Float(DType::F32);
        assert_eq!(HostWeight::bytes(format, None, 4, 5, 6), 0);
        assert_eq!(HostWeight::bytes(format, Some(DType::BF16), 4, 5, 6), 240);
    }
}
