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
            let mut parts = parts(names, shares_experts).into_iter();
            let (_, of_layer) = parts.find(|(of_file, own)| *of_file == part && !own.is_empty())?;
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

/// The opposite of [`translated`]: what a file would call a tensor or a matrix.
pub(crate) fn in_file(name: &str, names: &Names) -> String {
    let found = match layer_part(name, names) {
        Some((_, part)) if part == names.sinks => Some("attn_sinks.weight".to_owned()),
        // As in families that have a norm behind attention, too.
        Some((_, part)) if !names.sinks.is_empty() && part.starts_with(names.mlp_norm) => {
            renamed(part, names.mlp_norm, "post_attention_norm")
        }
        Some((_, part)) => parts(names, true).into_iter().find_map(|(of_file, own)| renamed(part, &own, of_file)),
        None => [("token_embd", names.embedding), ("output_norm", names.final_norm), ("output", names.lm_head)]
            .into_iter()
            .find_map(|(of_file, own)| renamed(name, own, of_file)),
    };
    match (found, layer_part(name, names)) {
        (Some(found), Some((number, _))) => format!("blk.{number}.{found}"),
        (found, _) => found.unwrap_or_else(|| name.to_owned()),
    }
}

/// The number of a layer, and what of it has this name.
fn layer_part<'a>(name: &'a str, names: &Names) -> Option<(&'a str, &'a str)> {
    name.strip_prefix(names.layers)?.strip_prefix('.')?.split_once('.')
}

/// A name of `own` and perhaps an end, with `other` in its place.
fn renamed(name: &str, own: &str, other: &str) -> Option<String> {
    let end = name.strip_prefix(own)?;
    (end.is_empty() || end.starts_with('.')).then(|| format!("{other}{end}"))
}

/// What files call the parts of a layer, and what checkpoints of the family do: nothing where it has none. Of two that stand for the same, that of most
/// families comes first.
fn parts(names: &Names, shares_experts: bool) -> [(&'static str, String); 22] {
    let [gate, up, down] = names.mlp_projections;
    let [expert_gate, expert_up, expert_down] = names.expert_projections;
    let own = str::to_owned;
    let mlp = |projection: &str| format!("{}.{projection}", names.mlp);
    let expert = |projection: &str| format!("{}{STACKED}.{projection}", names.experts.trim_end_matches("experts"));
    let of_shared = |name: String| if shares_experts { name } else { String::new() };
    let shared = |projection: &str| of_shared(format!("{}.{projection}", names.shared_expert));
    // That is before the MLP in families that have none behind attention.
    let post_attention = [names.attention_out_norm, names.mlp_norm].into_iter().find(|name| !name.is_empty());
    [
        ("attn_norm", own(names.attention_norm)),
        ("attn_q", own(names.qkv[0])),
        ("attn_k", own(names.qkv[1])),
        ("attn_v", own(names.qkv[2])),
        ("attn_q_norm", own(names.qk_norms[0])),
        ("attn_k_norm", own(names.qk_norms[1])),
        ("attn_output", own(names.o)),
        ("attn_sinks", own(names.sinks)),
        ("ffn_norm", own(names.mlp_norm)),
        ("post_attention_norm", own(post_attention.unwrap_or(""))),
        ("post_ffw_norm", own(names.mlp_out_norm)),
        ("ffn_gate", mlp(gate)),
        ("ffn_up", mlp(up)),
        ("ffn_down", mlp(down)),
        ("ffn_gate_inp", own(names.router)),
        ("ffn_gate_exps", expert(expert_gate.stacked)),
        ("ffn_up_exps", expert(expert_up.stacked)),
        ("ffn_down_exps", expert(expert_down.stacked)),
        ("ffn_gate_shexp", shared(gate)),
        ("ffn_up_shexp", shared(up)),
        ("ffn_down_shexp", shared(down)),
        ("ffn_gate_inp_shexp", of_shared(own(names.shared_expert_gate))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::families::FAMILIES;

    #[test]
    fn names_go_there_and_back() {
        for family in FAMILIES {
            let names = &family.names;
            let layers = parts(names, true).map(|(part, _)| format!("blk.7.{part}.weight")).into_iter();
            let tables = ["token_embd", "output_norm", "output"].map(|name| format!("{name}.weight"));
            let known = layers.chain(tables).filter(|name| translated(name, names, true) != *name);
            let mut both = 0;
            for name in known {
                let back = in_file(&translated(&name, names, true), names);
                // Of a family that has one of these norms, not two.
                let is_norm =
                    |name: &str| ["blk.7.post_attention_norm.weight", "blk.7.ffn_norm.weight"].contains(&name);
                assert!(back == name || is_norm(&back) && is_norm(&name), "{name}, {back}");
                both += 1;
            }
            assert!(both > 10);
            assert_eq!(in_file("model.layers.1.mlp.unknown.weight", names), "model.layers.1.mlp.unknown.weight");
        }
    }
}
