//! Weight matrices and their biases: projections of one input as one matrix where they can be, of floats or of codes, and what becomes of them
//! where their columns are in another order (act-order). It knows no parts of a model.

use super::{Linear, Loader, Projections, WeightStore};
use crate::load::error::LoadError;
use crate::load::matrix::{self, Codes, Matrix, Order};
use crate::load::packed::Wanted;
use crate::load::quantize::{Quantization, Quantizer};
use vllm_apple_ops::{Activations, Error, HostTensor, QuantisedTensor, WeightFormat, WeightSource};

impl<S: WeightStore> Loader<'_, S> {
    /// The projections `names` of one input, which have `rows` outputs each.
    pub(super) fn projections(
        &self,
        names: &[String],
        rows: &[usize],
        cols: usize,
        bias: bool,
    ) -> Result<Projections<S>, LoadError> {
        self.joined(names, rows, self.parts(names, rows, cols)?, bias, None)
    }

    /// The matrices of projections.
    pub(super) fn parts(&self, names: &[String], rows: &[usize], cols: usize) -> Result<Vec<Matrix<'_>>, LoadError> {
        let part = |(name, &rows): (&String, _)| self.checkpoint.matrix(Wanted { name, expert: None, rows, cols });
        names.iter().zip(rows).map(part).collect()
    }

    /// As few matrices of those of projections as can be, with the biases of these in the order of their outputs.
    pub(super) fn joined(
        &self,
        names: &[String],
        rows: &[usize],
        mut parts: Vec<Matrix<'_>>,
        bias: bool,
        outputs: Option<&Order>,
    ) -> Result<Projections<S>, LoadError> {
        let mut first = 0;
        let mut linears = Vec::new();
        while !parts.is_empty() {
            let rest = parts.split_off(matrix::fit_together(&parts));
            let range = first..first + parts.len();
            first = range.end;
            let (names, rows) = (&names[range.clone()], &rows[range]);
            linears.push(self.linear(names, parts, self.bias(bias, names, rows, outputs)?)?);
            parts = rest;
        }
        Ok(linears)
    }

    /// One matrix of those of projections, whose columns are in one order.
    fn linear(
        &self,
        names: &[String],
        parts: Vec<Matrix<'_>>,
        bias: Option<S::Vector>,
    ) -> Result<Linear<S>, LoadError> {
        let order =
            parts.iter().find_map(Matrix::order).map(|order| self.store.order(&order.columns, None)).transpose()?;
        Ok(Linear { weight: self.weight(&names.join("+"), 1, parts)?, bias, order })
    }

    /// The biases of projections, if there are any, one after the other in f32, each in the order of the outputs.
    pub(super) fn bias(
        &self,
        is_there: bool,
        names: &[String],
        lens: &[usize],
        order: Option<&Order>,
    ) -> Result<Option<S::Vector>, LoadError> {
        if !is_there {
            return Ok(None);
        }
        let bias = |(name, &len): (&String, &usize)| {
            let name = format!("{name}.bias");
            match order {
                None => self.checkpoint.elements(&name, len),
                order => Ok(matrix::elements_of(self.checkpoint.vector(&name, len)?, order)),
            }
        };
        let biases = names.iter().zip(lens).map(bias).collect::<Result<Vec<_>, LoadError>>()?;
        self.store.vectors(&biases.concat(), 1).map(Some)
    }

    /// Matrices of floats in the model's format, or of codes in their own.
    pub(super) fn weight(&self, name: &str, groups: usize, parts: Vec<Matrix<'_>>) -> Result<S::Matrix, LoadError> {
        let name = &self.checkpoint.in_file(name);
        let (mut floats, codes) = split(parts);
        self.leave_file(&mut floats);
        let Some(quantization) = Quantization::making(self.format) else {
            return match codes.is_empty() {
                true => self.store.matrix(WeightSource::matrices(name, groups, &floats), self.format),
                false => self.codes(name, groups, codes, self.activations),
            };
        };
        assert!(codes.is_empty(), "the checkpoint was asked first");
        let quantizers: Vec<_> = floats.iter().map(|&tensor| Quantizer { tensor, quantization }).collect();
        let parts: Vec<_> = quantizers
            .iter()
            .map(|from| QuantisedTensor { rows: from.tensor.rows, cols: from.tensor.cols, groups: from })
            .collect();
        self.store.matrix(WeightSource::quantised(name, groups, &parts), self.format.with(self.activations))
    }

    /// Has tensors copied, unless they may be used in place.
    fn leave_file(&self, tensors: &mut [HostTensor<'_>]) {
        if !self.in_place {
            tensors.iter_mut().for_each(|tensor| tensor.file = None);
        }
    }

    fn codes(
        &self,
        name: &str,
        groups: usize,
        parts: Vec<Codes<'_>>,
        activations: Activations,
    ) -> Result<S::Matrix, LoadError> {
        let (spelling, parts) = matrix::alike(parts)?;
        let tensors: Vec<_> = parts
            .iter()
            .map(|part| QuantisedTensor { rows: part.rows, cols: part.cols, groups: &*part.groups })
            .collect();
        let format = WeightFormat::Quantised(spelling.format(self.format.input()));
        let weight = self.store.matrix(WeightSource::quantised(name, groups, &tensors), format.with(activations));
        weight.map_err(|error| match error {
            LoadError::Backend(Error::ScaleOutOfRange { value, dtype, .. }) => {
                let unsound = parts.iter().find(|part| !part.is_sound());
                let (path, tensor) = self.checkpoint.unsound(unsound.map_or(name, |part| &part.name));
                LoadError::Scale { path, tensor, value, dtype }
            }
            error => error,
        })
    }

    /// A small matrix that is not quantised at load: what chooses experts.
    pub(super) fn float(&self, name: &str, rows: usize, cols: usize, bias: bool) -> Result<Linear<S>, LoadError> {
        let weight = match self.unordered(self.checkpoint.matrix(Wanted { name, expert: None, rows, cols })?)? {
            Matrix::Codes(codes) => self.codes(name, 1, vec![codes], Activations::Exact)?,
            floats => {
                let (mut floats, _) = split(vec![floats]);
                self.leave_file(&mut floats);
                self.store.matrix(WeightSource::matrix(name, &floats), WeightFormat::Float(self.format.input()))?
            }
        };
        let bias = self.bias(bias, &[name.to_owned()], &[rows], None)?;
        Ok(Linear { weight, bias, order: None })
    }

    /// The matrix, if its columns are in the order of its inputs.
    pub(super) fn unordered<'a>(&self, matrix: Matrix<'a>) -> Result<Matrix<'a>, LoadError> {
        let Some(order) = matrix.order() else { return Ok(matrix) };
        Err(LoadError::Packing {
            path: self.checkpoint.weights_path(),
            tensor: order.tensor.clone(),
            got: "an order of columns of its own".to_owned(),
            expected: "groups of columns one after the other in embeddings, output heads and routers: quantise with desc_act false, or \
                       actorder \"static\" or null"
                .to_owned(),
        })
    }
}

/// Matrices of floats and of codes, of which a weight has only one kind.
fn split(parts: Vec<Matrix<'_>>) -> (Vec<HostTensor<'_>>, Vec<Codes<'_>>) {
    let (mut floats, mut codes) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Matrix::Float(part) => floats.push(part),
            Matrix::Rows(rows) => floats.extend(rows),
            Matrix::Codes(part) => codes.push(part),
        }
    }
    assert!(floats.is_empty() || codes.is_empty(), "whoever makes one weight of matrices asks whether they are alike");
    (floats, codes)
}
