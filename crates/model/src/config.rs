//! What a model is made of, whatever its family: sizes, and what each layer consists of. It knows no field names of families.

use crate::error::LoadError;
use crate::fields::Fields;
use crate::rope::RopeConfig;
use vllm_apple_ops::{DType, ModelSize, WeightFormat};

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
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// What differs from layer to layer.
    pub layers: Vec<LayerConfig>,
    /// Type of the weights, if the checkpoint says it.
    pub dtype: Option<DType>,
}

/// What may differ from layer to layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// Positions that a token sees, itself included; `None` is all.
    pub window: Option<usize>,
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
    /// Width of the expert that every token uses, if there is one.
    pub shared_intermediate_size: Option<usize>,
}

/// Largest head that the CPU backend's attention supports; others compute what is too large for them on the host.
pub const MAX_HEAD_DIM: usize = 512;
const MAX_LAYERS: usize = 4096;
const MAX_EXPERTS: usize = 4096;

/// Defaults that differ between the config classes of transformers.
pub(crate) struct Defaults {
    pub(crate) num_key_value_heads: Option<usize>,
    pub(crate) head_dim: Option<usize>,
    pub(crate) max_position_embeddings: usize,
    pub(crate) rms_norm_eps: f64,
    pub(crate) rope_theta: f64,
}

impl ModelConfig {
    /// Reads what all families share. Layers are full attention and, until the family says otherwise, dense.
    pub(crate) fn shared(architecture: &'static str, f: &Fields, d: &Defaults) -> Result<Self, LoadError> {
        if f.string("hidden_act")?.unwrap_or("silu") != "silu" {
            return Err(f.error("hidden_act", "\"silu\""));
        }
        let hidden_size = f.required_size("hidden_size")?;
        let heads = f.required_size("num_attention_heads")?;
        let max_position_embeddings = f.size("max_position_embeddings")?.unwrap_or(d.max_position_embeddings);
        let head_dim = head_dim(f, hidden_size, heads, d.head_dim)?;
        let num_layers = f.required_size("num_hidden_layers")?;
        if num_layers > MAX_LAYERS {
            return Err(f.error("num_hidden_layers", &format!("at most {MAX_LAYERS}")));
        }
        let dense = MlpConfig::Dense { intermediate_size: f.required_size("intermediate_size")?, bias: false };
        Ok(Self {
            architecture,
            vocab_size: f.required_size("vocab_size")?,
            hidden_size,
            num_attention_heads: heads,
            num_key_value_heads: key_value_heads(f, heads, d.num_key_value_heads)?,
            head_dim,
            rms_norm_eps: f.positive("rms_norm_eps")?.unwrap_or(d.rms_norm_eps) as f32,
            max_position_embeddings,
            tie_word_embeddings: f.boolean("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: false,
            o_bias: false,
            qk_norm: false,
            rope: RopeConfig::read(f, head_dim, max_position_embeddings, d.rope_theta)?,
            layers: vec![LayerConfig { window: None, kv_sharing_target: None, mlp: dense }; num_layers],
            dtype: stored_dtype(f)?,
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

    /// Lets the last `num_kv_shared_layers` layers read the cache of the last layer before them that has the same window: the field
    /// and its meaning are Gemma3n's, and any family may have it. Call it when the windows are known.
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
            layer.kv_sharing_target = owners.iter().rposition(|owner| owner.window == layer.window);
            if layer.kv_sharing_target.is_none() {
                return Err(
                    f.error(FIELD, "such that each layer's window is also that of a layer which does not share")
                );
            }
        }
        Ok(())
    }

    /// The longest sequence that the model supports with its RoPE scaling, by vLLM's rule.
    pub fn derived_max_model_len(&self) -> usize {
        self.rope.derived_max_len(self.max_position_embeddings)
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

fn stored_dtype(f: &Fields) -> Result<Option<DType>, LoadError> {
    let field = f.first_of(&["dtype", "torch_dtype"]);
    match f.string(field)?.map(|s| s.strip_prefix("torch.").unwrap_or(s)) {
        None => Ok(None),
        Some("bfloat16") => Ok(Some(DType::BF16)),
        Some("float16") => Ok(Some(DType::F16)),
        Some("float32") => Ok(Some(DType::F32)),
        Some(_) => Err(f.error(field, "bfloat16, float16 or float32")),
    }
}

/// The window of every layer: all of them (Mistral, Mixtral, Qwen3-MoE).
pub(crate) fn uniform_window(config: &mut ModelConfig, window: Option<usize>) {
    config.layers.iter_mut().for_each(|layer| layer.window = window);
}

/// The window of the layers that `layer_types` names or, without that field, of those that `is_sliding` picks (Qwen2, Qwen3).
pub(crate) fn windows_by_layer(
    config: &mut ModelConfig,
    f: &Fields,
    is_sliding: impl Fn(usize, usize) -> bool,
) -> Result<(), LoadError> {
    let window = match f.boolean("use_sliding_window")?.unwrap_or(false) {
        true if !f.has_null("sliding_window") => Some(f.size("sliding_window")?.unwrap_or(4096)),
        _ => None,
    };
    let types = f.strings("layer_types")?;
    if types.as_ref().is_some_and(|t| t.len() != config.layers.len()) {
        return Err(f.error("layer_types", &format!("a list of {} layer types", config.layers.len())));
    }
    let max_window_layers = f.integer("max_window_layers")?.unwrap_or(28) as usize;
    for (i, layer) in config.layers.iter_mut().enumerate() {
        let sliding = match types.as_ref().map(|t| t[i].as_str()) {
            None => window.is_some() && is_sliding(i, max_window_layers),
            Some("full_attention") => false,
            Some("sliding_attention") => true,
            Some(_) => return Err(f.error("layer_types", "made of full_attention and sliding_attention")),
        };
        layer.window = window.filter(|_| sliding);
    }
    Ok(())
}

/// Replaces the dense MLPs by the mixture, but for `mlp_only_layers` and what `decoder_sparse_step` skips (Qwen-MoE).
pub(crate) fn sparse_layers(config: &mut ModelConfig, f: &Fields, moe: &MoeConfig) -> Result<(), LoadError> {
    let step = f.size("decoder_sparse_step")?.unwrap_or(1);
    let dense = f.integers("mlp_only_layers")?.unwrap_or_default();
    for (i, layer) in config.layers.iter_mut().enumerate() {
        if !dense.contains(&(i as u64)) && (i + 1).is_multiple_of(step) {
            layer.mlp = MlpConfig::Moe(moe.clone());
        }
    }
    Ok(())
}

/// The number of experts, and how many of them a token uses, by the fields' names and defaults.
pub(crate) fn experts(f: &Fields, names: &[&str], count: usize, top_k: usize) -> Result<(usize, usize), LoadError> {
    let name = f.first_of(names);
    let num_experts = f.size(name)?.unwrap_or(count);
    if num_experts > MAX_EXPERTS {
        return Err(f.error(name, &format!("at most {MAX_EXPERTS}")));
    }
    let top_k = f.size("num_experts_per_tok")?.unwrap_or(top_k);
    match top_k <= num_experts {
        true => Ok((num_experts, top_k)),
        false => Err(f.error("num_experts_per_tok", &format!("at most {name} ({num_experts})"))),
    }
}
