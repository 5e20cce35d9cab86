//! Weights in the layout of the matmul kernels, made once at load. It knows nothing of activations or instruction sets.
//!
//! A matrix `[N, K]` becomes panels of 32 outputs. A panel is `[K][32]` elements, or `[K / 2][32][2]` for bf16, whose dot
//! product takes pairs. Missing outputs of the last panel and the missing half of an odd K are zeros. Panels follow each
//! other without gaps, so that a thread which works through several reads one ascending stream. Of quantised weights, a panel is one group
//! of K after the other: codes, then scales and biases; or one super-block after the other.

mod codes;

use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use vllm_apple_ops::{DType, Error, HostTensor, Parts, Result, WeightFormat, WeightSource};

use crate::matmul::codes::Layout;
use crate::matmul::format::{Format, PANEL};
use crate::simd::with_float;
use crate::weight_memory::{Part, WeightMemory};
use vllm_apple_ops::pool::Pool;

/// Elements of K that are converted at a time: a panel's slice of this length stays in the first-level cache.
const SLICE: usize = 64;

/// Weight matrices `[groups, N, K]` in panels.
#[derive(Debug)]
pub struct PackedMatrix {
    format: WeightFormat,
    groups: usize,
    n: usize,
    k: usize,
    /// Of the format, which tiles of few rows would take long to ask.
    steps: usize,
    step_bytes: usize,
    memory: Part,
}

impl PackedMatrix {
    /// Packs a weight into `memory`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the parts do not fit together, [`Error::OutOfRange`] if a finite value does not fit
    /// the format, [`Error::OutOfMemory`] if there is no memory.
    pub fn pack(pool: &Pool, memory: &WeightMemory, source: WeightSource<'_>, format: WeightFormat) -> Result<Self> {
        let (n, k) = source.check(format)?;
        check_format(format)?;
        let WeightSource { name, groups, parts } = source;
        let (steps, step_bytes) = (steps(format, k), step_bytes(format));
        let (panels, size) = (groups * n.div_ceil(PANEL), steps * step_bytes);
        let mut memory = memory.zeroed(panels * size, &format!("weight {name}"))?;

        let overflow = Overflow::default();
        let memory_start = SendPtr(memory.bytes_mut().as_mut_ptr());
        let pack = |pack_panel: &(dyn Fn(usize, &mut [u8]) + Sync)| {
            pool.run(panels, &|panel, _| {
                // SAFETY: each panel is a part of the memory of its own, and each item is run once.
                let memory = unsafe { std::slice::from_raw_parts_mut(memory_start.get().add(panel * size), size) };
                pack_panel(panel, memory);
            });
        };
        let overflow = &overflow;
        match (parts, format) {
            (Parts::Float(parts), WeightFormat::Float(dtype)) => {
                let packer = Packer { format, dtype, n, k, parts_per_group: parts.len() / groups, parts, overflow };
                pack(&|panel, memory| packer.pack_panel(panel, memory));
            }
            (Parts::Quantised(parts), WeightFormat::Quantised(_)) => {
                let parts_per_group = parts.len() / groups;
                let packer = codes::Packer { layout: layout(format), n, k, parts_per_group, parts, overflow };
                pack(&|panel, memory| packer.pack_panel(panel, memory));
            }
            _ => unreachable!("the source has been checked"),
        }
        match (overflow.first(), format) {
            (None, _) => Ok(Self { format, groups, n, k, steps, step_bytes, memory }),
            (Some(value), WeightFormat::Float(dtype)) => Err(Error::OutOfRange { name: name.into(), value, dtype }),
            (Some(value), WeightFormat::Quantised(quantised)) => {
                Err(Error::ScaleOutOfRange { name: name.into(), value, dtype: quantised.scales.dtype() })
            }
        }
    }

