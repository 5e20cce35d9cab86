//! Experts whose projections are matrices of their own, each a tensor or a part of one of all experts, or gates and ups together. It knows no
//! router.

use super::{Linear, Loader, WeightStore};
use crate::load::config::MoeConfig;
use crate::load::error::LoadError;
use crate::load::families::Projection;
use crate::load::matrix::Matrix;
use crate::load::packed::{Expert, Wanted};

/// What is in the place of `experts` where all of them are one tensor: MLX's name.
pub(crate) const STACKED: &str = "switch_mlp";
const STACKED_ENDS: [&str; 2] = ["weight", "scales"];
/// What transformers computes with and may save: each expert's gates and, below them, its ups; and its projections down.
const FUSED: [&str; 2] = ["gate_up_proj", "down_proj"];

impl<S: WeightStore> Loader<'_, S> {
    /// The projections of all experts: gates and ups, and down.
    pub(super) fn experts(&self, experts: &str, moe: &MoeConfig) -> Result<[Linear<S>; 2], LoadError> {
        let (hidden, width) = (self.config.hidden_size, moe.intermediate_size);
        let [gate, up, down] = self.names.expert_projections;
        let (mut gate_ups, mut downs) = (Vec::new(), Vec::new());
        let expert = |number| Expert { number, of: moe.num_experts };
        for e in 0..moe.num_experts {
            gate_ups.push(self.expert(experts, expert(e), gate, width, hidden)?);
            gate_ups.push(self.expert(experts, expert(e), up, width, hidden)?);
            downs.push(self.expert(experts, expert(e), down, hidden, width)?);
        }
        let all = |projection: Projection, parts| {
            self.weight(&format!("{experts}.*.{}", projection.own), moe.num_experts, parts)
        };
        let of_gate_up = self.expert_biases(experts, &[(gate, width), (up, width)], moe)?;
        let of_down = self.expert_biases(experts, &[(down, hidden)], moe)?;
        Ok([
            Linear { weight: all(gate, gate_ups)?, bias: of_gate_up, order: None },
            Linear { weight: all(down, downs)?, bias: of_down, order: None },
        ])
    }

    /// Whether all experts are two tensors, in the order of what they are computed with.
    pub(super) fn are_fused(&self, experts: &str) -> bool {
        self.checkpoint.has(&format!("{experts}.{}", FUSED[0]))
    }

    /// The projections of all experts that are.
    pub(super) fn fused_experts(&self, experts: &str, moe: &MoeConfig) -> Result<[Linear<S>; 2], LoadError> {
        let (hidden, width) = (self.config.hidden_size, moe.intermediate_size);
        let all = |projection: &str, shape: [usize; 2]| -> Result<Linear<S>, LoadError> {
            let name = format!("{experts}.{projection}");
            let expert = |number| Expert { number, of: moe.num_experts };
            let part = |number| self.checkpoint.tensor(&name, Some(expert(number)), &shape).map(Matrix::Float);
            let parts = (0..moe.num_experts).map(part).collect::<Result<Vec<_>, LoadError>>()?;
            Ok(Linear { weight: self.weight(&name, moe.num_experts, parts)?, bias: None, order: None })
        };
        let [gate_up, down] = FUSED;
        Ok([all(gate_up, [2 * width, hidden])?, all(down, [hidden, width])?])
    }

    /// A matrix of an expert: a tensor of its own, or a part of one of all experts.
    fn expert(
        &self,
        experts: &str,
        e: Expert,
        projection: Projection,
        rows: usize,
        cols: usize,
    ) -> Result<Matrix<'_>, LoadError> {
        let matrix = match self.stacked(experts, projection) {
            Some(stacked) => self.checkpoint.matrix(Wanted { name: &stacked, expert: Some(e), rows, cols }),
            None => {
                let name = format!("{experts}.{}.{}", e.number, projection.own);
                self.checkpoint.matrix(Wanted { name: &name, expert: None, rows, cols })
            }
        };
        self.unordered(matrix?)
    }

    /// The biases of projections of these lengths, one after the other for each expert, if there are any.
    fn expert_biases(
        &self,
        experts: &str,
        projections: &[(Projection, usize)],
        moe: &MoeConfig,
    ) -> Result<Option<S::Vector>, LoadError> {
        if !moe.bias {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for number in 0..moe.num_experts {
            for &(projection, len) in projections {
                parts.push(match self.stacked(experts, projection) {
                    Some(stacked) => {
                        let expert = Some(Expert { number, of: moe.num_experts });
                        self.checkpoint.tensor(&format!("{stacked}.bias"), expert, &[len])?
                    }
                    None => self.checkpoint.vector(&format!("{experts}.{number}.{}.bias", projection.own), len)?,
                });
            }
        }
        self.store.vectors(&parts, moe.num_experts).map(Some)
    }

    /// The name of a projection of all experts, where they are one tensor: MLX has it beside the list of experts, or in its place.
    pub(super) fn stacked(&self, experts: &str, projection: Projection) -> Option<String> {
        let beside = format!("{}{STACKED}", experts.trim_end_matches("experts"));
        let found = [beside.as_str(), experts].map(|list| format!("{list}.{}", projection.stacked));
        let is_there = |name: &String| STACKED_ENDS.iter().any(|end| self.checkpoint.has(&format!("{name}.{end}")));
        found.into_iter().find(is_there)
    }
}
