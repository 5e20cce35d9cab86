//! Loads a checkpoint's tensors: q, k and v as one matrix, gate and up as one where they can be, tied embeddings once. Where they go is the
//! store's business: into a backend, or nowhere, to check that all are there.

mod experts;
mod joint_experts;
mod linear;
mod store;

use crate::load::checkpoint::Checkpoint;
use crate::load::config::{Head, LayerConfig, MlpConfig, ModelConfig, MoeConfig};
use crate::load::error::LoadError;
use crate::load::families::{LLAMA_NAMES, Names};
use crate::load::matrix::Matrix;
use crate::load::packed::Wanted;
use crate::load::quantize::Quantization;
pub(crate) use experts::STACKED;
pub(crate) use store::WeightStore;
use vllm_apple_ops::{Activations, WeightFormat};

/// All weights of a model.
pub(crate) struct Weights<S: WeightStore> {
    pub(crate) embedding: S::Matrix,
    pub(crate) layers: Vec<LayerWeights<S>>,
    pub(crate) final_norm: S::Vector,
    /// `None`: the embedding is the output head, or there is none.
    lm_head: Option<S::Matrix>,
}

/// Weights of a layer.
pub(crate) struct LayerWeights<S: WeightStore> {
    pub(crate) attention_norm: S::Vector,
    /// Queries, keys and values; queries alone in layers that share another layer's KV cache.
    pub(crate) qkv: Projections<S>,
    pub(crate) qk_norm: Option<QkNormWeights<S>>,
    /// A score of each query head, without a value.
    pub(crate) sinks: Option<S::Vector>,
    pub(crate) o: Projections<S>,
    /// Of what attention adds to the residual stream; `None` where that is not normalised.
    pub(crate) attention_out_norm: Option<S::Vector>,
    pub(crate) mlp_norm: S::Vector,
    pub(crate) mlp: MlpWeights<S>,
    /// The same of the MLP.
    pub(crate) mlp_out_norm: Option<S::Vector>,
}

/// Norms of query and key heads.
pub(crate) struct QkNormWeights<S: WeightStore> {
    pub(crate) q: S::Vector,
    /// `None` in layers that share another layer's KV cache.
    pub(crate) k: Option<S::Vector>,
}

/// A matrix and its bias.
pub(crate) struct Linear<S: WeightStore> {
    pub(crate) weight: S::Matrix,
    pub(crate) bias: Option<S::Vector>,
    /// In which it takes the columns of its input, if not in their own; of experts, each of them.
    pub(crate) order: Option<S::Vector>,
}

/// What reads the same, one after the other: one matrix, or several where some are quantised and others are not, or in ways that no matrix has
/// both.
pub(crate) type Projections<S> = Vec<Linear<S>>;

/// The feed-forward part of a layer.
pub(crate) enum MlpWeights<S: WeightStore> {
    Dense(DenseWeights<S>),
    Moe(MoeWeights<S>),
}

/// A gated MLP.
pub(crate) struct DenseWeights<S: WeightStore> {
    pub(crate) gate_up: Projections<S>,
    pub(crate) down: Linear<S>,
}

/// A mixture of experts.
pub(crate) struct MoeWeights<S: WeightStore> {
    pub(crate) router: Linear<S>,
    /// Of all experts, as their biases are.
    pub(crate) gate_up: Projections<S>,
    pub(crate) down: Linear<S>,
    pub(crate) renormalize: bool,
    pub(crate) shared: Option<SharedExpert<S>>,
}

/// The expert that every token uses, and its gate.
pub(crate) struct SharedExpert<S: WeightStore> {
    pub(crate) mlp: DenseWeights<S>,
    pub(crate) gate: Linear<S>,
}

impl<S: WeightStore> Weights<S> {
    /// Loads everything, releasing the pages of each layer's tensors when they are packed, unless the store keeps them.
    /// `on_progress` is told how many of all tables and layers are done.
    pub(crate) fn load(
        store: &S,
        checkpoint: &Checkpoint,
        format: WeightFormat,
        activations: Activations,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, LoadError> {
        let config = checkpoint.config();
        let names = &checkpoint.family.names;
        let in_place = Quantization::making(format).is_none() && !checkpoint.has_codes();
        let loader = Loader { store, checkpoint, config, names, format, activations, in_place };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let table = |name: &str| -> Result<S::Matrix, LoadError> {
            let matrix = checkpoint.matrix(Wanted { name, expert: None, rows: vocab, cols: hidden })?;
            let weight = loader.weight(name, 1, vec![loader.unordered(matrix)?])?;
            loader.release(&format!("{name}."));
            Ok(weight)
        };
        let has_head_of_its_own = config.head == Head::Logits && !config.tie_word_embeddings;
        let tables = if has_head_of_its_own { 2 } else { 1 };
        let total = tables + config.layers.len();
        on_progress(0, total);
        let embedding = table(names.embedding)?;
        on_progress(1, total);
        let lm_head = if has_head_of_its_own { Some(table(names.lm_head)?) } else { None };
        on_progress(tables, total);
        let mut layers = Vec::with_capacity(config.layers.len());
        for (i, layer) in config.layers.iter().enumerate() {
            if S::READS {
                checkpoint.prefetch(&format!("{}.{}.", names.layers, i + 1));
            }
            let prefix = format!("{}.{i}.", names.layers);
            layers.push(loader.layer(&prefix, layer)?);
            loader.release(&prefix);
            on_progress(tables + i + 1, total);
        }
        // The output head is linear: a factor of its input is one of the logits.
        let final_norm = loader.norm(names.final_norm, hidden, config.logits_scale)?;
        Ok(Self { embedding, layers, final_norm, lm_head })
    }

    /// The output head.
    pub(crate) fn lm_head(&self) -> &S::Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embedding)
    }
}

