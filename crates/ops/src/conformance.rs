//! What every backend must meet: cases for each op as data, compared with its `reference()`. It knows no backend.
//!
//! An error is the largest difference from the reference, each divided by the magnitude of what was rounded on the way to that
//! element; a tolerance is a number of unit roundoffs that depends on the op, the type and the length of sums, with its reason
//! in the op's file. `u` there is the unit roundoff of f32. Sums of `n` terms get `sqrt(n)` roundoffs, as independent rounding
//! errors add up like a random walk (Higham 2002, section 2.6): the worst case, `n`, would hide real faults.

mod add_rms_norm;
mod add_shared_expert;
mod embedding;
mod gated_activation;
mod gated_matmul;
mod gather_rows;
mod grouped_matmul;
mod inputs;
pub mod invariance;
mod matmul;
mod moe_combine;
mod paged_attention;
mod permute_columns;
mod qk_norm;
mod rms_norm;
mod rope;
mod rope_kv_write;
mod sample;
mod topk_softmax;
mod weights;

use crate::*;
use inputs::Inputs;
pub use matmul::{of_product, roundoffs as product_roundoffs};
pub use paged_attention::AttentionRow;
pub use rms_norm::roundoffs as norm_roundoffs;
use std::collections::BTreeMap;
use std::fmt;
use weights::KnownWeight;

/// How one case of one op went.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The op, its type and the size of its heads.
    pub kind: Kind,
    /// Sizes and what is special.
    pub case: String,
    /// The largest normalised error; infinite for NaN.
    pub error: f64,
    /// The most that it may be.
    pub tolerance: f64,
    /// What went wrong otherwise.
    pub failure: Option<String>,
}

impl Verdict {
    /// Whether the backend meets the case.
    pub fn pass(&self) -> bool {
        self.failure.is_none() && self.error <= self.tolerance
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind: Kind { op, dtype, .. }, case, error, tolerance, .. } = self;
        let word = if self.pass() { "pass" } else { "FAIL" };
        write!(f, "{word} {op} {dtype} {case}: error {error:.2e}, tolerance {tolerance:.2e}")?;
        self.failure.as_ref().map_or(Ok(()), |failure| write!(f, ": {failure}"))
    }
}

/// Which cases to run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection<'a> {
    /// Only this op.
    pub op: Option<&'a str>,
    /// Only these kinds of ops.
    pub kinds: Option<&'a [Kind]>,
    /// Only the first cases of each op, which run everything that backends have for it at least once.
    pub short: bool,
    /// Only up to the first case that fails.
    pub until_failure: bool,
}

/// How many cases of an op with one type are in a short selection. They come first in the op's list.
fn short(op: &str) -> usize {
    match op {
        // Few and many rows; of experts, also rows for several pairs.
        crate::matmul::NAME => 4,
        crate::grouped_matmul::NAME => 7,
        // Heads of three sizes, with few and with many columns; sinks where parts are joined, and where there is one.
        crate::paged_attention::NAME => 7,
        // Every activation, twice and once.
        crate::gated_activation::NAME => 6,
        crate::gated_matmul::NAME => 3,
        crate::topk_softmax::NAME => 8,
        // It is no op that could be computed otherwise.
        invariance::NAME => 0,
        _ => 2,
    }
}

/// Runs all cases of all ops.
pub fn run<B: Backend>(backend: &mut B) -> Vec<Verdict> {
    run_selected(backend, Selection::default())
}

/// Runs some cases, in the order of [`run`].
pub fn run_selected<B: Backend>(backend: &mut B, selection: Selection<'_>) -> Vec<Verdict> {
    let mut rig = Rig { backend, selection, num_cases: BTreeMap::new(), verdicts: Vec::new() };
    embedding::verify(&mut rig);
    rms_norm::verify(&mut rig);
    add_rms_norm::verify(&mut rig);
    matmul::verify(&mut rig);
    qk_norm::verify(&mut rig);
    rope_kv_write::verify(&mut rig);
    rope::verify(&mut rig);
    paged_attention::verify(&mut rig);
    gated_activation::verify(&mut rig);
    gated_matmul::verify(&mut rig);
    topk_softmax::verify(&mut rig);
    grouped_matmul::verify(&mut rig);
    moe_combine::verify(&mut rig);
    add_shared_expert::verify(&mut rig);
    gather_rows::verify(&mut rig);
    permute_columns::verify(&mut rig);
    sample::verify(&mut rig);
    invariance::verify(&mut rig);
    rig.verdicts
}

