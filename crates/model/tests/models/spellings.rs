//! The same quantised model, spelled otherwise; and what is said of groups against what there is.

use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use vllm_apple_cpu::CpuBackend;
use vllm_apple_model::Checkpoint;
use vllm_apple_ops::DType;

use crate::common::{Tensors, golden, logits_in_f32, options, rewritten, rewritten_at};

pub fn tokens() -> Vec<u32> {
    (0..30).map(|i| i * 37 % 440).collect()
}

/// What compressed-tensors writes as `int-quantized`, made of `pack-quantized`: signed bytes of symmetric matrices.
fn unpack(tensors: &mut Tensors) -> usize {
    let packed = |name: &String| name.strip_suffix(".weight_packed").map(str::to_owned);
    let names: Vec<String> = tensors.keys().filter_map(packed).collect();
    let symmetric = names.iter().filter(|name| !tensors.contains_key(&format!("{name}.weight_zero_point")));
    let names: Vec<_> = symmetric.cloned().collect();
    for name in &names {
        let (_, shape, words) = tensors.remove(&format!("{name}.weight_packed")).unwrap();
        let (_, _, sizes) = tensors.remove(&format!("{name}.weight_shape")).unwrap();
        let [rows, cols] = [0, 8].map(|at| usize::from(sizes[at]));
        let codes: Vec<u8> = match shape[1] * 4 / cols {
            1 => words.iter().map(|byte| byte ^ 0x80).collect(),
            _ => words.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(|code| code.wrapping_sub(8)).collect(),
        };
        tensors.insert(format!("{name}.weight"), (Dtype::I8, vec![rows, cols], codes));
    }
    names.len()
}

#[test]
fn bytes_in_an_order_of_columns_are_the_packed_codes() {
    let mut unpacked = 0;
    let directory = rewritten(
        "compressed-act-order",
        |config| config["quantization_config"]["format"] = json!("mixed-precision"),
        |tensors| unpacked = unpack(tensors),
    );
    assert!(unpacked >= 6, "{unpacked} matrices");
    let expected = logits_in_f32(&golden("quantised/models/compressed-act-order"), &tokens());
    let logits = logits_in_f32(directory.path(), &tokens());
    // Codes of 4 and of 8 bits become one weight through zero points, of which each is rounded otherwise.
    assert!(logits.iter().all(|logit| logit.is_finite()));
    let largest = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest < 1e-4, "{largest}");
}

/// What opening and examining a checkpoint of GPTQ says with another `group_size`.
fn with_group_size(model: &str, value: Value, change: fn(&mut Tensors)) -> Result<(), String> {
    examined(model, |config| config["quantization_config"]["group_size"] = value, change)
}

/// What opening and examining it says.
pub fn examined(
    model: &str,
    configure: impl FnOnce(&mut Value),
    change: impl FnOnce(&mut Tensors),
) -> Result<(), String> {
    let directory = rewritten(model, configure, change);
    let checkpoint = Checkpoint::open(directory.path()).map_err(|error| error.to_string())?;
    let checked = checkpoint.check(&CpuBackend::new(Some(1)), &options(DType::F32, 64));
    checked.map(drop).map_err(|error| error.to_string())
}

pub fn without_groups_of_columns(tensors: &mut Tensors) {
    tensors.retain(|name, _| !name.ends_with(".g_idx"));
}

#[test]
fn a_group_size_that_contradicts_a_matrix_is_named() {
    let scales = "self_attn.q_proj.scales of a quantised matrix is F16 of shape [2, 64]";
    for (value, words) in [
        (json!(16), [scales, "[4, 64] by the group_size in config.json"]),
        (json!(-1), [scales, "[1, 64] by the group_size in config.json"]),
        (json!(20), [scales, "groups of 8, 16, 24 … columns"]),
        (json!(0), ["config.json", "quantization_config.group_size must be the columns of a group, or -1"]),
        (json!(-2), ["config.json", "quantization_config.group_size must be the columns of a group, or -1"]),
        (json!("40"), ["config.json", "quantization_config.group_size must be the columns of a group, or -1"]),
    ] {
        let error = with_group_size("gptq-narrow-end", value, without_groups_of_columns).unwrap_err();
        for word in words {
            assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
        }
    }
    for value in [json!(16), json!(null)] {
        let error = with_group_size("gptq-narrow-end", value, |_| ()).unwrap_err();
        for word in ["q_proj.g_idx", "40 columns in group 0", "config.json, whose group_size must be theirs"] {
            assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
        }
    }
    let error = with_group_size("gptq-narrow-end", json!(20), |_| ()).unwrap_err();
    assert!(error.contains("q_proj.scales") && error.contains("8, 16, 24"), "{error}");
    assert_eq!(with_group_size("gptq-narrow-end", json!(40), without_groups_of_columns), Ok(()));
}

