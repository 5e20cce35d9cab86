//! What a step's ops did, with their places in the model. It knows no arithmetic.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use vllm_apple_ops::conformance::Judged;
use vllm_apple_ops::{
    Backend, Tensor, add_rms_norm, embedding, gated_activation, gated_matmul, gather_rows, grouped_matmul, matmul,
    paged_attention, rms_norm,
};

use crate::reference::floats;

/// The output of an op that is furthest from its reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Of the op's rows.
    pub row: usize,
    /// The element of the row, or the head where the op's outputs are heads.
    pub place: Place,
    /// How many times its tolerance the error is, and the values.
    pub judged: Judged,
}

impl Finding {
    /// How many times its tolerance the error is. What is no number is as wrong as can be: comparisons and `max` would pass it over.
    pub fn error(&self) -> f64 {
        if self.judged.error.is_nan() { f64::INFINITY } else { self.judged.error }
    }
}

/// Where in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// An element.
    Element(usize),
    /// A query head.
    Head(usize),
    /// A key head, in the cache.
    Key(usize),
    /// A value head, in the cache.
    Value(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Element(i) => write!(f, "element {i}"),
            Self::Head(i) => write!(f, "query head {i}"),
            Self::Key(i) => write!(f, "the cache's key head {i}"),
            Self::Value(i) => write!(f, "the cache's value head {i}"),
        }
    }
}

/// One op of a step.
#[derive(Debug, Clone)]
pub struct OpRecord {
    /// Its name.
    pub op: &'static str,
    /// What it does in the model.
    pub part: &'static str,
    /// `None` outside of layers.
    pub layer: Option<usize>,
    /// `None` if it has no outputs.
    pub finding: Option<Finding>,
    /// Of each row of its outputs, something that differs if the bits do.
    pub bits: Vec<u64>,
    /// The residual stream after a layer, `[rows, hidden]`; empty of other ops.
    pub residual: Vec<f32>,
}

impl fmt::Display for OpRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.op, self.part)?;
        self.layer.map_or(Ok(()), |layer| write!(f, ", layer {layer}"))?;
        f.write_str(")")
    }
}

/// The ops so far, and where the step is.
#[derive(Debug, Default)]
pub(super) struct Log {
    records: Vec<OpRecord>,
    /// Additions to the residual stream: two a layer.
    additions: usize,
    attended: bool,
    gated: bool,
    gathered: bool,
}

impl Log {
    pub fn into_records(self) -> Vec<OpRecord> {
        self.records
    }

    pub fn push(&mut self, op: &'static str, part: &'static str, finding: Option<Finding>, bits: Vec<u64>) {
        let layer = (!self.gathered && op != embedding::NAME).then_some(self.additions / 2);
        self.records.push(OpRecord { op, part, layer, finding, bits, residual: Vec::new() });
    }

    /// An op whose part in a layer is always the same.
    pub fn in_layer<B: Backend>(
        &mut self,
        backend: &B,
        op: &'static str,
        part: &'static str,
        rows: usize,
        out: &Tensor<B::Memory>,
        finding: Option<Finding>,
    ) {
        self.push(op, part, finding, bits_of(backend, out, rows));
    }

    /// A step begins with it.
    pub fn embedding<B: Backend>(&mut self, b: &B, rows: usize, out: &Tensor<B::Memory>, finding: Option<Finding>) {
        let records = std::mem::take(&mut self.records);
        *self = Self { records, ..Self::default() };
        self.in_layer(b, embedding::NAME, "token embedding", rows, out, finding);
    }

    pub fn norm<B: Backend>(&mut self, b: &B, rows: usize, out: &Tensor<B::Memory>, finding: Option<Finding>) {
        let part = match (self.is_in_mlp(), self.attended) {
            (false, false) => "norm before attention",
            (false, true) => "norm after attention",
            (true, _) => "norm after the MLP",
        };
        self.in_layer(b, rms_norm::NAME, part, rows, out, finding);
    }

