//! AWQ's and GPTQ's quantised matrices, which are transposed: words of 32 bits hold codes of several outputs (AWQ) or of several elements of
//! K (GPTQ), `scales` are `[groups, outputs]`, and `qzeros` hold zero points of several outputs.

use safetensors::tensor::Dtype;
use vllm_apple_ops::{Codebook, ReadGroups, Scale};

use super::{GROUPS, Grid, Wanted, act_order, code_at, code_of_words, codes, group_size, with_zero_points, word_at};
use crate::load::checkpoint::Checkpoint;
use crate::load::error::LoadError;
use crate::load::matrix::{Codes, Order, Spelling, stored};

/// The place of each of eight outputs in AWQ's words.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

struct Transposed<'a> {
    kind: Kind,
    codes: &'a [u8],
    zeros: &'a [u8],
    scales: Grid<'a>,
    rows: usize,
    bits: usize,
    group_size: usize,
    order: Option<Order>,
}

#[derive(Clone, Copy)]
enum Kind {
    Awq,
    /// Stored zero points are so much less than they are.
    Gptq {
        less: u8,
    },
}

impl Transposed<'_> {
    /// A word's code.
    fn code(bytes: &[u8], word: usize, index: usize, bits: usize) -> u8 {
        code_at(&bytes[word * 4..][..4], index, bits)
    }

    fn zero(&self, row: usize, group: usize) -> f32 {
        let (bits, first) = (self.bits, group * (self.rows * self.bits / 32));
        f32::from(match self.kind {
            Kind::Awq => Self::code(self.zeros, first + row / 8, AWQ_ORDER[row % 8], bits),
            Kind::Gptq { less } if 32 % bits == 0 => {
                // GPTQModel takes ones from whole words: from a zero point of zero by borrowing from the next.
                let ones = u32::from(less) * repeated(1, bits, 0);
                code_of_words(|word| word_at(self.zeros, first + word).wrapping_add(ones), row, bits)
            }
            Kind::Gptq { less } => {
                let stored = code_of_words(|word| word_at(self.zeros, first + word), row, bits);
                stored.wrapping_add(less) & (u8::MAX >> (8 - bits))
            }
        })
    }
}

impl ReadGroups for Transposed<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let (bits, first) = (self.bits, group * self.group_size);
        for (k, code) in (first..).zip(codes) {
            let k = stored(self.order.as_ref(), k);
            *code = match self.kind {
                Kind::Awq => Self::code(self.codes, k * (self.rows / 8) + row / 8, AWQ_ORDER[row % 8], bits),
                Kind::Gptq { .. } => code_of_words(|word| word_at(self.codes, word * self.rows + row), k, bits),
            };
        }
        let scale = self.scales.at(row, group);
        Scale { scale, bias: -scale * self.zero(row, group) }
    }
}

/// Word `index` of a stream of codes that are all the same.
fn repeated(code: u32, bits: usize, index: usize) -> u32 {
    (0..32).map(|bit| (code >> ((index * 32 + bit) % bits) & 1) << bit).sum()
}

/// Whether kernels take groups of so many columns.
const fn is_computed(cols: usize, size: usize) -> bool {
    size >= cols || size.is_multiple_of(8)
}

impl Checkpoint {
    pub(super) fn awq(&self, wanted: Wanted<'_>) -> Result<Option<Codes<'_>>, LoadError> {
        match self.part(wanted, "qweight") {
            None => Ok(None),
            Some(qweight) if !wanted.rows.is_multiple_of(8) => Err(self.unpackable(&qweight, "outputs by eights")),
            Some(_) => {
                let bytes = self.typed(wanted, "qweight", Dtype::I32, &[wanted.cols, wanted.rows / 8])?;
                self.transposed(wanted, Kind::Awq, (bytes, 4), ((None, true), false)).map(Some)
            }
        }
    }

    /// `said` is what the configuration says of groups, and whether of all matrices; it says whether the columns are `ordered`.
    pub(super) fn gptq(
        &self,
        wanted: Wanted<'_>,
        less: u8,
        said: (Option<usize>, bool),
        ordered: bool,
    ) -> Result<Option<Codes<'_>>, LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        let Some(qweight) = self.part(wanted, "qweight") else { return Ok(None) };
        let words = if let [words, _] = qweight.shape { *words } else { 0 };
        let Some(bits) = [2usize, 3, 4, 8].into_iter().find(|bits| cols * bits == words * 32 && rows * bits % 32 == 0)
        else {
            return Err(self.unpackable(&qweight, "I32 with 2, 3, 4 or 8 bits for each column, and outputs by words"));
        };
        let bytes = self.typed(wanted, "qweight", Dtype::I32, &[words, rows])?;
        self.transposed(wanted, Kind::Gptq { less }, (bytes, bits), (said, ordered)).map(Some)
    }