/// Without it, it would be another matrix.
#[test]
fn what_a_matrix_has_by_config_json_is_missed() {
    let of_groups = |weights: Value| {
        move |config: &mut Value| {
            let groups = json!({"group_0": {"targets": ["Linear"], "weights": weights}});
            config["quantization_config"]["config_groups"] = groups;
        }
    };
    let asymmetric = json!({"type": "int", "symmetric": false});
    let without = |suffix: &'static str| {
        move |tensors: &mut Tensors| tensors.retain(|name, _| !(name.contains("layers.1.") && name.ends_with(suffix)))
    };
    let missing = |error: Result<(), String>, tensor: &str| {
        let error = error.unwrap_err();
        assert!(error.contains("model.layers.1.") && error.ends_with(&format!("{tensor} is missing")), "{error}");
    };
    let error = examined("compressed-asymmetric", of_groups(asymmetric), without(".weight_zero_point"));
    missing(error, ".weight_zero_point");
    missing(examined("gptq-act-order", |_| (), without(".g_idx")), ".g_idx");
}

/// It may differ from what config.json says of the others.
#[test]
fn a_matrix_may_say_its_groups_itself() {
    for value in [json!(-1), json!(64), json!(null)] {
        assert_eq!(with_group_size("gptq", value, |_| ()), Ok(()));
    }
}

/// Writers of symmetric matrices that store the middle as it is say `gptq` as well.
#[test]
fn a_middle_that_is_stored_as_it_is_is_no_less() {
    let spelt = |format: &str, word: u32| {
        let configure = |config: &mut Value| config["quantization_config"]["checkpoint_format"] = json!(format);
        let change = |tensors: &mut Tensors| {
            let zeros = tensors.iter_mut().filter(|(name, _)| name.ends_with(".qzeros"));
            zeros.for_each(|(_, (_, _, bytes))| bytes.as_chunks_mut().0.fill(word.to_le_bytes()));
        };
        logits_in_f32(rewritten("gptq", configure, change).path(), &tokens())
    };
    let expected = spelt("gptq_v2", 0x8888_8888);
    assert_eq!(spelt("gptq", 0x8888_8888), expected);
    assert_eq!(spelt("gptq", 0x7777_7777), expected);
    assert_ne!(spelt("gptq", 0x6666_6666), expected);
}

/// What MLX calls mxfp8, as compressed-tensors has it.
#[test]
fn compressed_tensors_mxfp8_is_that_of_others() {
    let configure = |config: &mut Value| {
        let fields = config.as_object_mut().unwrap();
        fields.remove("quantization");
        fields.insert(
            "quantization_config".to_owned(),
            json!({"quant_method": "compressed-tensors", "format": "mxfp8-quantized"}),
        );
    };
    let change = |tensors: &mut Tensors| {
        let scales: Vec<_> =
            tensors.keys().filter_map(|name| name.strip_suffix(".scales").map(str::to_owned)).collect();
        for name in scales {
            let scales = tensors.remove(&format!("{name}.scales")).unwrap();
            tensors.insert(format!("{name}.weight_scale"), scales);
            let (dtype, shape, _) = tensors.get_mut(&format!("{name}.weight")).unwrap();
            (*dtype, shape[1]) = (Dtype::F8_E4M3, 4 * shape[1]);
        }
    };
    let logits = logits_in_f32(rewritten("mlx-mxfp8", configure, change).path(), &tokens());
    assert_eq!(logits, logits_in_f32(&golden("quantised/models/mlx-mxfp8"), &tokens()));
}

/// As vLLM takes it.
#[test]
fn auto_round_is_packed_as_gptq_if_nothing_says_it() {
    let unsaid =
        |config: &mut Value| _ = config["quantization_config"].as_object_mut().unwrap().remove("packing_format");
    assert_eq!(examined("auto-round", unsaid, |_| ()), Ok(()));
}

/// What caches and activations of 8 bits would need is beside matrices of floats and of codes; they are neither here.
#[test]
fn scales_of_caches_and_activations_are_not_needed() {
    let with = |model: &str, end: &str| {
        let scale = (Dtype::F32, vec![1], 1f32.to_le_bytes().to_vec());
        examined(model, |_| (), |tensors| drop(tensors.insert(format!("model.layers.0.self_attn.{end}"), scale)))
    };
    for end in ["k_scale", "v_scale", "k_proj.k_bias", "k_proj.output_scale", "k_proj.input_zero_point"] {
        assert_eq!(with("compressed-float", end), Ok(()), "{end}");
    }
    assert_eq!(with("fp8-tensor", "kv_scale"), Ok(()));
    for (model, end) in [("compressed-float", "o_scale"), ("fp8-tensor", "input_layernorm.output_scale")] {
        assert!(with(model, end).unwrap_err().contains("belong to no part"), "{end}");
    }
}

