//! Weights whose every element is known exactly, in any format. It knows no op.

use super::inputs::Inputs;
use super::rounded;
use crate::*;

/// A weight `[groups, n, k]`.
pub(super) struct KnownWeight {
    format: WeightFormat,
    shape: [usize; 3],
    /// Every element, in f32.
    pub values: Vec<f32>,
    /// The magnitudes of what elements are made of: where a bias takes away what a code gives, they are larger than the elements.
    pub sizes: Vec<f32>,
    codes: Codes,
}

/// Codes as a checkpoint could have them.
struct Codes {
    quantised: Option<Quantised>,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<Scale>,
    /// Of super-blocks, where scales have them.
    factors: Vec<Scale>,
}

impl KnownWeight {
    pub(super) fn new(inputs: &mut Inputs, format: WeightFormat, shape: [usize; 3]) -> Self {
        let [groups, n, k] = shape;
        match format {
            WeightFormat::Float(dtype) => {
                let values = rounded(inputs, dtype, groups * n * k);
                let sizes = values.iter().map(|v| v.abs()).collect();
                let codes =
                    Codes { quantised: None, cols: k, codes: Vec::new(), scales: Vec::new(), factors: Vec::new() };
                Self { format, shape, values, sizes, codes }
            }
            WeightFormat::Quantised(quantised) => Self::of_codes(inputs, quantised, shape),
        }
    }

    fn of_codes(inputs: &mut Inputs, quantised: Quantised, shape: [usize; 3]) -> Self {
        let ([groups, n, k], per_row) = (shape, quantised.groups(shape[2]));
        let codes = inputs.below(groups * n * k, 1 << quantised.codebook.bits());
        let codes: Vec<u8> = codes.into_iter().map(|code| code as u8).collect();
        // Few enough bits that every element is exact in f32, and every bias in bf16.
        let bias = |bias| if quantised.biases { bias } else { 0.0 };
        let super_blocks = k.div_ceil(SUPER_BLOCK);
        let (scales, factors): (Vec<Scale>, Vec<Scale>) = match quantised.scales {
            Scales::Float(_) | Scales::ZeroPoints(_) => {
                let scale = |inputs: &mut Inputs| {
                    let scale = inputs.one_below(16) as f32 / 64.0 * inputs.one_of(&[1.0, -1.0]);
                    let zero_point = inputs.one_below(16) as f32;
                    Scale { scale, bias: bias(-scale * zero_point) }
                };
                ((0..groups * n * per_row).map(|_| scale(inputs)).collect(), Vec::new())
            }
            Scales::PowersOfTwo => {
                // The second group of a row has the least, whose exponent is none of a normal number: beside others it is nothing.
                let scale = |group: usize| {
                    let exponent = if group % per_row == 1 { -127 } else { -(inputs.one_below(6) as i32) };
                    Scale { scale: 2f32.powi(exponent), bias: 0.0 }
                };
                ((0..groups * n * per_row).map(scale).collect(), Vec::new())
            }
            Scales::SuperBlocks | Scales::SuperBlocksOfNibbles | Scales::SuperBlocksOfFloats => {
                let of_sign = |inputs: &mut Inputs, most| inputs.one_below(most) as f32 * inputs.one_of(&[1.0, -1.0]);
                let factor = |inputs: &mut Inputs| {
                    let [scale, least] = [64.0, 16.0].map(|by| of_sign(inputs, 4) / by);
                    Scale { scale, bias: bias(least) }
                };
                let factors: Vec<Scale> = (0..groups * n * super_blocks).map(|_| factor(inputs)).collect();
                let scale = |group: usize| {
                    let of = group / per_row * super_blocks + group % per_row * quantised.group_size / SUPER_BLOCK;
                    let [scale, bias] = [0, 1].map(|_| match quantised.scales {
                        Scales::SuperBlocksOfNibbles => inputs.one_below(16) as f32,
                        _ => of_sign(inputs, 16),
                    });
                    Scale { scale: factors[of].scale * scale, bias: factors[of].bias * bias }
                };
                ((0..groups * n * per_row).map(scale).collect(), factors)
            }
        };
        let element = |i: usize| (codes[i], scales[i / k * per_row + i % k / quantised.group_size]);
        let values = (0..codes.len()).map(|i| {
            let (code, Scale { scale, bias }) = element(i);
            quantised.value(code, scale, bias)
        });
        let sizes = (0..codes.len()).map(|i| {
            let (code, Scale { scale, bias }) = element(i);
            (quantised.codebook.value(code) * scale).abs() + bias.abs()
        });
        Self {
            values: values.collect(),
            sizes: sizes.collect(),
            format: WeightFormat::Quantised(quantised),
            shape,
            codes: Codes { quantised: Some(quantised), cols: k, codes, scales, factors },
        }
    }

