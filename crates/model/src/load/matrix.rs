//! A matrix of a checkpoint, of floats or of codes, and how several of codes become one weight. It knows no file.

use std::sync::Arc;

use vllm_apple_ops::{
    Activations, Codebook, DType, HostTensor, Quantised, ReadGroups, SUPER_BLOCK, Scale, Scales, WholeNumbers,
};

use crate::load::error::LoadError;

/// A matrix.
pub(crate) enum Matrix<'a> {
    Float(HostTensor<'a>),
    /// Of floats, row by row: in another order than the file's.
    Rows(Vec<HostTensor<'a>>),
    Codes(Codes<'a>),
}

/// A quantised matrix.
pub(crate) struct Codes<'a> {
    /// For errors.
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) spelling: Spelling,
    /// That of its columns, where it is not the file's.
    pub(crate) order: Option<Order>,
    pub(crate) groups: Box<dyn ReadGroups + 'a>,
}

impl Codes<'_> {
    /// Whether the scales and biases of all groups are numbers of the type that they are held in.
    pub(crate) fn is_sound(&self) -> bool {
        let Spelling { group_size, scales, .. } = self.spelling;
        let mut codes = vec![0; group_size.min(self.cols)];
        let mut is_sound = |row: usize, group: usize| {
            let start = group * group_size;
            let read = self.groups.read(row, group, &mut codes[..group_size.min(self.cols - start)]);
            let held = match scales {
                Scales::Float(_) => [read.scale, read.bias],
                Scales::ZeroPoints(_) | Scales::PowersOfTwo => [read.scale, 0.0],
                Scales::SuperBlocks | Scales::SuperBlocksOfNibbles | Scales::SuperBlocksOfFloats => {
                    let factors = self.groups.factors(row, start / SUPER_BLOCK);
                    [factors.scale, factors.bias]
                }
            };
            read.scale.is_finite() && held.iter().all(|&number| scales.dtype().round(number).is_finite())
        };
        (0..self.rows).all(|row| (0..self.cols.div_ceil(group_size)).all(|group| is_sound(row, group)))
    }
}

/// Columns of a file's matrix in another order than the file's: the columns of a group one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// The tensor that says so: for errors.
    pub(crate) tensor: String,
    /// The columns in the file.
    pub(crate) columns: Arc<[u32]>,
}

/// Where a file has a column.
pub(crate) fn stored(order: Option<&Order>, column: usize) -> usize {
    order.map_or(column, |order| order.columns[column] as usize)
}

impl Matrix<'_> {
    /// That of its columns, where it is not the file's.
    pub(crate) fn order(&self) -> Option<&Order> {
        match self {
            Self::Codes(codes) => codes.order.as_ref(),
            Self::Float(_) | Self::Rows(_) => None,
        }
    }

    /// Whether its columns are in the same order as those of another.
    pub(crate) fn takes_inputs_as(&self, other: &Self) -> bool {
        let columns = |matrix: &Self| matrix.order().map(|order| order.columns.clone());
        columns(self) == columns(other)
    }

    /// The same with its rows in the order in which another matrix takes them as columns, if that is another.
    pub(crate) fn with_rows(self, order: Option<&Order>) -> Self {
        let Some(order) = order else { return self };
        let stored = |row: usize| order.columns[row] as usize;
        match self {
            Self::Float(tensor) => Self::Rows(rows_of(tensor, stored)),
            Self::Rows(rows) => Self::Rows((0..rows.len()).map(|row| rows[stored(row)]).collect()),
            Self::Codes(codes) => {
                let groups = Box::new(Reordered { rows: order.columns.clone(), groups: codes.groups });
                Self::Codes(Codes { groups, ..codes })
            }
        }
    }
}

/// The rows of a matrix of floats, `stored(row)` for each.
pub(crate) fn rows_of<'a>(tensor: HostTensor<'a>, stored: impl Fn(usize) -> usize) -> Vec<HostTensor<'a>> {
    let size = tensor.cols * tensor.dtype.size();
    let row = |row| HostTensor { rows: 1, bytes: &tensor.bytes[stored(row) * size..][..size], ..tensor };
    (0..tensor.rows).map(row).collect()
}

/// The elements of a vector, in the order in which a matrix takes them as columns, if that is another.
pub(crate) fn elements_of<'a>(vector: HostTensor<'a>, order: Option<&Order>) -> Vec<HostTensor<'a>> {
    match order {
        None => vec![vector],
        Some(_) => rows_of(HostTensor { rows: vector.cols, cols: 1, ..vector }, |element| stored(order, element)),
    }
}

