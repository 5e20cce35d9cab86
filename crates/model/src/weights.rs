//! Loads a checkpoint's tensors into a backend: q, k and v as one matrix, gate and up as one, tied embeddings once.

use crate::checkpoint::Checkpoint;
use crate::config::{LayerConfig, MlpConfig, ModelConfig, MoeConfig};
use crate::error::LoadError;
use vllm_apple_ops::{Backend, DType, HostTensor, Tensor, Weight};

/// All weights of a model.
pub(crate) struct Weights<B: Backend> {
    pub(crate) embedding: Weight<B::Packed>,
    pub(crate) layers: Vec<LayerWeights<B>>,
    pub(crate) final_norm: Tensor<B::Memory>,
    /// `None`: the embedding is the output head.
    lm_head: Option<Weight<B::Packed>>,
}

/// Weights of a layer.
pub(crate) struct LayerWeights<B: Backend> {
    pub(crate) input_norm: Tensor<B::Memory>,
    pub(crate) qkv: Linear<B>,
    pub(crate) qk_norm: Option<QkNormWeights<B>>,
    pub(crate) o: Linear<B>,
    pub(crate) post_norm: Tensor<B::Memory>,
    pub(crate) mlp: MlpWeights<B>,
}

/// Norms of query and key heads.
pub(crate) struct QkNormWeights<B: Backend> {
    pub(crate) q: Tensor<B::Memory>,
    pub(crate) k: Tensor<B::Memory>,
}

/// A matrix and its bias.
pub(crate) struct Linear<B: Backend> {
    pub(crate) weight: Weight<B::Packed>,
    pub(crate) bias: Option<Tensor<B::Memory>>,
}

/// The feed-forward part of a layer.
pub(crate) enum MlpWeights<B: Backend> {
    Dense(DenseWeights<B>),
    Moe(MoeWeights<B>),
}

/// A gated MLP.
pub(crate) struct DenseWeights<B: Backend> {
    pub(crate) gate_up: Linear<B>,
    pub(crate) down: Linear<B>,
}

/// A mixture of experts.
pub(crate) struct MoeWeights<B: Backend> {
    pub(crate) router: Linear<B>,
    pub(crate) gate_up: Weight<B::Packed>,
    pub(crate) down: Weight<B::Packed>,
    pub(crate) renormalize: bool,
    pub(crate) shared: Option<SharedExpert<B>>,
}

/// The expert that every token uses, and its gate.
pub(crate) struct SharedExpert<B: Backend> {
    pub(crate) mlp: DenseWeights<B>,
    pub(crate) gate: Linear<B>,
}

impl<B: Backend> Weights<B> {
    /// Loads everything, releasing the pages of each layer's tensors when they are packed.
    pub(crate) fn load(backend: &B, checkpoint: &Checkpoint, dtype: DType) -> Result<Self, LoadError> {
        let config = checkpoint.config();
        let loader = Loader { backend, checkpoint, config, dtype };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let table = |name: &str| -> Result<Weight<B::Packed>, LoadError> {
            let weight = loader.weight(name, 1, &[checkpoint.matrix(name, vocab, hidden)?])?;
            checkpoint.release(name);
            Ok(weight)
        };
        let embedding = table("model.embed_tokens.weight")?;
        let lm_head = if config.tie_word_embeddings { None } else { Some(table("lm_head.weight")?) };
        let mut layers = Vec::with_capacity(config.layers.len());
        for (i, layer) in config.layers.iter().enumerate() {
            checkpoint.prefetch(&format!("model.layers.{}.", i + 1));
            let prefix = format!("model.layers.{i}.");
            layers.push(loader.layer(&prefix, layer)?);
            checkpoint.release(&prefix);
        }
        let final_norm = loader.vector(&["model.norm.weight"], &[hidden])?;
        Ok(Self { embedding, layers, final_norm, lm_head })
    }

    /// The output head.
    pub(crate) fn lm_head(&self) -> &Weight<B::Packed> {
        self.lm_head.as_ref().unwrap_or(&self.embedding)
    }
}

struct Loader<'a, B: Backend> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    dtype: DType,
}