struct Loader<'a, S> {
    store: &'a S,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    names: &'a Names,
    format: WeightFormat,
    activations: Activations,
    /// Whether floats may be used where their file is mapped. Where most of it is laid out anew, the file would stay in memory for a few of them.
    in_place: bool,
}

impl<S: WeightStore> Loader<'_, S> {
    fn layer(&self, prefix: &str, layer: &LayerConfig) -> Result<LayerWeights<S>, LoadError> {
        let (c, names) = (self.config, self.names);
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let norm = |suffix: &str| self.norm(&name(suffix), c.hidden_size, 1.0);
        let head_norm = |suffix: &str| self.norm(&name(suffix), c.head_dim, 1.0);
        let out_norm = |suffix: &str| c.out_norms.then(|| norm(suffix)).transpose();
        // Layers that share a cache have no keys and values.
        let projections = if layer.kv_sharing_target.is_some() { 1 } else { 3 };
        let qkv = names.qkv.map(name);
        let own = qkv[projections..].iter().find_map(|name| self.checkpoint.first_of(&format!("{name}.")));
        if let Some(own) = own {
            return Err(self.refuse_sharing(own));
        }
        let [q_norm, k_norm] = names.qk_norms;
        let qk_norm = match c.qk_norm {
            true => Some(QkNormWeights {
                q: head_norm(q_norm)?,
                k: match layer.kv_sharing_target {
                    None => Some(head_norm(k_norm)?),
                    Some(_) => {
                        self.checkpoint.allow(&name(&format!("{k_norm}.weight")));
                        None
                    }
                },
            }),
            false => None,
        };
        Ok(LayerWeights {
            attention_norm: norm(names.attention_norm)?,
            qkv: self.projections(&qkv[..projections], &[q, kv, kv][..projections], c.hidden_size, c.qkv_bias)?,
            qk_norm,
            sinks: c.sinks.then(|| self.sinks(&name(names.sinks))).transpose()?,
            o: self.projections(&[name(names.o)], &[c.hidden_size], q, c.o_bias)?,
            attention_out_norm: out_norm(names.attention_out_norm)?,
            mlp_norm: norm(names.mlp_norm)?,
            mlp: match &layer.mlp {
                &MlpConfig::Dense { intermediate_size, bias } => {
                    MlpWeights::Dense(self.dense(&name(names.mlp), intermediate_size, bias)?)
                }
                MlpConfig::Moe(moe) => MlpWeights::Moe(self.moe(prefix, moe)?),
            },
            mlp_out_norm: out_norm(names.mlp_out_norm)?,
        })
    }

    /// A layer that is to share a cache has weights for one of its own. Transformers does not know the field in these families, so the model
    /// was saved without sharing.
    fn refuse_sharing(&self, own: &str) -> LoadError {
        let shared = self.config.layers.iter().filter(|layer| layer.kv_sharing_target.is_some()).count();
        LoadError::Field {
            path: self.checkpoint.directory().join("config.json"),
            field: "num_kv_shared_layers".to_owned(),
            expected: format!("0, as the last layers have keys and values of their own ({own})"),
            got: shared.to_string(),
        }
    }

    fn dense(&self, prefix: &str, width: usize, bias: bool) -> Result<DenseWeights<S>, LoadError> {
        let hidden = self.config.hidden_size;
        let [gate, up, down] = self.names.mlp_projections.map(|projection| format!("{prefix}.{projection}"));
        let (gate_up, down) = ([gate, up], [down]);
        let mut of_gate_up = self.parts(&gate_up, &[width, width], hidden)?;
        let of_down = self.parts(&down, &[hidden], width)?;
        // What it reads is what the others write, which may be in any order: no step has to bring it into that.
        let outputs = of_down.iter().find_map(Matrix::order).cloned();
        of_gate_up = of_gate_up.into_iter().map(|part| part.with_rows(outputs.as_ref())).collect();
        Ok(DenseWeights {
            gate_up: self.joined(&gate_up, &[width, width], of_gate_up, bias, outputs.as_ref())?,
            down: Linear {
                weight: self.weight(&down.concat(), 1, of_down)?,
                bias: self.bias(bias, &down, &[hidden], None)?,
                order: None,
            },
        })
    }

    fn moe(&self, prefix: &str, moe: &MoeConfig) -> Result<MoeWeights<S>, LoadError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let found = self.names_of_experts(prefix);
        let experts = format!("{prefix}{}", found.list);
        // In every family under these names.
        let fused = format!("{prefix}{}", LLAMA_NAMES.experts);
        let are_fused = names.joint_projections.is_none() && self.are_fused(&fused);
        let (gate_up, down) = match names.joint_projections {
            _ if are_fused => self.fused_experts(&fused, moe)?,
            // Other programs write them apart.
            Some(joint) if self.stacked(&experts, names.expert_projections[0]).is_none() => {
                self.joint_experts(&experts, joint, moe)?
            }
            _ => self.experts(&experts, found.projections, moe)?,
        };
        let shared = match moe.shared_intermediate_size {
            None => None,
            Some(width) => {
                let name = format!("{prefix}{}", names.shared_expert);
                Some(SharedExpert {
                    mlp: self.dense(&name, width, false)?,
                    gate: self.float(&format!("{prefix}{}", names.shared_expert_gate), 1, hidden, false)?,
                })
            }
        };
        let router = format!("{prefix}{}", if are_fused { LLAMA_NAMES.router } else { found.router });
        let router = self.float(&router, moe.num_experts, hidden, moe.bias)?;
        Ok(MoeWeights { router, gate_up, down, renormalize: moe.renormalize, shared })
    }

    /// See [`Checkpoint::release`].
    fn release(&self, prefix: &str) {
        if !self.store.keeps_host_tensors() {
            self.checkpoint.release(prefix);
        }
    }

    /// A score of each query head.
    fn sinks(&self, name: &str) -> Result<S::Vector, LoadError> {
        self.store.vectors(&[self.checkpoint.vector(name, self.config.num_attention_heads)?], 1)
    }

    /// A norm's weight, in f32.
    fn norm(&self, name: &str, len: usize, factor: f32) -> Result<S::Vector, LoadError> {
        let weight = self.checkpoint.vector(&format!("{name}.weight"), len)?;
        self.store.norm(weight, self.config.norm_offset, factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use vllm_apple_cpu::CpuBackend;
    use vllm_apple_ops::{Backend, DType, Tensor};

    fn floats(backend: &CpuBackend, tensor: &Tensor<<CpuBackend as Backend>::Memory>) -> Vec<f32> {
        DType::F32.decode(backend.read(tensor))
    }

    #[test]
    fn offset_and_factor_of_norms_are_the_models() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/gemma3");
        let mut checkpoint = Checkpoint::open(&directory).unwrap();
        checkpoint.config.logits_scale = 0.3;
        let backend = CpuBackend::new(Some(1));
        let weights =
            Weights::load(&backend, &checkpoint, WeightFormat::Float(DType::F32), Activations::Exact, &mut |_, _| {})
                .unwrap();
        let stored = |name: &str, len| {
            let tensor = checkpoint.vector(&format!("{name}.weight"), len).unwrap();
            tensor.dtype.decode(tensor.bytes)
        };
        let plus_one = |name: &str, len| stored(name, len).iter().map(|w| 1.0 + w).collect::<Vec<_>>();
        let (layer, hidden) = (&weights.layers[6], checkpoint.config().hidden_size);
        for (suffix, got) in [
            ("input_layernorm", &layer.attention_norm),
            ("post_attention_layernorm", layer.attention_out_norm.as_ref().unwrap()),
            ("pre_feedforward_layernorm", &layer.mlp_norm),
            ("post_feedforward_layernorm", layer.mlp_out_norm.as_ref().unwrap()),
        ] {
            assert_eq!(floats(&backend, got), plus_one(&format!("model.layers.6.{suffix}"), hidden), "{suffix}");
        }
        let heads = layer.qk_norm.as_ref().unwrap();
        assert_eq!(floats(&backend, &heads.q), plus_one("model.layers.6.self_attn.q_norm", 256));
        assert_eq!(floats(&backend, heads.k.as_ref().unwrap()), plus_one("model.layers.6.self_attn.k_norm", 256));
        let logits: Vec<f32> = plus_one("model.norm", hidden).iter().map(|w| w * 0.3).collect();
        assert_eq!(floats(&backend, &weights.final_norm), logits);
    }
}