    /// What the numbers are.
    #[must_use]
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Number of matrices: experts, or 1.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Outputs per matrix.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs per matrix.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Memory taken.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Row `n` of matrix `group` in f32, exactly, or of a quantised matrix rounded once: the embedding of a token from a table that is also the output head.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not K long.
    pub fn row(&self, group: usize, n: usize, out: &mut [f32]) {
        assert!(
            group < self.groups && n < self.n,
            "row {n} of group {group} of a weight [{}, {}]",
            self.groups,
            self.n
        );
        assert_eq!(out.len(), self.k, "a row's length");
        let panel = self.panel(group, n / PANEL);
        let lane = n % PANEL;
        let u16_at = |i: usize| u16::from_le_bytes([panel[2 * i], panel[2 * i + 1]]);
        let WeightFormat::Float(dtype) = self.format else {
            return codes::row(layout(self.format), panel, lane, out);
        };
        for (k, out) in out.iter_mut().enumerate() {
            *out = match dtype {
                DType::BF16 => bf16::from_bits(u16_at((k / 2 * PANEL + lane) * 2 + k % 2)).to_f32(),
                DType::F16 => f16::from_bits(u16_at(k * PANEL + lane)).to_f32(),
                _ => {
                    let at = (k * PANEL + lane) * 4;
                    f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]])
                }
            };
        }
    }

    /// Panels per matrix.
    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Steps of the tile kernel along K.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// Bytes of one step of a panel.
    pub(crate) fn step_bytes(&self) -> usize {
        self.step_bytes
    }

    /// One panel.
    pub(crate) fn panel(&self, group: usize, panel: usize) -> &[u8] {
        let size = self.steps * self.step_bytes;
        &self.memory.bytes()[(group * self.panels() + panel) * size..][..size]
    }
}

/// See [`vllm_apple_ops::Backend::check_weight_format`].
pub(crate) fn check_format(format: WeightFormat) -> Result<()> {
    match format {
        WeightFormat::Quantised(quantised) if Layout::new(quantised).is_none() => Err(Error::Unsupported {
            device: "cpu".into(),
            op: vllm_apple_ops::matmul::NAME,
            reason: format!(
                "weights of {format}; codes of 8 bits must mean -128 to 127 or 0 to 255, groups in super-blocks be of 8 to 256 elements that divide 256, and \
                 with `activation_dtype` int8 codes mean whole numbers, up to 66,311 in a group: use `activation_dtype` auto for others"
            ),
        }),
        _ => Ok(()),
    }
}

/// See [`vllm_apple_ops::Backend::weight_bytes`].
pub(crate) fn bytes(format: WeightFormat, groups: usize, n: usize, k: usize) -> u128 {
    groups as u128 * n.div_ceil(PANEL) as u128 * (steps(format, k) * step_bytes(format)) as u128
}

/// Steps of the tile kernel along `k` elements; what the last has too many are zeros.
pub(crate) fn steps(format: WeightFormat, k: usize) -> usize {
    match format {
        WeightFormat::Float(dtype) => with_float!(dtype, F => k.div_ceil(<F as Format>::ELEMENTS)),
        WeightFormat::Quantised(quantised) => quantised.groups(k).next_multiple_of(layout(format).together()),
    }
}

fn step_bytes(format: WeightFormat) -> usize {
    match format {
        WeightFormat::Float(dtype) => with_float!(dtype, F => <F as Format>::STEP_BYTES),
        WeightFormat::Quantised(_) => layout(format).step_bytes(),
    }
}

/// How a quantised weight lies in memory.
fn layout(format: WeightFormat) -> Layout {
    let WeightFormat::Quantised(quantised) = format else { unreachable!("only quantised weights have codes") };
    Layout::new(quantised).unwrap_or_else(|| unreachable!("the format has been checked"))
}

/// The part that has row `row` of all parts, and which of its rows that is.
fn part_of<P>(parts: &[P], rows: impl Fn(&P) -> usize, mut row: usize) -> (&P, usize) {
    for part in parts {
        if row < rows(part) {
            return (part, row);
        }
        row -= rows(part);
    }
    unreachable!("rows were counted from the parts")
}

/// The overflow in the first row of those found, so that the report does not depend on which thread came first.
#[derive(Default)]
struct Overflow(Mutex<Option<(usize, f32)>>);

impl Overflow {
    fn report(&self, row: usize, value: f32) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_none_or(|(first, _)| row < first) {
            *found = Some((row, value));
        }
    }

    fn first(&self) -> Option<f32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|(_, value)| value)
    }
}

struct Packer<'a> {
    format: WeightFormat,
    dtype: DType,
    n: usize,
    k: usize,
    parts_per_group: usize,
    parts: &'a [HostTensor<'a>],
    overflow: &'a Overflow,
}

