//! Loads a checkpoint's tensors: q, k and v as one matrix, gate and up as one, tied embeddings once. Where they go is the
//! store's business: into a backend, or nowhere, to check that all are there.

use crate::checkpoint::Checkpoint;
use crate::config::{LayerConfig, MlpConfig, ModelConfig, MoeConfig};
use crate::error::LoadError;
use vllm_apple_ops::{Backend, DType, HostTensor, Tensor, Weight, WeightFormat, WeightSource};

/// Takes the weights of a model.
pub(crate) trait WeightStore {
    /// Whether it reads what it is given: then the next layer's pages are asked for early.
    const READS: bool;
    /// A weight matrix, or those of all experts.
    type Matrix;
    /// A norm's weight or a bias, in f32.
    type Vector;

    /// See [`Backend::load_weight`].
    fn matrix(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Self::Matrix, LoadError>;

    /// See [`Backend::keeps_host_tensors`].
    fn keeps_host_tensors(&self) -> bool;

    /// One vector of all parts, one after the other.
    fn vector(&self, parts: &[HostTensor<'_>]) -> Result<Self::Vector, LoadError>;
}

impl<B: Backend> WeightStore for B {
    const READS: bool = true;
    type Matrix = Weight<B::Packed>;
    type Vector = Tensor<B::Memory>;

    fn matrix(&self, source: WeightSource<'_>, format: WeightFormat) -> Result<Self::Matrix, LoadError> {
        Ok(self.load_weight(source, format)?)
    }

    fn keeps_host_tensors(&self) -> bool {
        Backend::keeps_host_tensors(self)
    }

    fn vector(&self, parts: &[HostTensor<'_>]) -> Result<Self::Vector, LoadError> {
        let values: Vec<f32> = parts.iter().flat_map(|part| part.dtype.decode(part.bytes)).collect();
        let mut tensor = self.allocate(DType::F32, 1, values.len())?;
        self.write(&mut tensor, bytemuck::cast_slice(&values));
        Ok(tensor)
    }
}

/// Keeps nothing: loading into it finds every tensor that is missing or has another shape or type than it should.
pub(crate) struct Nowhere;

impl WeightStore for Nowhere {
    const READS: bool = false;
    type Matrix = ();
    type Vector = ();

    fn matrix(&self, _: WeightSource<'_>, _: WeightFormat) -> Result<(), LoadError> {
        Ok(())
    }

    fn keeps_host_tensors(&self) -> bool {
        false
    }

    fn vector(&self, _: &[HostTensor<'_>]) -> Result<(), LoadError> {
        Ok(())
    }
}

/// All weights of a model.
pub(crate) struct Weights<S: WeightStore> {
    pub(crate) embedding: S::Matrix,
    pub(crate) layers: Vec<LayerWeights<S>>,
    pub(crate) final_norm: S::Vector,
    /// `None`: the embedding is the output head.
    lm_head: Option<S::Matrix>,
}

/// Weights of a layer.
pub(crate) struct LayerWeights<S: WeightStore> {
    pub(crate) input_norm: S::Vector,
    /// Queries, keys and values; queries alone in layers that share another layer's KV cache.
    pub(crate) qkv: Linear<S>,
    pub(crate) qk_norm: Option<QkNormWeights<S>>,
    pub(crate) o: Linear<S>,
    pub(crate) post_norm: S::Vector,
    pub(crate) mlp: MlpWeights<S>,
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
}

/// The feed-forward part of a layer.
pub(crate) enum MlpWeights<S: WeightStore> {
    Dense(DenseWeights<S>),
    Moe(MoeWeights<S>),
}

/// A gated MLP.
pub(crate) struct DenseWeights<S: WeightStore> {
    pub(crate) gate_up: Linear<S>,
    pub(crate) down: Linear<S>,
}

/// A mixture of experts.
pub(crate) struct MoeWeights<S: WeightStore> {
    pub(crate) router: Linear<S>,
    pub(crate) gate_up: S::Matrix,
    pub(crate) down: S::Matrix,
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
    pub(crate) fn load(store: &S, checkpoint: &Checkpoint, format: WeightFormat) -> Result<Self, LoadError> {
        let config = checkpoint.config();
        let loader = Loader { store, checkpoint, config, format };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let table = |name: &str| -> Result<S::Matrix, LoadError> {
            let parts = [checkpoint.matrix(name, vocab, hidden)?];
            let weight = loader.weight(WeightSource::matrix(name, &parts))?;
            loader.release(name);
            Ok(weight)
        };
        let embedding = table("model.embed_tokens.weight")?;
        let lm_head = if config.tie_word_embeddings { None } else { Some(table("lm_head.weight")?) };
        let mut layers = Vec::with_capacity(config.layers.len());
        for (i, layer) in config.layers.iter().enumerate() {
            if S::READS {
                checkpoint.prefetch(&format!("model.layers.{}.", i + 1));
            }
            let prefix = format!("model.layers.{i}.");
            layers.push(loader.layer(&prefix, layer)?);
            loader.release(&prefix);
        }
        let final_norm = loader.vector(&["model.norm.weight"], &[hidden])?;
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
    format: WeightFormat,
}

impl<S: WeightStore> Loader<'_, S> {
    fn layer(&self, prefix: &str, layer: &LayerConfig) -> Result<LayerWeights<S>, LoadError> {
        let c = self.config;
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let norm = |suffix: &str, len| self.vector(&[&name(suffix)], &[len]);
        // Layers that share a cache need no keys and values; a checkpoint may have their weights nevertheless.
        let projections = if layer.kv_sharing_target.is_some() { 1 } else { 3 };
        let qkv = [name("self_attn.q_proj"), name("self_attn.k_proj"), name("self_attn.v_proj")];
        let qk_norm = match c.qk_norm {
            true => Some(QkNormWeights {
                q: norm("self_attn.q_norm.weight", c.head_dim)?,
                k: match layer.kv_sharing_target {
                    None => Some(norm("self_attn.k_norm.weight", c.head_dim)?),
                    Some(_) => None,
                },
            }),
            false => None,
        };
        Ok(LayerWeights {
            input_norm: norm("input_layernorm.weight", c.hidden_size)?,
            qkv: self.linear(&qkv[..projections], &[q, kv, kv][..projections], c.hidden_size, c.qkv_bias)?,
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

    fn dense(&self, prefix: &str, width: usize, bias: bool) -> Result<DenseWeights<S>, LoadError> {
        let hidden = self.config.hidden_size;
        let gate_up = [format!("{prefix}.gate_proj"), format!("{prefix}.up_proj")];
        Ok(DenseWeights {
            gate_up: self.linear(&gate_up, &[width, width], hidden, bias)?,
            down: self.linear(&[format!("{prefix}.down_proj")], &[hidden], width, bias)?,
        })
    }

    fn moe(&self, prefix: &str, moe: &MoeConfig) -> Result<MoeWeights<S>, LoadError> {
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
        let all_experts = |projection: &str, parts: &[HostTensor<'_>]| {
            let name = format!("{experts}.*.{projection}");
            self.weight(WeightSource { name: &name, groups: moe.num_experts, parts })
        };
        Ok(MoeWeights {
            router: self.linear(&router, &[moe.num_experts], hidden, false)?,
            gate_up: all_experts(gate, &gate_ups)?,
            down: all_experts(down, &downs)?,
            renormalize: moe.renormalize,
            shared,
        })
    }

    /// One matrix of the projections `names`, which have `rows` outputs each.
    fn linear(&self, names: &[String], rows: &[usize], cols: usize, bias: bool) -> Result<Linear<S>, LoadError> {
        let mut parts = Vec::with_capacity(names.len());
        for (name, &rows) in names.iter().zip(rows) {
            parts.push(self.checkpoint.matrix(&format!("{name}.weight"), rows, cols)?);
        }
        let weight = self.weight(WeightSource::matrix(&names.join("+"), &parts))?;
        let biases: Vec<String> = names.iter().map(|name| format!("{name}.bias")).collect();
        let biases: Vec<&str> = biases.iter().map(String::as_str).collect();
        let bias = if bias { Some(self.vector(&biases, rows)?) } else { None };
        Ok(Linear { weight, bias })
    }

    /// See [`Checkpoint::release`].
    fn release(&self, prefix: &str) {
        if !self.store.keeps_host_tensors() {
            self.checkpoint.release(prefix);
        }
    }

    fn weight(&self, source: WeightSource<'_>) -> Result<S::Matrix, LoadError> {
        self.store.matrix(source, self.format)
    }

    /// Vectors one after the other, in f32: norms and biases.
    fn vector(&self, names: &[&str], lens: &[usize]) -> Result<S::Vector, LoadError> {
        let vectors = names.iter().zip(lens).map(|(name, &len)| self.checkpoint.vector(name, len));
        self.store.vector(&vectors.collect::<Result<Vec<_>, _>>()?)
    }
}
