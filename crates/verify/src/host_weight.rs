//! A weight on the host, decoded row by row: what the reference multiplies by. It knows no op.

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
    Codes { quantised: Quantised, codes: Vec<u8>, scales: Vec<Scale> },
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
                    (codes(quantised, part.rows, cols, read), part.rows)
                })
                .unzip(),
            (Parts::Quantised(_), WeightFormat::Float(_)) => unreachable!("`check` refuses it"),
        };
        let part_rows = all_rows[..all_rows.len() / source.groups].to_vec();
        Ok(Self { format, rows, cols, parts, part_rows })
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
            Part::Codes { quantised, codes, scales } => {
                let groups = quantised.groups(cols);
                let scales = &scales[row * groups..][..groups];
                let value = |(i, &code): (usize, &u8)| of_code(quantised, code, scales[i / quantised.group_size]);
                codes[row * cols..][..cols].iter().enumerate().map(value).collect()
            }
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

fn codes(quantised: Quantised, rows: usize, cols: usize, read: impl Fn(usize, usize, &mut [u8]) -> Scale) -> Part {
    let groups = quantised.groups(cols);
    let (mut codes, mut scales) = (vec![0; rows * cols], Vec::with_capacity(rows * groups));
    for (row, codes) in codes.chunks_exact_mut(cols).enumerate() {
        for (group, codes) in codes.chunks_mut(quantised.group_size).enumerate() {
            let Scale { scale, bias } = read(row, group, codes);
            let rounded = |value| quantised.scales.round(value);
            scales.push(Scale { scale: rounded(scale), bias: rounded(bias) });
        }
    }
    Part::Codes { quantised, codes, scales }
}