    pub fn add_norm<B: Backend>(
        &mut self,
        b: &B,
        rows: usize,
        residual: &Tensor<B::Memory>,
        out: &Tensor<B::Memory>,
        finding: Option<Finding>,
    ) {
        let part = if self.is_in_mlp() {
            "addition of the MLP and the norm that follows"
        } else {
            "addition of attention and the norm that follows"
        };
        let bits = bits_of(b, residual, rows).into_iter().zip(bits_of(b, out, rows));
        let bits = bits.map(|(a, b)| a.rotate_left(1) ^ b).collect();
        self.push(add_rms_norm::NAME, part, finding, bits);
        if self.is_in_mlp()
            && let Some(record) = self.records.last_mut()
        {
            record.residual = floats(b, residual, rows);
        }
        self.additions += 1;
        (self.attended, self.gated) = (false, false);
    }

    /// To some columns of a tensor.
    pub fn matmul<B: Backend>(
        &mut self,
        backend: &B,
        rows: usize,
        (out, columns): (&Tensor<B::Memory>, Range<usize>),
        finding: Option<Finding>,
    ) {
        let part = match (self.gathered, self.is_in_mlp(), self.attended, self.gated) {
            (true, ..) => "output head",
            (_, false, false, _) => "projection to queries, keys and values",
            (_, false, true, _) => "projection of attention's output",
            (_, true, _, true) => "down projection",
            (_, true, _, false) => "router or gate of experts, or part of the gate and up projection",
        };
        self.gated = false;
        self.push(matmul::NAME, part, finding, bits_of_columns(backend, out, rows, columns));
    }

    pub fn gated_matmul<B: Backend>(&mut self, b: &B, rows: usize, out: &Tensor<B::Memory>, finding: Option<Finding>) {
        self.gated = true;
        self.in_layer(b, gated_matmul::NAME, "gate and up projection, activation", rows, out, finding);
    }

    /// To some columns of a tensor.
    pub fn grouped_matmul<B: Backend>(
        &mut self,
        backend: &B,
        rows: usize,
        (out, columns): (&Tensor<B::Memory>, Range<usize>),
        finding: Option<Finding>,
    ) {
        let part = if self.gated { "down projection of experts" } else { "gate and up projection of experts" };
        self.gated = false;
        self.push(grouped_matmul::NAME, part, finding, bits_of_columns(backend, out, rows, columns));
    }

    pub fn gated_activation<B: Backend>(
        &mut self,
        b: &B,
        rows: usize,
        out: &Tensor<B::Memory>,
        finding: Option<Finding>,
    ) {
        self.gated = true;
        self.in_layer(b, gated_activation::NAME, "activation of gates", rows, out, finding);
    }

    pub fn attention<B: Backend>(&mut self, b: &B, rows: usize, out: &Tensor<B::Memory>, finding: Option<Finding>) {
        self.attended = true;
        self.in_layer(b, paged_attention::NAME, "attention", rows, out, finding);
    }

    pub fn gather_rows<B: Backend>(&mut self, b: &B, rows: usize, out: &Tensor<B::Memory>, finding: Option<Finding>) {
        self.gathered = true;
        self.in_layer(b, gather_rows::NAME, "choice of rows for the output head", rows, out, finding);
    }

    fn is_in_mlp(&self) -> bool {
        self.additions % 2 == 1
    }
}

/// A number for each row's bits.
pub(super) fn bits_of<B: Backend>(backend: &B, tensor: &Tensor<B::Memory>, rows: usize) -> Vec<u64> {
    bits_of_columns(backend, tensor, rows, 0..tensor.cols())
}

fn bits_of_columns<B: Backend>(
    backend: &B,
    tensor: &Tensor<B::Memory>,
    rows: usize,
    columns: Range<usize>,
) -> Vec<u64> {
    let size = tensor.dtype().size();
    let all = backend.read(tensor).chunks_exact(tensor.cols() * size).take(rows);
    all.map(|row| hash(&row[columns.start * size..columns.end * size])).collect()
}

pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
