//! What weights are called, all without the `.weight` or `.bias` at their end. It knows no shapes.

/// A projection of an expert: its name where each expert has tensors of its own, and where all experts have one, which is MLX's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Projection {
    pub(crate) own: &'static str,
    pub(crate) stacked: &'static str,
}

/// Names of a family's weights. Those of parts that a model does not have are not looked up.
#[derive(Debug)]
pub(crate) struct Names {
    /// The token table.
    pub(crate) embedding: &'static str,
    /// The list of layers. All names from here to the final norm are within a layer.
    pub(crate) layers: &'static str,
    /// The norm before attention.
    pub(crate) attention_norm: &'static str,
    /// Query, key and value projection.
    pub(crate) qkv: [&'static str; 3],
    /// Norms of query and key heads.
    pub(crate) qk_norms: [&'static str; 2],
    /// Scores of query heads without a value.
    pub(crate) sinks: &'static str,
    /// The output projection of attention.
    pub(crate) o: &'static str,
    /// The norm of what attention adds to the residual stream.
    pub(crate) attention_out_norm: &'static str,
    /// The norm before the MLP.
    pub(crate) mlp_norm: &'static str,
    /// The gated MLP.
    pub(crate) mlp: &'static str,
    /// Gate, up and down projection within a gated MLP.
    pub(crate) mlp_projections: [&'static str; 3],
    /// The router of a mixture of experts.
    pub(crate) router: &'static str,
    /// The list of experts.
    pub(crate) experts: &'static str,
    /// Gate, up and down projection of an expert.
    pub(crate) expert_projections: [Projection; 3],
    /// Where all experts are two tensors in any case: that of gates and ups in turn, and that of projections down.
    pub(crate) joint_projections: Option<[&'static str; 2]>,
    /// The gated MLP that every token uses beside a mixture.
    pub(crate) shared_expert: &'static str,
    /// Its gate.
    pub(crate) shared_expert_gate: &'static str,
    /// The norm of what the MLP adds to the residual stream.
    pub(crate) mlp_out_norm: &'static str,
    /// The norm before the output head.
    pub(crate) final_norm: &'static str,
    /// The output head.
    pub(crate) lm_head: &'static str,
}

/// Llama's names, and Qwen's for mixtures of experts and norms of heads. Nothing is behind attention and MLP.
pub(crate) const LLAMA_NAMES: Names = Names {
    embedding: "model.embed_tokens",
    layers: "model.layers",
    attention_norm: "input_layernorm",
    qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    sinks: "",
    o: "self_attn.o_proj",
    attention_out_norm: "",
    mlp_norm: "post_attention_layernorm",
    mlp: "mlp",
    mlp_projections: ["gate_proj", "up_proj", "down_proj"],
    router: "mlp.gate",
    experts: "mlp.experts",
    expert_projections: [
        Projection { own: "gate_proj", stacked: "gate_proj" },
        Projection { own: "up_proj", stacked: "up_proj" },
        Projection { own: "down_proj", stacked: "down_proj" },
    ],
    joint_projections: None,
    shared_expert: "mlp.shared_expert",
    shared_expert_gate: "mlp.shared_expert_gate",
    mlp_out_norm: "",
    final_norm: "model.norm",
    lm_head: "lm_head",
};
