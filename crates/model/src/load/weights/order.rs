//! Matrices whose columns are not in the order of their inputs (act-order) where nobody brings these into another. It knows no names of weights.

use super::{Loader, WeightStore};
use crate::load::error::LoadError;
use crate::load::matrix::Matrix;

impl<S: WeightStore> Loader<'_, S> {
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
