//! What a model is made of, whatever its family: sizes, factors, and what each layer consists of. It knows no family.

use crate::load::error::LoadError;
use crate::load::fields::Fields;
use crate::load::rope::RopeConfig;
use std::ops::RangeInclusive;
use vllm_apple_ops::{Activation, DType, MAX_HEAD_DIM, ModelSize, WeightFormat};

/// The decoder that a checkpoint describes.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The architecture's name, as in `architectures`.
    pub architecture: &'static str,
    /// Rows of the embedding; token ids are below it.
    pub vocab_size: usize,
    /// Length of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key heads, and as many value heads.
    pub num_key_value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_norm_eps: f32,
    /// Added to the weight of every RMSNorm: 1 where checkpoints store the difference from 1 (Gemma).
    pub norm_offset: f32,
    /// Positions that the model was trained for.
    pub max_position_embeddings: usize,
    /// Whether the embedding is also the output head.
    pub tie_word_embeddings: bool,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub o_bias: bool,
    /// Whether queries and keys are normalised before RoPE.
    pub qk_norm: bool,
    /// Whether each query head has a score without a value, which takes part in its softmax.
    pub sinks: bool,
    /// Whether what attention and MLP add to the residual stream is normalised before it is added.
    pub out_norms: bool,
    /// What gates of MLPs go through.
    pub activation: Activation,
    /// Factor of the dot products of queries and keys.
    pub attention_scale: f32,
    /// Factor of the embedding, rounded to the activations' type before it is applied.
    pub embedding_scale: f32,
    /// Factor of the logits.
    pub logits_scale: f32,
    /// Rotary position embeddings, of which each layer uses one.
    pub ropes: Vec<RopeConfig>,
    /// The longest sequence that the model supports with its RoPE scaling.
    pub(crate) longest: usize,
    /// What differs from layer to layer.
    pub layers: Vec<LayerConfig>,
    /// Type of the weights, if the checkpoint says it.
    pub dtype: Option<DType>,
    /// What steps answer with.
    pub head: Head,
}

/// What a step answers with for the tokens that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// The output head's logits.
    Logits,
    /// The hidden states behind the final norm; there is no output head.
    Hidden,
}

/// What may differ from layer to layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// Positions that a token sees, itself included; `None` is all.
    pub window: Option<usize>,
    /// Which of [`ModelConfig::ropes`] rotates queries and keys.
    pub rope: usize,
    /// The earlier layer whose KV cache this one reads. It then projects queries alone and has no cache of its own.
    pub kv_sharing_target: Option<usize>,
    /// The feed-forward part.
    pub mlp: MlpConfig,
}

/// The feed-forward part of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum MlpConfig {
    /// One gated MLP.
    Dense {
        /// Its width.
        intermediate_size: usize,
        /// Whether its projections have biases.
        bias: bool,
    },
    /// A mixture of experts.
    Moe(MoeConfig),
}

/// A mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeConfig {
    /// Experts.
    pub num_experts: usize,
    /// Experts that each token uses.
    pub top_k: usize,
    /// Width of an expert.
    pub intermediate_size: usize,
    /// Whether a token's expert weights add up to 1.
    pub renormalize: bool,
    /// Whether the router and the experts' projections have biases.
    pub bias: bool,
    /// Width of the expert that every token uses, if there is one.
    pub shared_intermediate_size: Option<usize>,
}

const MAX_LAYERS: usize = 4096;
/// Models have 1e-8 to 1e-3. Far beyond, the norm divides by zero in f32, or makes zeros of everything.
const RMS_NORM_EPS: RangeInclusive<f64> = 1e-12..=1.0;