/// Unit roundoff of f32.
const U: f64 = f32::EPSILON as f64 / 2.0;

/// Error and tolerance of a case.
struct Outcome {
    error: f64,
    tolerance: f64,
}

/// A backend and the verdicts on it so far.
struct Rig<'a, B> {
    backend: &'a mut B,
    selection: Selection<'a>,
    /// Of each op and format, run or not.
    num_cases: BTreeMap<(&'static str, WeightFormat), usize>,
    verdicts: Vec<Verdict>,
}

impl<B: Backend> Rig<'_, B> {
    /// Judges one case of an op that treats all heads alike.
    fn case(
        &mut self,
        op: &'static str,
        dtype: DType,
        case: impl fmt::Display,
        body: impl FnMut(&mut B) -> Result<Outcome>,
    ) {
        self.case_of(Kind::new(op, dtype), WeightFormat::Float(dtype), case, body);
    }

    /// Judges one case of an op with a weight, if the backend can have such weights.
    fn case_with_weight(
        &mut self,
        op: &'static str,
        format: WeightFormat,
        case: impl fmt::Display,
        body: impl FnMut(&mut B) -> Result<Outcome>,
    ) {
        if self.backend.check_weight_format(format).is_err() {
            return;
        }
        let kind = Kind::of_weight(op, format);
        match format {
            WeightFormat::Float(_) => self.case_of(kind, format, case, body),
            WeightFormat::Quantised(_) => self.case_of(kind, format, format_args!("{case}, {format}"), body),
        }
    }

    /// Judges one case.
    fn case_of(
        &mut self,
        kind: Kind,
        format: WeightFormat,
        case: impl fmt::Display,
        mut body: impl FnMut(&mut B) -> Result<Outcome>,
    ) {
        let num_cases = self.num_cases.entry((kind.op, format)).or_default();
        *num_cases += 1;
        let Selection { op, kinds, short: only_first, until_failure } = self.selection;
        let enough = only_first && *num_cases > short(kind.op)
            || until_failure && self.verdicts.last().is_some_and(|verdict| !verdict.pass());
        if enough || op.is_some_and(|only| only != kind.op) || kinds.is_some_and(|kinds| !kinds.contains(&kind)) {
            return;
        }
        let case = case.to_string();
        let mut result = body(self.backend);
        if matches!(result, Err(Error::TooLong { .. } | Error::Discarded { .. })) {
            // Nothing is wrong with it: steps are computed again, too.
            self.backend.discard();
            result = body(self.backend);
        }
        let verdict = match result {
            Ok(Outcome { error, tolerance }) => Verdict { kind, case, error, tolerance, failure: None },
            Err(e) => {
                self.backend.discard();
                Verdict { kind, case, error: f64::INFINITY, tolerance: 0.0, failure: Some(e.to_string()) }
            }
        };
        self.verdicts.push(verdict);
    }
}

/// A tensor of `values` rounded to `dtype`.
fn upload<B: Backend>(backend: &B, dtype: DType, cols: usize, values: &[f32]) -> Result<Tensor<B::Memory>> {
    let mut tensor = backend.allocate(dtype, values.len() / cols, cols)?;
    backend.write(&mut tensor, &dtype.encode(values));
    Ok(tensor)
}