/// Codes and scales of all experts are one tensor each: what does not fit is named with what would.
#[test]
fn tensors_of_all_experts_that_do_not_fit_are_named() {
    const SCALES: &str = "model.layers.1.mlp.experts.gate_up_proj_scales";
    let wrong = |change: fn(&mut Tensors)| examined("mxfp4", |_| (), change).unwrap_err();
    let error = wrong(|tensors| tensors.get_mut(SCALES).unwrap().1.swap(0, 1));
    assert!(error.contains(SCALES) && error.contains("U8 of shape [4, 64, 2]"), "{error}");
    let error = wrong(|tensors| tensors.get_mut(SCALES).unwrap().0 = Dtype::I8);
    assert!(error.contains(SCALES) && error.contains("I8 of shape [4, 64, 2]"), "{error}");
    let missing = |name: &str, error: String| assert!(error.contains(name) && error.contains("missing"), "{error}");
    missing(SCALES, wrong(|tensors| drop(tensors.remove(SCALES))));
    missing("layers.1.self_attn.sinks", wrong(|tensors| drop(tensors.remove("model.layers.1.self_attn.sinks"))));
    missing(
        "experts.down_proj_bias",
        wrong(|tensors| drop(tensors.remove("model.layers.1.mlp.experts.down_proj_bias"))),
    );
    let error = wrong(|tensors| {
        let (_, shape, bytes) = tensors.get_mut("model.layers.1.mlp.experts.down_proj_bias").unwrap();
        bytes.truncate(bytes.len() / shape[0] * 3);
        shape[0] = 3;
    });
    assert!(
        error.contains("experts.down_proj_bias") && error.contains("[3, 64]") && error.contains("[4, 64]"),
        "{error}"
    );
    // Without codes experts are floats.
    missing("experts.gate_up_proj", wrong(|tensors| tensors.retain(|name, _| !name.contains("gate_up_proj_"))));
}

/// Experts as transformers computes with them, under Qwen's names in every family: all gates of an expert, then its ups.
fn fuse(tensors: &mut Tensors, list: &str, [gate, up, down]: [&str; 3]) {
    let layer = |name: &String| Some(name.split_once(&format!(".{list}.gate.weight"))?.0.to_owned());
    let layers: Vec<String> = tensors.keys().filter_map(layer).collect();
    assert!(!layers.is_empty());
    for layer in layers {
        let router = tensors.remove(&format!("{layer}.{list}.gate.weight")).unwrap();
        let experts = router.1[0];
        tensors.insert(format!("{layer}.mlp.gate.weight"), router);
        let mut all = |projections: &[&str]| {
            let (mut rows, mut bytes, mut like) = (0, Vec::new(), None);
            for expert in 0..experts {
                rows = 0;
                for projection in projections {
                    let name = format!("{layer}.{list}.experts.{expert}.{projection}.weight");
                    let (dtype, shape, content) = tensors.remove(&name).unwrap();
                    rows += shape[0];
                    bytes.extend(content);
                    like = Some((dtype, shape[1]));
                }
            }
            let (dtype, cols) = like.unwrap();
            (dtype, vec![experts, rows, cols], bytes)
        };
        let (gate_up, down) = (all(&[gate, up]), all(&[down]));
        tensors.insert(format!("{layer}.mlp.experts.gate_up_proj"), gate_up);
        tensors.insert(format!("{layer}.mlp.experts.down_proj"), down);
    }
}

#[test]
fn experts_may_be_what_transformers_computes_with() {
    let own = ["gate_proj", "up_proj", "down_proj"];
    for (name, list, projections) in
        [("qwen2-moe", "mlp", own), ("qwen3-moe", "mlp", own), ("mixtral", "block_sparse_moe", ["w1", "w3", "w2"])]
    {
        let from = golden(&format!("models/{name}"));
        let fused = rewritten_at(&from, |_| (), |tensors| fuse(tensors, list, projections));
        let expected = logits_in_f32(&from, &tokens());
        assert!(expected.iter().all(|logit| logit.is_finite()));
        assert!(logits_in_f32(fused.path(), &tokens()) == expected, "{name}");
        let without_down = rewritten_at(
            fused.path(),
            |_| (),
            |tensors| tensors.retain(|name, _| !name.ends_with("experts.down_proj")),
        );
        let error =
            Checkpoint::open(without_down.path()).unwrap().check(&CpuBackend::new(Some(1)), &options(DType::F32, 64));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("mlp.experts.down_proj is missing"), "{error}");
    }
}