/// Reads rows in another order.
struct Reordered<'a> {
    rows: Arc<[u32]>,
    groups: Box<dyn ReadGroups + 'a>,
}

impl ReadGroups for Reordered<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        self.groups.read(self.rows[row] as usize, group, codes)
    }

    fn factors(&self, row: usize, super_block: usize) -> Scale {
        self.groups.factors(self.rows[row] as usize, super_block)
    }
}

/// What [`Quantised`] says but for the activations, which are not the file's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spelling {
    pub(crate) codebook: Codebook,
    pub(crate) group_size: usize,
    pub(crate) scales: Scales,
    pub(crate) biases: bool,
}

impl Spelling {
    /// For activations of a type.
    pub(crate) const fn format(self, input: DType) -> Quantised {
        let Self { codebook, group_size, scales, biases } = self;
        Quantised { input, codebook, group_size, scales, biases, activations: Activations::Exact }
    }

    /// What holds the numbers of both without a loss, if that is possible: q, k and v of one matmul need not be quantised alike.
    fn holding(self, other: Self) -> Option<Self> {
        let group_size = gcd(self.group_size, other.group_size);
        let scales = if self.scales == other.scales { self.scales } else { Scales::Float(DType::F32) };
        if self.codebook == other.codebook {
            return Some(Self { group_size, scales, biases: self.biases || other.biases, ..self });
        }
        let (a, b) = (self.codebook.whole_numbers()?, other.codebook.whole_numbers()?);
        let codebook = Codebook::Integer { bits: a.bits.max(b.bits), zero_point: 0 };
        // A zero point times a scale has more digits than 16 bits hold, unless it is a power of two.
        let multiples = self.biases_are_multiples(a) && other.biases_are_multiples(b);
        let scales = if multiples { Scales::SuperBlocks } else { Scales::Float(DType::F32) };
        Some(Self { codebook, group_size, scales, biases: true })
    }

    /// Whether biases that stand for the least of `numbers` are whole multiples of a float16, as scales are.
    fn biases_are_multiples(self, numbers: WholeNumbers) -> bool {
        let least = numbers.least.abs();
        let is_factor = least == 0.0 || !self.biases && (least as u32).is_power_of_two();
        matches!(self.scales, Scales::SuperBlocks | Scales::SuperBlocksOfNibbles) && is_factor
    }
}