/// A tensor of integers.
pub(crate) fn upload_u32<B: Backend>(backend: &B, cols: usize, values: &[u32]) -> Result<Tensor<B::Memory>> {
    let mut tensor = backend.allocate(DType::U32, values.len() / cols, cols)?;
    backend.write(&mut tensor, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    Ok(tensor)
}

/// The tables of a step. Each request has so many tokens in the cache and so many new ones, and as many blocks as any other.
pub(crate) fn sequences<B: Backend>(
    backend: &B,
    requests: &[(usize, usize)],
    block_table: &[u32],
) -> Result<Sequences<B::Memory>> {
    let mut starts = vec![0];
    starts.extend(requests.iter().scan(0, |end, r| {
        *end += r.1 as u32;
        Some(*end)
    }));
    let seq_lens: Vec<u32> = requests.iter().map(|r| (r.0 + r.1) as u32).collect();
    Ok(Sequences {
        num_requests: requests.len(),
        num_tokens: requests.iter().map(|r| r.1).sum(),
        max_seq_len: requests.iter().map(|r| r.0 + r.1).max().unwrap_or(0),
        sum_seq_lens: requests.iter().map(|r| r.0 + r.1).sum(),
        max_query_len: requests.iter().map(|r| r.1).max().unwrap_or(0),
        query_start_loc: upload_u32(backend, starts.len(), &starts)?,
        seq_lens: upload_u32(backend, seq_lens.len(), &seq_lens)?,
        block_table: upload_u32(backend, block_table.len(), block_table)?,
        block_table_stride: block_table.len() / requests.len(),
    })
}

/// Random values of a type.
fn rounded(inputs: &mut Inputs, dtype: DType, len: usize) -> Vec<f32> {
    inputs.floats(len, 2.0).into_iter().map(|value| dtype.round(value)).collect()
}

/// A tensor of zeros with one row more than the op may write.
fn output<B: Backend>(backend: &B, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<B::Memory>> {
    backend.allocate(dtype, rows + 1, cols)
}

/// The first `rows` rows; an error if the row behind them was written to.
fn read_output<B: Backend>(backend: &B, tensor: &Tensor<B::Memory>, rows: usize) -> Result<Vec<f32>> {
    Ok(tensor.dtype().decode(read_rows(backend, tensor, rows)?))
}

/// As [`read_output`], for integers.
fn read_output_u32<B: Backend>(backend: &B, tensor: &Tensor<B::Memory>, rows: usize) -> Result<Vec<u32>> {
    let bytes = read_rows(backend, tensor, rows)?;
    Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

fn read_rows<'a, B: Backend>(backend: &B, tensor: &'a Tensor<B::Memory>, rows: usize) -> Result<&'a [u8]> {
    let (rows, behind) = backend.read(tensor).split_at(rows * tensor.cols() * tensor.dtype().size());
    if behind.iter().any(|&b| b != 0) {
        let reason = "wrote behind the rows of an op".into();
        return Err(Error::Commands { device: backend.device().backend.into(), reason });
    }
    Ok(rows)
}

/// The largest `|got - want| / scale`, where `scale` may be 0 only if they are equal.
fn worst(got: &[f32], want: &[f32], scale: impl Fn(usize) -> f64) -> f64 {
    assert_eq!(got.len(), want.len());
    let error = |i: usize| {
        let difference = (f64::from(got[i]) - f64::from(want[i])).abs();
        match difference {
            0.0 => 0.0,
            // Of two that are not finite, or of a scale that is not.
            d => Some(d / scale(i)).filter(|error| !error.is_nan()).unwrap_or(f64::INFINITY),
        }
    };
    (0..got.len()).map(error).fold(0.0, f64::max)
}

/// The output that comes nearest to its tolerance, or leaves it furthest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// How many times its tolerance its error is; infinite for what is no number.
    pub error: f64,
    /// Which.
    pub at: usize,
    /// What the backend computed.
    pub got: f32,
    /// What the reference says.
    pub want: f32,
}

/// Holds outputs against a reference: errors relative to `scale`, and then to `tolerance`.
///
/// # Panics
/// If they are not as many.
pub fn judge(got: &[f32], want: &[f32], tolerance: f64, scale: impl Fn(usize) -> f64) -> Option<Judged> {
    assert_eq!(got.len(), want.len());
    let of = |at: usize| {
        let error = worst(&got[at..=at], &want[at..=at], |_| scale(at));
        // Where no error is allowed, any is too large.
        let error = if error == 0.0 { 0.0 } else { error / tolerance };
        Judged { error, at, got: got[at], want: want[at] }
    };
    (0..got.len()).map(of).max_by(|a, b| a.error.total_cmp(&b.error))
}

/// The size of `want` for relative errors. Below the smallest normal number of f16 spacing is absolute; in the other types
/// what is below 1e-25 may as well be zero.
pub fn magnitude(want: &[f32], dtype: DType) -> impl Fn(usize) -> f64 {
    let smallest = if dtype == DType::F16 { 6.2e-5 } else { 1e-25 };
    move |i| f64::from(want[i].abs()).max(smallest)
}

/// Roundoffs of f32 on the way and one rounding to `dtype`.
pub fn tolerance(roundoffs: f64, dtype: DType) -> f64 {
    let last = if dtype == DType::F32 { 0.0 } else { f64::from(dtype.epsilon()) };
    roundoffs * U + last * (1.0 + 1e-3)
}