/// What makers call what others have other names for.
#[test]
fn other_names_for_the_same() {
    let said = |configuration: Value| move |config: &mut Value| config["quantization_config"] = configuration;
    // Transformers' on Macs.
    let metal =
        rewritten("mlx-affine", said(json!({"quant_method": "metal", "bits": 4, "group_size": 32})), |tensors| {
            rename_biases(tensors);
        });
    let affine = golden("quantised/models/mlx-affine");
    assert!(logits_in_f32(metal.path(), &tokens()) == logits_in_f32(&affine, &tokens()));
    // Zero points as they are, of 4 bits and in one matrix of 8.
    let mut gptqmodel = serde_json::from_slice::<Value>(
        &std::fs::read(golden("quantised/models/auto-round").join("config.json")).unwrap(),
    )
    .unwrap()["quantization_config"]
        .take();
    gptqmodel["packing_format"] = json!("auto_round:gptqmodel");
    let as_they_are = rewritten("auto-round", said(gptqmodel), |tensors| {
        for (name, (_, _, bytes)) in tensors.iter_mut().filter(|(name, _)| name.ends_with("qzeros")) {
            let ones = if name.contains("layers.1.self_attn.o_proj") { 0x0101_0101 } else { 0x1111_1111u32 };
            for word in bytes.as_chunks_mut().0 {
                *word = u32::from_le_bytes(*word).wrapping_add(ones).to_le_bytes();
            }
        }
    });
    let auto_round = golden("quantised/models/auto-round");
    assert!(logits_in_f32(as_they_are.path(), &tokens()) == logits_in_f32(&auto_round, &tokens()));
    // Floats.
    let fake = json!({"quant_method": "auto-round", "packing_format": "auto_round:fake", "bits": 8, "group_size": -1});
    let llama = golden("models/llama");
    let fake = rewritten_at(&llama, said(fake), |_| ());
    assert!(logits_in_f32(fake.path(), &tokens()) == logits_in_f32(&llama, &tokens()));
}

/// Renames biases as transformers has them.
fn rename_biases(tensors: &mut Tensors) {
    let biases: Vec<String> = tensors.keys().filter(|name| name.ends_with(".biases")).cloned().collect();
    for name in biases {
        let part = tensors.remove(&name).unwrap();
        tensors.insert(name.replace(".biases", ".qbiases"), part);
    }
}

/// What the configuration says of blocks and bits, which shapes alone do not tell.
#[test]
fn blocks_and_bits_are_those_of_the_configuration() {
    let block = |block: Value| {
        examined("fp8-small-block", |config| config["quantization_config"]["weight_block_size"] = block, |_| ())
    };
    assert_eq!(block(json!([16, 40])), Ok(()));
    assert_eq!(block(json!("16x40")), Ok(()));
    for wrong in
        [json!([16, 48]), json!([16, 1_u64 << 60]), json!([0, 40]), json!([-1, 16, 40]), json!("16"), json!(40)]
    {
        assert!(block(wrong).is_err());
    }
    let bits = |bits: Value| {
        let groups = json!({"group_0": {"weights": {"num_bits": bits}}});
        examined("compressed-w8a16", |config| config["quantization_config"]["config_groups"] = groups, |_| ())
    };
    assert_eq!(bits(json!(8)), Ok(()));
    // Four codes in a word may be of 7 bits with gaps.
    assert!(bits(json!(7)).unwrap_err().contains("as config.json says"));
    // A zero point that its codes do not have.
    let zeros = examined(
        "compressed-asymmetric",
        |_| (),
        |tensors| {
            tensors.get_mut("model.layers.0.self_attn.q_proj.weight_zero_point").unwrap().2 = vec![100];
        },
    );
    assert!(zeros.unwrap_err().contains("numbers from -8 to 7"));
}

/// Of which there are as many rows of scales as of the matrix: those could be of groups, too.
#[test]
fn blocks_may_be_of_one_row() {
    let configure = |config: &mut Value| config["quantization_config"]["weight_block_size"] = json!([1, 40]);
    let repeat = |tensors: &mut Tensors| {
        for (name, (dtype, shape, bytes)) in tensors.iter_mut().filter(|(name, _)| name.ends_with("weight_scale_inv")) {
            assert_eq!(*dtype, Dtype::F32, "{name}");
            let rows = bytes.chunks(4 * shape[1]);
            *bytes = rows.flat_map(|row| row.repeat(16)).collect();
            shape[0] *= 16;
        }
    };
    let logits = logits_in_f32(rewritten("fp8-small-block", configure, repeat).path(), &tokens());
    assert!(logits == logits_in_f32(&golden("quantised/models/fp8-small-block"), &tokens()));
}