const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How many of the first matrices can be one: floats, or codes that have a common spelling, with their columns in one order.
pub(crate) fn fit_together(parts: &[Matrix<'_>]) -> usize {
    let fit = |&count: &usize| are_alike(&parts[..count]) && parts[0].takes_inputs_as(&parts[count - 1]);
    (1..=parts.len()).take_while(fit).count()
}

/// Whether all are of floats, or all of codes that have a common spelling.
pub(crate) fn are_alike(parts: &[Matrix<'_>]) -> bool {
    let spelling = |part: &Matrix<'_>| match part {
        Matrix::Codes(codes) => Some(codes.spelling),
        Matrix::Float(_) | Matrix::Rows(_) => None,
    };
    let common = |of_others: Option<Spelling>, part| match (of_others, spelling(part)) {
        (None, None) => Some(None),
        (Some(of_others), Some(own)) => of_others.holding(own).map(Some),
        _ => None,
    };
    parts.split_first().is_none_or(|(first, others)| others.iter().try_fold(spelling(first), common).is_some())
}

/// All matrices in one spelling.
pub(crate) fn alike(parts: Vec<Codes<'_>>) -> Result<(Spelling, Vec<Codes<'_>>), LoadError> {
    let Some(first) = parts.first() else { unreachable!("a weight has parts") };
    let mut spelling = first.spelling;
    for part in &parts {
        spelling = spelling.holding(part.spelling).ok_or_else(|| LoadError::Unlike {
            tensors: [first.name.clone(), part.name.clone()],
            what: [first, part].map(|part| part.spelling.codebook.to_string()),
        })?;
    }
    Ok((spelling, parts.into_iter().map(|part| respelt(part, spelling)).collect()))
}

fn respelt(part: Codes<'_>, to: Spelling) -> Codes<'_> {
    if part.spelling == to {
        return part;
    }
    let Codes { name, rows, cols, spelling, order, groups } = part;
    Codes { name, rows, cols, spelling: to, order, groups: Box::new(Respelt { from: spelling, to, cols, groups }) }
}

/// Reads a matrix in another spelling.
struct Respelt<'a> {
    from: Spelling,
    to: Spelling,
    cols: usize,
    groups: Box<dyn ReadGroups + 'a>,
}

impl ReadGroups for Respelt<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let Self { from, to, cols, groups } = self;
        let start = group * to.group_size;
        let (whole, within) = (start / from.group_size, start % from.group_size);
        let mut all = vec![0; from.group_size.min(cols - whole * from.group_size)];
        let Scale { scale, bias } = groups.read(row, whole, &mut all);
        codes.copy_from_slice(&all[within..][..codes.len()]);
        match from.codebook.whole_numbers() {
            Some(numbers) if from.codebook != to.codebook => {
                for code in codes {
                    *code = (from.codebook.value(*code) * numbers.factor - numbers.least) as u8;
                }
                let scale = scale / numbers.factor;
                Scale { scale, bias: scale.mul_add(numbers.least, bias) }
            }
            _ => Scale { scale, bias },
        }
    }

    fn factors(&self, row: usize, super_block: usize) -> Scale {
        let Scale { scale, bias } = self.groups.factors(row, super_block);
        match self.from.codebook.whole_numbers() {
            Some(numbers) if self.from.codebook != self.to.codebook && !self.from.biases => {
                Scale { scale, bias: scale * numbers.least }
            }
            _ => Scale { scale, bias },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code of its codebook in turn, with scales that differ from group to group.
    struct Turns(Codebook);

    impl Turns {
        fn scale(row: usize, group: usize) -> Scale {
            Scale { scale: 0.25 * (1 + row + 3 * group) as f32, bias: group as f32 - 1.0 }
        }
    }

    impl ReadGroups for Turns {
        fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
            let code = |k| (row * 5 + group * 7 + k * 3) % (1 << self.0.bits());
            codes.iter_mut().enumerate().for_each(|(k, to)| *to = code(k) as u8);
            let scale = Self::scale(row, group);
            // The zero of formats without biases.
            Scale { bias: if row == 0 { 0.0 } else { scale.bias }, ..scale }
        }
    }

    fn part(name: &str, codebook: Codebook, group_size: usize, biases: bool) -> Codes<'static> {
        let spelling = Spelling { codebook, group_size, scales: Scales::Float(DType::BF16), biases };
        Codes { name: name.into(), rows: 2, cols: 72, spelling, order: None, groups: Box::new(Turns(codebook)) }
    }

    fn values(part: &Codes<'_>) -> Vec<f32> {
        let mut values = Vec::new();
        let Spelling { codebook, group_size, .. } = part.spelling;
        for row in 0..part.rows {
            for (group, start) in (0..part.cols).step_by(group_size).enumerate() {
                let mut codes = vec![0; group_size.min(part.cols - start)];
                let Scale { scale, bias } = part.groups.read(row, group, &mut codes);
                values.extend(codes.iter().map(|&code| codebook.value(code) * scale + bias));
            }
        }
        values
    }

    #[test]
    fn other_spellings_say_the_same_numbers() {
        let six = Codebook::Integer { bits: 6, zero_point: 32 };
        let codebooks =
            [Codebook::INT4, Codebook::Integer { bits: 4, zero_point: 0 }, six, Codebook::E2m1, Codebook::Iq4Nl];
        for first in codebooks {
            for second in codebooks {
                let parts = || vec![part("q", first, 32, false), part("v", second, 16, true)];
                let expected: Vec<_> = parts().iter().map(values).collect();
                let (spelling, got) = alike(parts()).unwrap();
                assert!(got.iter().all(|part| part.spelling == spelling));
                assert_eq!((spelling.group_size, spelling.biases), (16, true));
                assert_eq!(got.iter().map(values).collect::<Vec<_>>(), expected, "{first} and {second}");
            }
        }
    }

    /// Groups of 16 or 32 with whole numbers times factors.
    struct Multiples {
        spelling: Spelling,
    }

    impl ReadGroups for Multiples {
        fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
            let factors = self.factors(row, group * self.spelling.group_size / SUPER_BLOCK);
            Turns(self.spelling.codebook).read(row, group, codes);
            let multiple = |i: usize| ((row * 7 + group * 5 + i) % 64) as f32;
            Scale { scale: factors.scale * multiple(0), bias: factors.bias * multiple(9) }
        }

        fn factors(&self, row: usize, super_block: usize) -> Scale {
            let bias = if self.spelling.biases { -0.000_312_567 * (row + 1) as f32 } else { 0.0 };
            let scale = 0.001_234_56 * (1 + row + super_block) as f32;
            Scale { scale: DType::F16.round(scale), bias: DType::F16.round(bias) }
        }
    }

    #[test]
    fn matrices_of_super_blocks_stay_such_where_their_zero_points_are_powers_of_two() {
        let spelling = |bits, zero_point, group_size, biases| Spelling {
            codebook: Codebook::Integer { bits, zero_point },
            group_size,
            scales: Scales::SuperBlocks,
            biases,
        };
        let part = |spelling| Codes {
            name: "part".into(),
            rows: 3,
            cols: 600,
            spelling,
            order: None,
            groups: Box::new(Multiples { spelling }),
        };
        let q2 = Spelling { scales: Scales::SuperBlocksOfNibbles, ..spelling(2, 0, 16, true) };
        let [q4, q5, q6] = [spelling(4, 0, 32, true), spelling(5, 0, 32, true), spelling(6, 32, 16, false)];
        let iq4 = Spelling { codebook: Codebook::Iq4Nl, ..spelling(4, 0, 32, false) };
        for (spellings, expected) in [
            (vec![q4, q4, q6], Scales::SuperBlocks),
            (vec![q6, q5, q4, q6], Scales::SuperBlocks),
            (vec![q2, q2, q4], Scales::SuperBlocks),
            (vec![q4, iq4], Scales::Float(DType::F32)),
        ] {
            let parts = || spellings.iter().map(|&spelling| part(spelling)).collect::<Vec<_>>();
            let (spelling, got) = alike(parts()).unwrap();
            assert_eq!((spelling.scales, spelling.biases), (expected, true));
            assert_eq!(got.iter().map(values).collect::<Vec<_>>(), parts().iter().map(values).collect::<Vec<_>>());
            for (part, row) in got.iter().flat_map(|part| (0..part.rows).map(move |row| (part, row))) {
                if expected != Scales::SuperBlocks {
                    continue;
                }
                for group in 0..part.cols.div_ceil(spelling.group_size) {
                    let scale = part.groups.read(row, group, &mut [0; 8]);
                    let factors = part.groups.factors(row, group * spelling.group_size / SUPER_BLOCK);
                    let [by, bias] = scale.multiples(factors).map(f32::from);
                    assert_eq!(Scale { scale: by * factors.scale, bias: bias * factors.bias }, scale);
                    assert_eq!(
                        [factors.scale, factors.bias].map(|f| DType::F16.round(f)),
                        [factors.scale, factors.bias]
                    );
                }
            }
        }
    }

    #[test]
    fn what_has_no_common_spelling_is_named() {
        let parts = vec![part("q", Codebook::INT4, 32, false), part("k", Codebook::E4m3, 32, false)];
        let error = alike(parts).map(drop).unwrap_err().to_string();
        assert!(["q", "k", "int4", "e4m3"].iter().all(|word| error.contains(word)), "{error}");
    }

    #[test]
    fn matrices_that_can_be_one_come_first() {
        let codes = |codebook| Matrix::Codes(part("q", codebook, 32, false));
        let in_order = |columns: [u32; 2]| {
            let order = Order { tensor: "q.g_idx".into(), columns: columns.into() };
            Matrix::Codes(Codes { order: Some(order), ..part("q", Codebook::INT4, 32, false) })
        };
        let floats = || Matrix::Float(HostTensor { dtype: DType::F16, rows: 0, cols: 72, bytes: &[], file: None });
        for (parts, expected) in [
            (vec![codes(Codebook::INT4), codes(Codebook::INT8), floats()], 2),
            (vec![codes(Codebook::INT4), codes(Codebook::INT8), codes(Codebook::E4m3)], 2),
            (vec![codes(Codebook::E4m3), codes(Codebook::INT8)], 1),
            (vec![floats(), Matrix::Rows(Vec::new()), codes(Codebook::INT4)], 2),
            (vec![in_order([1, 0]), in_order([1, 0]), in_order([0, 1])], 2),
            (vec![codes(Codebook::INT4), in_order([1, 0])], 1),
            (Vec::new(), 0),
        ] {
            assert_eq!(fit_together(&parts), expected);
        }
    }

    #[test]
    fn what_is_alike_stays_what_it_is() {
        let (spelling, parts) =
            alike(vec![part("q", Codebook::INT4, 32, false), part("k", Codebook::INT4, 32, false)]).unwrap();
        assert_eq!((spelling, parts.len()), (part("q", Codebook::INT4, 32, false).spelling, 2));
    }
}