/// Defaults that differ between the config classes of transformers.
pub(crate) struct Defaults {
    pub(crate) num_key_value_heads: Option<usize>,
    pub(crate) head_dim: Option<usize>,
    pub(crate) max_position_embeddings: usize,
    pub(crate) rms_norm_eps: f64,
    pub(crate) rope_theta: f64,
    /// Base of sliding layers, in families whose RoPE differs between kinds of layers.
    pub(crate) local_rope_theta: Option<f64>,
    /// The field that names the activation, and which it is without.
    pub(crate) activation: (&'static str, Activation),
    pub(crate) tie_word_embeddings: bool,
}

impl Defaults {
    /// `transformers.LlamaConfig`.
    pub(crate) const LLAMA: Self = Self {
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        local_rope_theta: None,
        activation: ("hidden_act", Activation::Silu),
        tie_word_embeddings: false,
    };
}

impl ModelConfig {
    /// Reads what all families share. Until the family says otherwise it is Llama: layers are full attention and dense, with a norm
    /// before each part, and use the first RoPE.
    pub(crate) fn shared(architecture: &'static str, f: &Fields, d: &Defaults) -> Result<Self, LoadError> {
        // Transformers computes it for tokens that are generated, too.
        if f.boolean("is_causal")? == Some(false) {
            return Err(f.error("is_causal", "true: attention to later tokens is not computed"));
        }
        let hidden_size = f.required_size("hidden_size")?;
        let heads = f.required_size("num_attention_heads")?;
        let max_position_embeddings = f.size("max_position_embeddings")?.unwrap_or(d.max_position_embeddings);
        let head_dim = head_dim(f, hidden_size, heads, d.head_dim)?;
        let num_layers = f.required_size("num_hidden_layers")?;
        if num_layers > MAX_LAYERS {
            return Err(f.error("num_hidden_layers", &format!("at most {MAX_LAYERS}")));
        }
        let ropes = RopeConfig::read(f, head_dim, max_position_embeddings, (d.rope_theta, d.local_rope_theta))?;
        let dense = MlpConfig::Dense { intermediate_size: f.required_size("intermediate_size")?, bias: false };
        Ok(Self {
            architecture,
            vocab_size: f.required_size("vocab_size")?,
            hidden_size,
            num_attention_heads: heads,
            num_key_value_heads: key_value_heads(f, heads, d.num_key_value_heads)?,
            head_dim,
            rms_norm_eps: f.number_in("rms_norm_eps", &RMS_NORM_EPS)?.unwrap_or(d.rms_norm_eps) as f32,
            norm_offset: 0.0,
            max_position_embeddings,
            tie_word_embeddings: f.boolean("tie_word_embeddings")?.unwrap_or(d.tie_word_embeddings),
            qkv_bias: false,
            o_bias: false,
            qk_norm: false,
            sinks: false,
            out_norms: false,
            activation: activation(f, d.activation)?,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            embedding_scale: 1.0,
            logits_scale: 1.0,
            longest: ropes[0].derived_max_len(max_position_embeddings),
            ropes,
            layers: vec![LayerConfig { window: None, rope: 0, kv_sharing_target: None, mlp: dense }; num_layers],
            dtype: stored_dtype(f)?,
            head: Head::Logits,
        })
    }