impl Packer<'_> {
    /// Fills `to`, which holds zeros, with panel `panel` counted over all groups.
    fn pack_panel(&self, panel: usize, to: &mut [u8]) {
        let panels = self.n.div_ceil(PANEL);
        let (group, first_row) = (panel / panels, panel % panels * PANEL);
        let rows = PANEL.min(self.n - first_row);
        let mut slice = [0u32; SLICE];
        for k in (0..self.k).step_by(SLICE) {
            let slice = &mut slice[..SLICE.min(self.k - k)];
            let to = &mut to[k / SLICE * steps(self.format, SLICE) * step_bytes(self.format)..];
            for lane in 0..rows {
                let (dtype, from) = self.source(group, first_row + lane, k, slice.len());
                if let Some(value) = convert(dtype, from, self.dtype, slice) {
                    self.overflow.report(group * self.n + first_row + lane, value);
                }
                scatter(self.dtype, slice, lane, to);
            }
        }
    }

    /// The bytes of `len` elements of a row from element `k` on.
    fn source(&self, group: usize, row: usize, k: usize, len: usize) -> (DType, &[u8]) {
        let parts = &self.parts[group * self.parts_per_group..][..self.parts_per_group];
        let (part, row) = part_of(parts, |part| part.rows, row);
        let size = part.dtype.size();
        (part.dtype, &part.bytes[(row * self.k + k) * size..][..len * size])
    }
}

/// Converts elements to bits of type `to`; returns a finite value that became infinite, if any.
fn convert(from: DType, bytes: &[u8], to: DType, out: &mut [u32]) -> Option<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter().map(|&b| u16::from_le_bytes(b));
    let words = || bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b));
    let out = out.iter_mut();
    match (from, to) {
        (DType::F32, DType::F32) => out.zip(words()).for_each(|(out, bits)| *out = bits),
        (DType::BF16, DType::BF16) | (DType::F16, DType::F16) => {
            out.zip(halves()).for_each(|(out, bits)| *out = u32::from(bits));
        }
        (DType::F32, _) => return round_all(words().map(f32::from_bits), to, out),
        (DType::F16, _) => return round_all(halves().map(|bits| f16::from_bits(bits).to_f32()), to, out),
        (_, _) => return round_all(halves().map(|bits| bf16::from_bits(bits).to_f32()), to, out),
    }
    None
}

fn round_all<'a>(values: impl Iterator<Item = f32>, to: DType, out: impl Iterator<Item = &'a mut u32>) -> Option<f32> {
    let mut overflow = None;
    for (out, value) in out.zip(values) {
        let (bits, infinite) = match to {
            DType::BF16 => (u32::from(bf16::from_f32(value).to_bits()), bf16::from_f32(value).is_infinite()),
            DType::F16 => (u32::from(f16::from_f32(value).to_bits()), f16::from_f32(value).is_infinite()),
            _ => (value.to_bits(), value.is_infinite()),
        };
        if infinite && value.is_finite() {
            overflow = overflow.or(Some(value));
        }
        *out = bits;
    }
    overflow
}

/// Writes consecutive elements of K of one output into its lane.
fn scatter(dtype: DType, slice: &[u32], lane: usize, to: &mut [u8]) {
    match dtype {
        DType::BF16 => {
            let (to, _) = to.as_chunks_mut::<4>();
            for (step, pair) in slice.chunks(2).enumerate() {
                let high = pair.get(1).copied().unwrap_or(0);
                to[step * PANEL + lane] = (pair[0] | high << 16).to_le_bytes();
            }
        }
        DType::F16 => {
            let (to, _) = to.as_chunks_mut::<2>();
            for (k, &bits) in slice.iter().enumerate() {
                to[k * PANEL + lane] = (bits as u16).to_le_bytes();
            }
        }
        _ => {
            let (to, _) = to.as_chunks_mut::<4>();
            for (k, &bits) in slice.iter().enumerate() {
                to[k * PANEL + lane] = bits.to_le_bytes();
            }
        }
    }
}

/// A pointer that threads may share; what they do with it is for each use to justify.
#[derive(Clone, Copy)]
pub(crate) struct SendPtr<T>(pub *mut T);

