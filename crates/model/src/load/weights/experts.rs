//! Experts whose projections are matrices of their own, each a tensor or a part of one of all experts, or gates and ups together. It knows no
//! router.

use super::{Linear, Loader, Projections, WeightStore};
use crate::load::config::MoeConfig;
use crate::load::error::LoadError;
use crate::load::families::{LLAMA_NAMES, Names, Projection};
use crate::load::matrix::{self, Matrix, Order};
use crate::load::packed::{Expert, Method, Wanted};

/// What is in the place of `experts` where all of them are one tensor: MLX's name.
pub(crate) const STACKED: &str = "switch_mlp";
const STACKED_ENDS: [&str; 2] = ["weight", "scales"];
/// What transformers computes with and may save: each expert's gates and, below them, its ups; and its projections down.
const FUSED: [&str; 2] = ["gate_up_proj", "down_proj"];

/// Names within a layer.
#[derive(Clone, Copy)]
pub(super) struct ExpertNames {
    pub(super) router: &'static str,
    pub(super) list: &'static str,
    pub(super) projections: [Projection; 3],
}

impl<S: WeightStore> Loader<'_, S> {
    /// What a layer's experts are called: by the family, or in part or altogether as transformers 5 does in memory, whose names tools save.
    pub(super) fn names_of_experts(&self, prefix: &str) -> ExpertNames {
        let (own, llama) = (self.names, &LLAMA_NAMES);
        let names = |list: &Names, projections: &Names| ExpertNames {
            router: list.router,
            list: list.experts,
            projections: projections.expert_projections,
        };
        if own.experts == llama.experts {
            return names(own, own);
        }
        let all = [(own, own), (own, llama), (llama, llama)].map(|(list, projections)| names(list, projections));
        let is_there = |names: &&ExpertNames| {
            let (list, [gate, ..]) = (format!("{prefix}{}", names.list), names.projections);
            self.checkpoint.first_of(&format!("{list}.0.{}.", gate.own)).is_some()
        };
        *all.iter().find(is_there).unwrap_or(&all[0])
    }

    /// The projections of all experts: gates and ups, which are one matrix of each expert where they can be, and down.
    pub(super) fn experts(
        &self,
        experts: &str,
        [gate, up, down]: [Projection; 3],
        moe: &MoeConfig,
    ) -> Result<(Projections<S>, Linear<S>), LoadError> {
        let (hidden, width) = (self.config.hidden_size, moe.intermediate_size);
        let all = |projection, rows, cols| {
            let expert = |number| Expert { number, of: moe.num_experts };
            let matrix = |number| self.expert(experts, expert(number), projection, rows, cols);
            let all = (0..moe.num_experts).map(matrix).collect::<Result<Vec<_>, LoadError>>()?;
            check_kinds(experts, projection, &all)?;
            Ok::<_, LoadError>(all)
        };
        let downs = all(down, hidden, width)?;
        // Of each expert: in which its down takes what its gate and up write.
        let outputs: Vec<_> = downs.iter().map(|down| down.order().cloned()).collect();
        let written = |projection| {
            let parts = all(projection, width, hidden)?.into_iter().zip(&outputs);
            Ok::<_, LoadError>(parts.map(|(part, order)| part.with_rows(order.as_ref())).collect::<Vec<_>>())
        };
        let mut gates = written(gate)?;
        gates.extend(written(up)?);
        let are_alike = matrix::are_alike(&gates);
        let ups = gates.split_off(moe.num_experts);
        let are_one = are_alike && gates.iter().zip(&ups).all(|(gate, up)| gate.takes_inputs_as(up));
        let linear = |projections: &[Projection], parts: Vec<Matrix<'_>>| -> Result<Linear<S>, LoadError> {
            let order = self.expert_orders(parts.iter().step_by(projections.len()))?;
            let bias = self.expert_biases(experts, projections, width, moe, &outputs)?;
            let name = self.name_of_all(experts, projections[0]);
            Ok(Linear { weight: self.weight(&name, moe.num_experts, parts)?, bias, order })
        };
        let gate_up = if are_one {
            let of_each = gates.into_iter().zip(ups).flat_map(|(gate, up)| [gate, up]).collect();
            vec![linear(&[gate, up], of_each)?]
        } else {
            vec![linear(&[gate], gates)?, linear(&[up], ups)?]
        };
        let weight = self.weight(&self.name_of_all(experts, down), moe.num_experts, downs)?;
        let bias = self.expert_biases(experts, &[down], hidden, moe, &[])?;
        Ok((gate_up, Linear { weight, bias, order: None }))
    }

    /// Whether all experts are two tensors, in the order of what they are computed with.
    pub(super) fn are_fused(&self, experts: &str) -> bool {
        self.checkpoint.has(&format!("{experts}.{}", FUSED[0]))
    }

    /// The projections of all experts that are.
    pub(super) fn fused_experts(
        &self,
        experts: &str,
        moe: &MoeConfig,
    ) -> Result<(Projections<S>, Linear<S>), LoadError> {
        let (hidden, width) = (self.config.hidden_size, moe.intermediate_size);
        let all = |projection: &str, shape: [usize; 2]| -> Result<Linear<S>, LoadError> {
            let name = format!("{experts}.{projection}");
            let expert = |number| Expert { number, of: moe.num_experts };
            let part = |number| self.checkpoint.tensor(&name, Some(expert(number)), &shape).map(Matrix::Float);
            let parts = (0..moe.num_experts).map(part).collect::<Result<Vec<_>, LoadError>>()?;
            Ok(Linear { weight: self.weight(&name, moe.num_experts, parts)?, bias: None, order: None })
        };
        let [gate_up, down] = FUSED;
        Ok((vec![all(gate_up, [2 * width, hidden])?], all(down, [hidden, width])?))
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
        match self.stacked(experts, projection) {
            Some(stacked) => self.checkpoint.matrix(Wanted { name: &stacked, expert: Some(e), rows, cols }),
            None => {
                let name = format!("{experts}.{}.{}", e.number, projection.own);
                self.checkpoint.matrix(Wanted { name: &name, expert: None, rows, cols })
            }
        }
    }

    /// The orders in which all experts take their inputs, if one has any.
    fn expert_orders<'m>(
        &self,
        matrices: impl Iterator<Item = &'m Matrix<'m>> + Clone,
    ) -> Result<Option<S::Vector>, LoadError> {
        if matrices.clone().all(|matrix| matrix.order().is_none()) {
            return Ok(None);
        }
        let own: Vec<u32> = (0..self.config.hidden_size as u32).collect();
        let columns = |matrix: &Matrix<'_>| matrix.order().map_or(own.clone(), |order| order.columns.to_vec());
        let experts = matrices.clone().count();
        self.store.order(&matrices.flat_map(columns).collect::<Vec<_>>(), Some(experts)).map(Some)
    }

    /// The biases of projections of this length, one after the other for each expert, if there are any; in an expert's order, where it has one.
    fn expert_biases(
        &self,
        experts: &str,
        projections: &[Projection],
        len: usize,
        moe: &MoeConfig,
        orders: &[Option<Order>],
    ) -> Result<Option<S::Vector>, LoadError> {
        if !moe.bias {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for number in 0..moe.num_experts {
            for &projection in projections {
                let bias = match self.stacked(experts, projection) {
                    Some(stacked) => {
                        let expert = Some(Expert { number, of: moe.num_experts });
                        self.checkpoint.tensor(&format!("{stacked}.bias"), expert, &[len])?
                    }
                    None => self.checkpoint.vector(&format!("{experts}.{number}.{}.bias", projection.own), len)?,
                };
                parts.extend(matrix::elements_of(bias, orders.get(number).and_then(Option::as_ref)));
            }
        }
        self.store.vectors(&parts, moe.num_experts).map(Some)
    }

    /// What errors call a projection of all experts.
    fn name_of_all(&self, experts: &str, projection: Projection) -> String {
        self.stacked(experts, projection).unwrap_or_else(|| format!("{experts}.*.{}", projection.own))
    }

    /// The name of a projection of all experts, where they are one tensor: MLX has it beside the list of experts, or in its place. In GGUF they
    /// always are.
    pub(super) fn stacked(&self, experts: &str, projection: Projection) -> Option<String> {
        let beside = format!("{}{STACKED}", experts.trim_end_matches("experts"));
        let found = [beside.as_str(), experts].map(|list| format!("{list}.{}", projection.stacked));
        let is_there = |name: &String| STACKED_ENDS.iter().any(|end| self.checkpoint.has(&format!("{name}.{end}")));
        let of_gguf = (self.checkpoint.method == Some(Method::Gguf)).then(|| found[0].clone());
        found.into_iter().find(is_there).or(of_gguf)
    }
}

/// Checks that the matrices of all experts, which are one weight, are all of floats or all of codes.
fn check_kinds(experts: &str, projection: Projection, matrices: &[Matrix<'_>]) -> Result<(), LoadError> {
    let codes = matrices.iter().find_map(|matrix| match matrix {
        Matrix::Codes(codes) => Some(codes),
        Matrix::Float(_) | Matrix::Rows(_) => None,
    });
    let floats = matrices.iter().position(|matrix| !matches!(matrix, Matrix::Codes(_)));
    let (Some(codes), Some(floats)) = (codes, floats) else { return Ok(()) };
    Err(LoadError::Unlike {
        tensors: [codes.name.clone(), format!("{experts}.{floats}.{}", projection.own)],
        what: [codes.spelling.codebook.to_string(), "not quantised".to_owned()],
    })
}