    /// Elements of a row of q, k and v together.
    pub fn qkv_size(&self) -> usize {
        (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
    }

    /// What backends size their scratch by.
    pub(crate) fn size(&self, weights: WeightFormat) -> ModelSize {
        let mut size = ModelSize {
            weights,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            num_heads: self.num_attention_heads,
            num_kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            intermediate_size: 0,
            num_experts: 0,
            top_k: 0,
            expert_intermediate_size: 0,
        };
        for layer in &self.layers {
            match &layer.mlp {
                MlpConfig::Dense { intermediate_size, .. } => {
                    size.intermediate_size = size.intermediate_size.max(*intermediate_size);
                }
                MlpConfig::Moe(moe) => {
                    size.num_experts = size.num_experts.max(moe.num_experts);
                    size.top_k = size.top_k.max(moe.top_k);
                    size.expert_intermediate_size = size.expert_intermediate_size.max(moe.intermediate_size);
                    size.intermediate_size = size.intermediate_size.max(moe.shared_intermediate_size.unwrap_or(0));
                }
            }
        }
        size
    }

    /// Elements of a row that the layer projects for attention: queries, and keys and values where it has a cache of its own.
    pub fn projection_size(&self, layer: &LayerConfig) -> usize {
        match layer.kv_sharing_target {
            None => self.qkv_size(),
            Some(_) => self.num_attention_heads * self.head_dim,
        }
    }

    /// Layers that have a KV cache of their own.
    pub fn num_kv_caches(&self) -> usize {
        self.layers.iter().filter(|layer| layer.kv_sharing_target.is_none()).count()
    }

    /// Lets the last `num_kv_shared_layers` layers read the cache of the last layer before them that has the same window and RoPE: the
    /// field and its meaning are Gemma3n's, and any family may have it. Call it when these are known.
    pub(crate) fn share_kv(&mut self, f: &Fields) -> Result<(), LoadError> {
        const FIELD: &str = "num_kv_shared_layers";
        let shared = f.integer(FIELD)?.unwrap_or(0);
        let num_layers = self.layers.len();
        let Some(own) = usize::try_from(shared).ok().and_then(|n| num_layers.checked_sub(n)).filter(|&own| own > 0)
        else {
            return Err(f.error(FIELD, &format!("below num_hidden_layers ({num_layers})")));
        };
        let (owners, sharers) = self.layers.split_at_mut(own);
        for layer in sharers {
            let kind = (layer.window, layer.rope);
            layer.kv_sharing_target = owners.iter().rposition(|owner| (owner.window, owner.rope) == kind);
            if layer.kv_sharing_target.is_none() {
                let expected = "such that each layer's window and RoPE are also those of a layer which does not share";
                return Err(f.error(FIELD, expected));
            }
        }
        Ok(())
    }

    /// The longest sequence that the model supports with its RoPE scaling: see `RopeConfig::derived_max_len`.
    pub fn derived_max_model_len(&self) -> usize {
        self.longest
    }
}

/// Transformers: `head_dim` where given, else the class's default, else `hidden_size / num_attention_heads`.
fn head_dim(f: &Fields, hidden_size: usize, heads: usize, default: Option<usize>) -> Result<usize, LoadError> {
    let given = f.size("head_dim")?;
    let derived = given.is_none() && default.is_none();
    if derived && !hidden_size.is_multiple_of(heads) {
        return Err(f.error("hidden_size", &format!("a multiple of num_attention_heads ({heads})")));
    }
    let head_dim = given.or(default).unwrap_or(hidden_size / heads);
    if !head_dim.is_multiple_of(8) || head_dim > MAX_HEAD_DIM {
        let field = if derived { "hidden_size" } else { "head_dim" };
        let expected =
            format!("such that a head has a multiple of 8 and at most {MAX_HEAD_DIM} elements (not {head_dim})");
        return Err(f.error(field, &expected));
    }
    Ok(head_dim)
}

fn key_value_heads(f: &Fields, heads: usize, default: Option<usize>) -> Result<usize, LoadError> {
    let explicit_null = f.has_null("num_key_value_heads");
    let default = if explicit_null { heads } else { default.unwrap_or(heads) };
    let kv_heads = f.size("num_key_value_heads")?.unwrap_or(default);
    match heads.is_multiple_of(kv_heads) {
        true => Ok(kv_heads),
        false => Err(f.error("num_key_value_heads", &format!("a divisor of num_attention_heads ({heads})"))),
    }
}

fn activation(f: &Fields, (field, default): (&str, Activation)) -> Result<Activation, LoadError> {
    match f.string(field)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(_) => Err(f.error(field, "silu (or swish, its other name) or gelu_pytorch_tanh")),
    }
}

fn stored_dtype(f: &Fields) -> Result<Option<DType>, LoadError> {
    let field = f.first_of(&["dtype", "torch_dtype"]);
    let name = f.string(field)?.map(|name| name.strip_prefix("torch.").unwrap_or(name));
    name.map(str::parse).transpose().map_err(|_| f.error(field, "bfloat16, float16 or float32"))
}