    /// How wide groups are, of which the last of a row may be narrower if config.json says what the others are. A layer may differ from that
    /// if config.json says that some do, or if it says itself which columns are in a group.
    fn columns_of_group(&self, wanted: Wanted<'_>, groups: usize, said: Option<usize>, alike: bool) -> Option<usize> {
        let Wanted { cols, .. } = wanted;
        match said {
            None => group_size(cols, groups),
            Some(size) if !is_computed(cols, size) => None,
            Some(size) if cols.div_ceil(size) == groups => Some(size.min(cols)),
            Some(_) if !alike => group_size(cols, groups),
            Some(_) => self.part(wanted, act_order::GPTQ).and_then(|_| group_size(cols, groups)),
        }
    }

    fn transposed<'a>(
        &'a self,
        wanted: Wanted<'_>,
        kind: Kind,
        (bytes, bits): (&'a [u8], usize),
        ((said, alike), ordered): ((Option<usize>, bool), bool),
    ) -> Result<Codes<'a>, LoadError> {
        let Wanted { rows, cols, .. } = wanted;
        let Some(scales) = self.part(wanted, "scales") else {
            return Err(self.missing(wanted, "scales"));
        };
        let groups = if let [groups, of_rows] = *scales.shape
            && of_rows == rows
        {
            groups
        } else {
            0
        };
        let Some(group_size) = self.columns_of_group(wanted, groups, said, alike) else {
            let of_rows = |size| cols.div_ceil(size);
            let as_said = |size| format!("[{}, {rows}] by the group_size in {}", of_rows(size), self.method_file);
            let expected = said.filter(|&size| is_computed(cols, size)).map_or(GROUPS.to_owned(), as_said);
            return Err(self.unpackable(&scales, &expected));
        };
        let grid = Grid {
            dtype: self.scale_type(&scales)?,
            exponents: false,
            bytes: scales.bytes,
            shared: [1, 1],
            strides: [1, rows],
        };
        let order = match kind {
            Kind::Awq => None,
            // Not so of compressed-tensors, of which matrices that were rounded without calibration have no order.
            Kind::Gptq { .. } if ordered && group_size < cols && self.part(wanted, act_order::GPTQ).is_none() => {
                return Err(self.missing(wanted, act_order::GPTQ));
            }
            Kind::Gptq { .. } => self.order(wanted, act_order::GPTQ, group_size)?,
        };
        let zeros = self.typed(wanted, "qzeros", Dtype::I32, &[groups, rows * bits / 32])?;
        // Some writers of symmetric matrices store the middle as it is, whatever config.json says, and kernels that know them as symmetric do not look.
        // One behind the middle everywhere is no other matrix.
        let (words, middle) = (rows * bits / 32, 1 << (bits - 1));
        let middles: Vec<u32> = (0..bits).map(|index| repeated(middle, bits, index)).collect();
        let is_middle = |(index, word): (usize, &[u8; 4])| u32::from_le_bytes(*word) == middles[index % words % bits];
        let kind = match kind {
            Kind::Gptq { .. } if zeros.as_chunks().0.iter().enumerate().all(is_middle) => Kind::Gptq { less: 0 },
            kind => kind,
        };
        let codebook = Codebook::Integer { bits: bits as u8, zero_point: 0 };
        let spelling =
            Spelling { codebook, group_size, scales: with_zero_points(grid.dtype, group_size), biases: true };
        let reader =
            Transposed { kind, codes: bytes, zeros, scales: grid, rows, bits, group_size, order: order.clone() };
        Ok(Codes { order, ..codes(wanted, spelling, reader) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_ops::DType;

    /// GPTQModel makes this of zero points that are stored as they are: `qzeros -= 0b0001...`, whole words at a time.
    #[test]
    fn zero_points_of_zero_borrow_from_the_next() {
        for (bits, zeros) in [
            (2, vec![0, 3, 0, 0, 1, 2, 0, 1, 3, 3, 0, 0, 0, 1, 2, 0]),
            (4, vec![0, 5, 0, 0, 15, 8, 1, 0]),
            (8, vec![0, 255, 0, 7]),
        ] {
            let word = zeros.iter().rev().fold(0u32, |word, &zero: &u32| word << bits | zero);
            for less in [0, 1] {
                let stored = word.wrapping_sub(u32::from(less) * repeated(1, bits, 0)).to_le_bytes();
                let scales = Grid { dtype: DType::F16, exponents: false, bytes: &[], shared: [1, 1], strides: [1, 1] };
                let rows = zeros.len();
                let transposed = Transposed {
                    kind: Kind::Gptq { less },
                    codes: &[],
                    zeros: &stored,
                    scales,
                    rows,
                    bits,
                    group_size: 8,
                    order: None,
                };
                let read: Vec<u32> = (0..rows).map(|row| transposed.zero(row, 0) as u32).collect();
                assert_eq!(read, zeros, "{bits} bits, {less}");
            }
        }
    }
}
