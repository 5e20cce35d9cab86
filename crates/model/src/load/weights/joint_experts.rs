//! Experts that are two tensors of all of them: gates and ups in turn, and projections down, as gpt-oss has them. Of floats, inputs come
//! before outputs: these are turned over while they are loaded.

use super::{Linear, Loader, Projections, WeightStore};
use crate::load::config::MoeConfig;
use crate::load::error::LoadError;
use crate::load::matrix::{self, Matrix, Order};
use crate::load::packed::{Expert, Wanted};
use vllm_apple_ops::HostTensor;

/// Inputs that are turned over together: those of a line of outputs stay in the first-level cache.
const TOGETHER: usize = 32;

impl<S: WeightStore> Loader<'_, S> {
    /// The projections of all experts: gates and ups, and down.
    pub(super) fn joint_experts(
        &self,
        experts: &str,
        projections: [&str; 2],
        moe: &MoeConfig,
    ) -> Result<(Projections<S>, Linear<S>), LoadError> {
        let (hidden, width) = (self.config.hidden_size, moe.intermediate_size);
        let [gate_up, down] = projections.map(|projection| format!("{experts}.{projection}"));
        let (gates, ups) = ((0..width).map(|row| 2 * row as u32), (0..width).map(|row| 2 * row as u32 + 1));
        let in_turn = Order { tensor: gate_up.clone(), columns: gates.chain(ups).collect() };
        Ok((
            vec![self.joint(&gate_up, moe, [2 * width, hidden], Some(&in_turn))?],
            self.joint(&down, moe, [hidden, width], None)?,
        ))
    }

    /// A projection of all experts, with its rows in this order.
    fn joint(
        &self,
        name: &str,
        moe: &MoeConfig,
        [rows, cols]: [usize; 2],
        order: Option<&Order>,
    ) -> Result<Linear<S>, LoadError> {
        let experts = || (0..moe.num_experts).map(|number| Some(Expert { number, of: moe.num_experts }));
        let weight = if self.checkpoint.has_blocks(name) {
            let part = |expert| Ok(self.checkpoint.matrix(Wanted { name, expert, rows, cols })?.with_rows(order));
            self.weight(name, moe.num_experts, experts().map(part).collect::<Result<_, LoadError>>()?)?
        } else {
            let stored = experts().map(|expert| self.checkpoint.tensor(name, expert, &[cols, rows]));
            let stored = stored.collect::<Result<Vec<_>, LoadError>>()?;
            // Where nobody reads them they are not turned over, either.
            let turn = |tensor: &HostTensor<'_>| S::READS.then(|| turned_over(tensor, order));
            let turned: Vec<Option<Vec<u8>>> = stored.iter().map(turn).collect();
            let parts = stored.iter().zip(&turned).map(|(tensor, turned)| {
                let bytes = turned.as_deref().unwrap_or(tensor.bytes);
                Matrix::Float(HostTensor { dtype: tensor.dtype, rows, cols, bytes, file: None })
            });
            self.weight(name, moe.num_experts, parts.collect())?
        };
        let bias = match moe.bias {
            true => Some(self.joint_bias(&format!("{name}_bias"), moe, rows, order)?),
            false => None,
        };
        Ok(Linear { weight, bias, order: None })
    }

    /// A bias of each expert, `[experts, len]`.
    fn joint_bias(
        &self,
        name: &str,
        moe: &MoeConfig,
        len: usize,
        order: Option<&Order>,
    ) -> Result<S::Vector, LoadError> {
        let mut parts = Vec::new();
        for number in 0..moe.num_experts {
            let bias = self.checkpoint.tensor(name, Some(Expert { number, of: moe.num_experts }), &[len])?;
            parts.extend(matrix::elements_of(bias, order));
        }
        self.store.vectors(&parts, moe.num_experts)
    }
}

/// The matrix whose rows are a tensor's columns, in this order.
fn turned_over(tensor: &HostTensor<'_>, order: Option<&Order>) -> Vec<u8> {
    let mut turned = vec![0; tensor.bytes.len()];
    match tensor.dtype.size() {
        2 => turn_over::<2>(tensor, order, &mut turned),
        _ => turn_over::<4>(tensor, order, &mut turned),
    }
    turned
}

/// Of elements of so many bytes.
fn turn_over<const SIZE: usize>(tensor: &HostTensor<'_>, order: Option<&Order>, to: &mut [u8]) {
    let (from, to) = (tensor.bytes.as_chunks::<SIZE>().0, to.as_chunks_mut::<SIZE>().0);
    let (inputs, outputs) = (tensor.rows, tensor.cols);
    for first in (0..inputs).step_by(TOGETHER) {
        let last = inputs.min(first + TOGETHER);
        for output in 0..outputs {
            let stored = matrix::stored(order, output);
            for input in first..last {
                to[output * inputs + input] = from[input * outputs + stored];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_ops::DType;

    #[test]
    fn columns_become_rows_in_another_order() {
        let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
        for dtype in DType::FLOATS {
            let bytes = dtype.encode(&values);
            // Two inputs, three outputs.
            let tensor = HostTensor { dtype, rows: 2, cols: 3, bytes: &bytes, file: None };
            let order = Order { tensor: "a".into(), columns: [2, 0, 1].into() };
            assert_eq!(dtype.decode(&turned_over(&tensor, None)), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
            assert_eq!(dtype.decode(&turned_over(&tensor, Some(&order))), [2.0, 5.0, 0.0, 3.0, 1.0, 4.0]);
        }
    }
}