impl<B: Backend> Loader<'_, B> {
    fn layer(&self, prefix: &str, layer: &LayerConfig) -> Result<LayerWeights<B>, LoadError> {
        let c = self.config;
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let norm = |suffix: &str, len| self.vector(&[&name(suffix)], &[len]);
        let qkv = [name("self_attn.q_proj"), name("self_attn.k_proj"), name("self_attn.v_proj")];
        let qk_norm = match c.qk_norm {
            true => Some(QkNormWeights {
                q: norm("self_attn.q_norm.weight", c.head_dim)?,
                k: norm("self_attn.k_norm.weight", c.head_dim)?,
            }),
            false => None,
        };
        Ok(LayerWeights {
            input_norm: norm("input_layernorm.weight", c.hidden_size)?,
            qkv: self.linear(&qkv, &[q, kv, kv], c.hidden_size, c.qkv_bias)?,
            qk_norm,
            o: self.linear(&[name("self_attn.o_proj")], &[c.hidden_size], q, c.o_bias)?,
            post_norm: norm("post_attention_layernorm.weight", c.hidden_size)?,
            mlp: match &layer.mlp {
                &MlpConfig::Dense { intermediate_size, bias } => {
                    MlpWeights::Dense(self.dense(&name("mlp"), intermediate_size, bias)?)
                }
                MlpConfig::Moe(moe) => MlpWeights::Moe(self.moe(prefix, moe)?),
            },
        })
    }

    fn dense(&self, prefix: &str, width: usize, bias: bool) -> Result<DenseWeights<B>, LoadError> {
        let hidden = self.config.hidden_size;
        let gate_up = [format!("{prefix}.gate_proj"), format!("{prefix}.up_proj")];
        Ok(DenseWeights {
            gate_up: self.linear(&gate_up, &[width, width], hidden, bias)?,
            down: self.linear(&[format!("{prefix}.down_proj")], &[hidden], width, bias)?,
        })
    }

    fn moe(&self, prefix: &str, moe: &MoeConfig) -> Result<MoeWeights<B>, LoadError> {
        let (hidden, width) = (self.config.hidden_size, moe.intermediate_size);
        let names = &self.checkpoint.family.names;
        let experts = format!("{prefix}{}", names.experts);
        let [gate, up, down] = names.expert_projections;
        let (mut gate_ups, mut downs) = (Vec::new(), Vec::new());
        for e in 0..moe.num_experts {
            for projection in [gate, up] {
                gate_ups.push(self.checkpoint.matrix(&format!("{experts}.{e}.{projection}.weight"), width, hidden)?);
            }
            downs.push(self.checkpoint.matrix(&format!("{experts}.{e}.{down}.weight"), hidden, width)?);
        }
        let shared = match moe.shared_intermediate_size {
            None => None,
            Some(width) => Some(SharedExpert {
                mlp: self.dense(&format!("{prefix}mlp.shared_expert"), width, false)?,
                gate: self.linear(&[format!("{prefix}mlp.shared_expert_gate")], &[1], hidden, false)?,
            }),
        };
        let router = [format!("{prefix}{}", names.router)];
        Ok(MoeWeights {
            router: self.linear(&router, &[moe.num_experts], hidden, false)?,
            gate_up: self.weight(&format!("{experts}.*.{gate}"), moe.num_experts, &gate_ups)?,
            down: self.weight(&format!("{experts}.*.{down}"), moe.num_experts, &downs)?,
            renormalize: moe.renormalize,
            shared,
        })
    }

    /// One matrix of the projections `names`, which have `rows` outputs each.
    fn linear(&self, names: &[String], rows: &[usize], cols: usize, bias: bool) -> Result<Linear<B>, LoadError> {
        let mut parts = Vec::with_capacity(names.len());
        for (name, &rows) in names.iter().zip(rows) {
            parts.push(self.checkpoint.matrix(&format!("{name}.weight"), rows, cols)?);
        }
        let weight = self.weight(&names.join("+"), 1, &parts)?;
        let biases: Vec<String> = names.iter().map(|name| format!("{name}.bias")).collect();
        let biases: Vec<&str> = biases.iter().map(String::as_str).collect();
        let bias = if bias { Some(self.vector(&biases, rows)?) } else { None };
        Ok(Linear { weight, bias })
    }

    fn weight(&self, name: &str, groups: usize, parts: &[HostTensor<'_>]) -> Result<Weight<B::Packed>, LoadError> {
        Ok(self.backend.load_weight(name, self.dtype, groups, parts)?)
    }

    /// Vectors one after the other, in f32: norms and biases.
    fn vector(&self, names: &[&str], lens: &[usize]) -> Result<Tensor<B::Memory>, LoadError> {
        let mut values = Vec::new();
        for (name, &len) in names.iter().zip(lens) {
            let host = self.checkpoint.vector(name, len)?;
            values.extend(host.dtype.decode(host.bytes));
        }
        let mut tensor = self.backend.allocate(DType::F32, 1, values.len())?;
        self.backend.write(&mut tensor, bytemuck::cast_slice(&values));
        Ok(tensor)
    }
}
