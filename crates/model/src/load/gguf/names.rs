//! What GGUF calls tensors, and what safetensors checkpoints of the same family do. It knows no shapes.

use crate::load::families::Names;
use crate::load::weights::STACKED;

/// The name in checkpoints of safetensors; that of the file if nobody knows it.
pub(super) fn translated(name: &str, names: &Names, shares_experts: bool) -> String {
    let (base, end) = name.rsplit_once('.').unwrap_or((name, ""));
    let found = match base {
        "token_embd" => Some(names.embedding.to_owned()),
        "output_norm" => Some(names.final_norm.to_owned()),
        "output" => Some(names.lm_head.to_owned()),
        _ => base.strip_prefix("blk.").and_then(|rest| {
            let (number, part) = rest.split_once('.')?;
            let of_layer = part_name(part, names, shares_experts)?;
            number.parse::<u32>().ok().map(|number| format!("{}.{number}.{of_layer}", names.layers))
        }),
    };
    match found {
        // A vector without a part.
        Some(found) if !names.sinks.is_empty() && found.ends_with(names.sinks) => found,
        Some(found) => format!("{found}.{end}"),
        None => name.to_owned(),
    }
}

fn part_name(part: &str, names: &Names, shares_experts: bool) -> Option<String> {
    let [gate, up, down] = names.mlp_projections;
    let [expert_gate, expert_up, expert_down] = names.expert_projections;
    let mlp = |projection: &str| format!("{}.{projection}", names.mlp);
    let expert = |projection: &str| format!("{}{STACKED}.{projection}", names.experts.trim_end_matches("experts"));
    let shared = |projection: &str| format!("{}.{projection}", names.shared_expert);
    let own = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    match part {
        "attn_norm" => own(names.attention_norm),
        "attn_q" => own(names.qkv[0]),
        "attn_k" => own(names.qkv[1]),
        "attn_v" => own(names.qkv[2]),
        "attn_q_norm" => own(names.qk_norms[0]),
        "attn_k_norm" => own(names.qk_norms[1]),
        "attn_output" => own(names.o),
        "attn_sinks" => own(names.sinks),
        // That is before the MLP in families that have none behind attention.
        "post_attention_norm" => own(names.attention_out_norm).or_else(|| own(names.mlp_norm)),
        "ffn_norm" => own(names.mlp_norm),
        "post_ffw_norm" => own(names.mlp_out_norm),
        "ffn_gate" => Some(mlp(gate)),
        "ffn_up" => Some(mlp(up)),
        "ffn_down" => Some(mlp(down)),
        "ffn_gate_inp" => own(names.router),
        "ffn_gate_exps" => Some(expert(expert_gate.stacked)),
        "ffn_up_exps" => Some(expert(expert_up.stacked)),
        "ffn_down_exps" => Some(expert(expert_down.stacked)),
        "ffn_gate_shexp" if shares_experts => Some(shared(gate)),
        "ffn_up_shexp" if shares_experts => Some(shared(up)),
        "ffn_down_shexp" if shares_experts => Some(shared(down)),
        "ffn_gate_inp_shexp" if shares_experts => own(names.shared_expert_gate),
        _ => None,
    }
}
