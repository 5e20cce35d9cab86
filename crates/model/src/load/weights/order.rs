//! Matrices whose columns are not in the order of their inputs (act-order): those of one input must agree, and what nobody brings into
//! another order must not need it. It knows no names of weights.

use super::{Loader, WeightStore};
use crate::load::error::LoadError;
use crate::load::matrix::{Matrix, Order};

impl<S: WeightStore> Loader<'_, S> {
    /// The order in which matrices of one input take its columns; `None` if in its own, or if some are of floats, which is refused where they
    /// are joined.
    pub(super) fn order(&self, parts: &[Matrix<'_>]) -> Result<Option<Order>, LoadError> {
        if parts.iter().any(|part| !matches!(part, Matrix::Codes(_))) {
            return Ok(None);
        }
        let Some(order) = parts.iter().find_map(Matrix::order) else { return Ok(None) };
        let same = |part: &Matrix<'_>| part.order().is_some_and(|other| other.columns == order.columns);
        if parts.iter().all(same) {
            return Ok(Some(order.clone()));
        }
        Err(LoadError::Packing {
            path: self.checkpoint.weights_path(),
            tensor: order.tensor.clone(),
            got: "another order of columns than that of a matrix with the same input".to_owned(),
            expected: "one order for queries, keys and values, and one for gate and up: quantise them together, or without act-order"
                .to_owned(),
        })
    }

    /// The matrix, if its columns are in the order of its inputs.
    pub(super) fn unordered<'a>(&self, matrix: Matrix<'a>) -> Result<Matrix<'a>, LoadError> {
        match matrix.order() {
            None => Ok(matrix),
            Some(order) => Err(self.refuse_order(order.tensor.clone())),
        }
    }

    /// An error for a tensor that says an order where there must be none.
    pub(super) fn refuse_order(&self, tensor: String) -> LoadError {
        LoadError::Packing {
            path: self.checkpoint.weights_path(),
            tensor,
            got: "an order of columns of its own".to_owned(),
            expected: "groups of columns one after the other in embeddings, output heads and mixtures of experts: quantise with desc_act \
                       false, or actorder \"static\" or null"
                .to_owned(),
        }
    }
}
