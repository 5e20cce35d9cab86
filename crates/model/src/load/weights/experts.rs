//! Experts whose projections are matrices of their own, each a tensor or a part of one of all experts. It knows no router.

use super::{Linear, Loader, WeightStore};
use crate::load::config::MoeConfig;
use crate::load::error::LoadError;
use crate::load::families::Projection;
use crate::load::matrix::Matrix;
use crate::load::packed::{Expert, Wanted};

/// What is in the place of `experts` where all of them are one tensor: MLX's name.
pub(crate) const STACKED: &str = "switch_mlp";
const STACKED_ENDS: [&str; 2] = ["weight", "scales"];

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