// SAFETY: a pointer alone does nothing; each dereference carries its own justification.
unsafe impl<T> Send for SendPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// The pointer. A method, so that closures capture the wrapper and not its field.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    fn pack(source: WeightSource<'_>, format: WeightFormat) -> Result<PackedMatrix> {
        PackedMatrix::pack(&Pool::new(NonZeroUsize::new(2).unwrap()), &WeightMemory::default(), source, format)
    }

    fn tensor(dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> HostTensor<'_> {
        HostTensor { dtype, rows, cols, bytes, file: None }
    }

    /// Values that all three types hold exactly.
    fn exact_values(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 + seed * 11) % 255) as f32 - 127.0).collect()
    }

    #[test]
    fn rows_come_back_whatever_the_types_shapes_and_parts() {
        for from in DType::FLOATS {
            for to in DType::FLOATS {
                for k in [1, 2, 63, 64, 65, 130] {
                    // Two groups of two parts; the seam is inside a panel.
                    let rows = [5, 40, 5, 40];
                    let values: Vec<_> = rows.iter().enumerate().map(|(i, rows)| exact_values(rows * k, i)).collect();
                    let bytes: Vec<_> = values.iter().map(|values| from.encode(values)).collect();
                    let parts: Vec<_> =
                        rows.iter().zip(&bytes).map(|(&rows, bytes)| tensor(from, rows, k, bytes)).collect();
                    let packed = pack(WeightSource::matrices("w", 2, &parts), WeightFormat::Float(to)).unwrap();
                    assert_eq!(
                        (packed.groups(), packed.n(), packed.k(), packed.format()),
                        (2, 45, k, WeightFormat::Float(to))
                    );
                    assert_eq!(packed.bytes() as u128, super::bytes(WeightFormat::Float(to), 2, 45, k));
                    let mut row = vec![0.0; k];
                    for (group, n) in (0..2).flat_map(|group| (0..45).map(move |n| (group, n))) {
                        packed.row(group, n, &mut row);
                        let (part, n) = if n < 5 { (2 * group, n) } else { (2 * group + 1, n - 5) };
                        assert_eq!(row, values[part][n * k..][..k], "{from} to {to}, k {k}, group {group}");
                    }
                }
            }
        }
    }

    #[test]
    fn rounds_to_nearest_even_once() {
        let values = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 0.1, -1e-7, 65504.0];
        let bytes = DType::F32.encode(&values);
        for to in DType::FLOATS {
            let packed =
                pack(WeightSource::matrix("w", &[tensor(DType::F32, 1, 5, &bytes)]), WeightFormat::Float(to)).unwrap();
            let mut row = [0.0; 5];
            packed.row(0, 0, &mut row);
            assert_eq!(row, values.map(|v| to.round(v)));
        }
    }

    #[test]
    fn a_value_that_becomes_infinite_is_refused_by_name() {
        let mut values = vec![1.0; 40 * 70];
        values[35 * 70 + 66] = -7e4;
        values[39 * 70] = 8e4;
        for from in [DType::F32, DType::BF16] {
            let bytes = from.encode(&values);
            let error =
                pack(WeightSource::matrix("blk.w", &[tensor(from, 40, 70, &bytes)]), WeightFormat::Float(DType::F16))
                    .unwrap_err();
            assert_eq!(error, Error::OutOfRange { name: "blk.w".into(), value: from.round(-7e4), dtype: DType::F16 });
            assert!(
                pack(WeightSource::matrix("w", &[tensor(from, 40, 70, &bytes)]), WeightFormat::Float(DType::BF16))
                    .is_ok()
            );
        }
        let bytes = DType::F32.encode(&[f32::MAX]);
        assert!(
            pack(WeightSource::matrix("w", &[tensor(DType::F32, 1, 1, &bytes)]), WeightFormat::Float(DType::BF16))
                .is_err()
        );
    }

    #[test]
    fn infinities_and_nans_of_the_checkpoint_stay() {
        let bytes = DType::F32.encode(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        for to in DType::FLOATS {
            let packed =
                pack(WeightSource::matrix("w", &[tensor(DType::F32, 1, 3, &bytes)]), WeightFormat::Float(to)).unwrap();
            let mut row = [0.0; 3];
            packed.row(0, 0, &mut row);
            assert_eq!(row[..2], [f32::INFINITY, f32::NEG_INFINITY]);
            assert!(row[2].is_nan());
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let bytes = [0u8; 64];
        let good = tensor(DType::BF16, 4, 8, &bytes);
        let refused = |dtype, groups, parts: &[HostTensor<'_>]| {
            matches!(
                pack(WeightSource::matrices("w", groups, parts), WeightFormat::Float(dtype)),
                Err(Error::InvalidArgument { .. })
            )
        };
        assert!(!refused(DType::BF16, 1, &[good]));
        assert!(refused(DType::U32, 1, &[good]));
        assert!(refused(DType::BF16, 0, &[good]));
        assert!(refused(DType::BF16, 1, &[]));
        assert!(refused(DType::BF16, 2, &[good, good, good]));
        assert!(refused(DType::BF16, 1, &[tensor(DType::BF16, 0, 8, &[])]));
        assert!(refused(DType::BF16, 1, &[tensor(DType::BF16, 4, 8, &bytes[..62])]));
        assert!(refused(DType::BF16, 1, &[good, tensor(DType::BF16, 8, 4, &bytes)]));
        assert!(refused(DType::BF16, 2, &[good, tensor(DType::BF16, 3, 8, &bytes[..48])]));
        assert!(refused(DType::BF16, 1, &[tensor(DType::U32, 2, 8, &bytes)]));
    }
}