    /// Rows of activations as such a weight is multiplied by them.
    pub(super) fn rounded(&self, mut x: Vec<f32>) -> Vec<f32> {
        if let WeightFormat::Quantised(Quantised { activations, group_size, .. }) = self.format {
            let groups = x.chunks_mut(self.shape[2]).flat_map(|row| row.chunks_mut(group_size));
            groups.for_each(|group| activations.round(group));
        }
        x
    }

    /// A part for each group.
    pub(super) fn upload<B: Backend>(&self, backend: &B) -> Result<Weight<B::Packed>> {
        let [groups, n, _] = self.shape;
        self.upload_rows(backend, &vec![n; groups])
    }

    /// Up to three parts, as of q, k and v.
    pub(super) fn upload_parts<B: Backend>(&self, backend: &B) -> Result<Weight<B::Packed>> {
        let n = self.shape[1];
        let rows = [n.div_ceil(2), n - n / 4 - n.div_ceil(2), n / 4];
        self.upload_rows(backend, &rows.into_iter().filter(|&rows| rows > 0).collect::<Vec<_>>())
    }

    /// Parts of so many rows.
    fn upload_rows<B: Backend>(&self, backend: &B, rows: &[usize]) -> Result<Weight<B::Packed>> {
        let [groups, _, cols] = self.shape;
        let starts = rows.iter().scan(0, |end, rows| Some(std::mem::replace(end, *end + rows)));
        match self.format {
            WeightFormat::Float(dtype) => {
                let bytes = dtype.encode(&self.values);
                let part = |(start, &rows): (usize, &usize)| {
                    let bytes = &bytes[start * cols * dtype.size()..][..rows * cols * dtype.size()];
                    HostTensor { dtype, rows, cols, bytes, file: None }
                };
                let parts: Vec<_> = starts.zip(rows).map(part).collect();
                backend.load_weight(WeightSource::matrices("conformance", groups, &parts), self.format)
            }
            WeightFormat::Quantised(_) => {
                let from: Vec<_> = starts.map(|first| RowsFrom { codes: &self.codes, first }).collect();
                let part = |(groups, &rows): (_, &usize)| QuantisedTensor { rows, cols, groups };
                let parts: Vec<_> = from.iter().map(|from| from as &dyn ReadGroups).zip(rows).map(part).collect();
                backend.load_weight(WeightSource::quantised("conformance", groups, &parts), self.format)
            }
        }
    }
}

/// The rows from `first` on.
struct RowsFrom<'a> {
    codes: &'a Codes,
    first: usize,
}

impl ReadGroups for RowsFrom<'_> {
    fn read(&self, row: usize, group: usize, codes: &mut [u8]) -> Scale {
        let (row, from) = (self.first + row, self.codes);
        let quantised = from.quantised.unwrap_or_else(|| unreachable!("only weights of codes are read"));
        codes.copy_from_slice(&from.codes[row * from.cols + group * quantised.group_size..][..codes.len()]);
        from.scales[row * quantised.groups(from.cols) + group]
    }

    fn factors(&self, row: usize, super_block: usize) -> Scale {
        self.codes.factors[(self.first + row) * self.codes.cols.div_ceil(SUPER_BLOCK) + super_block]
    }
}
