//! What config.json alone says of quantised matrices, which would be computed otherwise, or read so.

use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use crate::common::{Tensors, golden, logits_in_f32, rewritten};
use crate::spellings::{examined, tokens, without_groups_of_columns};

/// What compressed-tensors called it first.
#[test]
fn compression_config_says_what_quantization_config_does() {
    let renamed = |config: &mut Value| {
        let fields = config.as_object_mut().unwrap();
        let quantization = fields.remove("quantization_config").unwrap();
        fields.insert("compression_config".to_owned(), quantization);
    };
    assert_eq!(examined("compressed-w4a16", renamed, |_| ()), Ok(()));
    let beside = |config: &mut Value| config["compression_config"] = json!({"quant_method": "bitsandbytes"});
    assert_eq!(examined("compressed-w4a16", beside, |_| ()), Ok(()));
}

#[test]
fn rotated_matrices_are_computed_as_they_are_and_activations_are_not_rotated() {
    let with = |transform: Value| {
        examined("compressed-w4a16", |config| config["quantization_config"]["transform_config"] = transform, |_| ())
    };
    for nothing in [json!(null), json!({})] {
        assert_eq!(with(nothing), Ok(()));
    }
    let at = |locations: &[&str]| {
        let apply: Vec<Value> = locations.iter().map(|at| json!({"location": at, "targets": ["Linear"]})).collect();
        json!({"config_groups": {"R1": {"type": "hadamard", "apply": apply}}})
    };
    assert_eq!(with(at(&["weight_input", "weight_output"])), Ok(()));
    for of_activations in
        [json!({"config_groups": {"R1": {"type": "hadamard"}}}), at(&["weight_input", "input"]), json!({"R": 1})]
    {
        let error = with(of_activations).unwrap_err();
        assert!(error.contains("transform_config") && error.contains("supported are"), "{error}");
    }
}

/// Nothing but config.json says of these that they would be computed otherwise, or read so.
#[test]
fn what_config_json_alone_says_is_not_missed() {
    let with = |model: &str, fields: Value| {
        let configure = |config: &mut Value| {
            let quantization = config["quantization_config"].as_object_mut().unwrap();
            quantization.extend(fields.as_object().unwrap().clone());
        };
        examined(model, configure, |_| ())
    };
    for (model, fields, named) in [
        ("gptq", json!({"rotation": "hadamard"}), "gptq's rotation"),
        ("auto-round", json!({"rotation_config": {"algorithm": "hadamard"}}), "auto-round's rotation_config"),
        ("compressed-w4a16", json!({"sparsity_config": {"format": "sparse-24-bitmask"}}), "sparse-24-bitmask"),
        ("awq", json!({"pack_method": "order"}), "awq's pack_method order"),
        ("awq", json!({"pack_method": "reorder", "zero_point": false}), "without zero points"),
        ("gptq", json!({"is_marlin_format": true}), "gptq's checkpoint_format marlin"),
        ("gptq", json!({"format": "bitblas"}), "gptq's checkpoint_format bitblas"),
        ("auto-round", json!({"packing_format": "auto_round", "data_type": "mx_int"}), "data_type mx_int"),
        ("fp8-tensor", json!({"weight_scale_semantics": "other"}), "weight_scale_semantics other"),
        ("fp8-tensor", json!({"quant_method": null, "load_in_4bit": true}), "bitsandbytes"),
    ] {
        let error = with(model, fields).unwrap_err();
        assert!(error.contains(named) && error.contains("supported are"), "{error}");
    }
    for (model, fields) in [
        ("gptq", json!({"rotation": null})),
        ("gptq", json!({"rotation": ""})),
        ("auto-round", json!({"rotation_config": {}})),
        ("compressed-w4a16", json!({"sparsity_config": {"format": "dense"}})),
        ("awq", json!({"pack_method": "reorder"})),
    ] {
        assert_eq!(with(model, fields), Ok(()));
    }
}

/// GPTQModel's are what their name says.
#[test]
fn scales_may_be_what_weights_are_divided_by() {
    let divided = |scale: [u8; 4]| (1.0 / f32::from_le_bytes(scale)).to_le_bytes();
    let logits = |model: &str, semantics: Value, dtype: Dtype| {
        let configure = |config: &mut Value| config["quantization_config"]["weight_scale_semantics"] = semantics;
        let invert = |tensors: &mut Tensors| {
            let is_scale = |name: &str| name.ends_with("weight_scale_inv") || name.ends_with("weight_scale");
            for (_, (of, _, bytes)) in tensors.iter_mut().filter(|(name, _)| is_scale(name)) {
                assert_eq!(*of, dtype);
                bytes.as_chunks_mut().0.iter_mut().for_each(|scale| *scale = divided(*scale));
            }
        };
        logits_in_f32(rewritten(model, configure, invert).path(), &tokens())
    };
    for model in ["fp8-small-block", "fp8-tensor"] {
        let expected = logits_in_f32(&golden(&format!("quantised/models/{model}")), &tokens());
        let largest = |logits: &[f32]| logits.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Of a quotient's quotient a bit may differ.
        assert!(largest(&logits(model, json!("inverse"), Dtype::F32)) < 1e-4, "{model}");
        assert!(largest(&logits(model, json!(null), Dtype::F32)) > 1.0, "{model}");
    }
}

/// Transformers' `scale_fmt: ue8m0`.
#[test]
fn scales_may_be_exponents() {
    let logits = |as_byte: bool| {
        let change = |tensors: &mut Tensors| {
            let scales = tensors.iter_mut().filter(|(name, _)| name.ends_with("weight_scale_inv"));
            for (_, (dtype, _, bytes)) in scales {
                let exponents = bytes.as_chunks().0.iter().map(|&scale| (u32::from_le_bytes(scale) >> 23) as u8);
                *bytes = match as_byte {
                    true => exponents.collect(),
                    false => exponents.flat_map(|exponent| (u32::from(exponent) << 23).to_le_bytes()).collect(),
                };
                *dtype = if as_byte { Dtype::F8_E8M0 } else { Dtype::F32 };
            }
        };
        logits_in_f32(rewritten("fp8-small-block", |_| (), change).path(), &tokens())
    };
    assert!(logits(true) == logits(false));
}

#[test]
fn gptq_is_named_and_packed_in_several_ways() {
    let logits = |configure: fn(&mut Value), change: fn(&mut Tensors)| {
        move |model: &str| logits_in_f32(rewritten(model, configure, change).path(), &tokens())
    };
    let v2 = logits(|config| config["quantization_config"]["checkpoint_format"] = json!("gptq_v2"), |_| ());
    let by_format = |config: &mut Value| {
        let quantization = config["quantization_config"].as_object_mut().unwrap();
        quantization.remove("checkpoint_format");
        quantization.insert("format".to_owned(), json!("gptq_v2"));
    };
    assert!(v2("gptq-act-order") == logits(by_format, |_| ())("gptq-act-order"));
    let packed = |config: &mut Value| {
        config["quantization_config"] = json!({"quant_method": "auto-round", "packing_format": "auto_round", "bits": 4, "group_size": 32, "sym": false});
    };
    let gptqmodel = |config: &mut Value| {
        config["quantization_config"] = json!({"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel",
            "bits": 4, "group_size": 32, "sym": false});
    };
    assert!(logits(packed, without_groups_of_columns)("gptq") == logits(gptqmodel, without_groups_of_columns)("gptq"));
    // Where some layers differ, groups of the others are still those that config.json says.
    let differ = |config: &mut Value| {
        config["quantization_config"] = json!({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq",
            "bits": 4, "group_size": 40, "sym": false, "extra_config": {"lm_head": {"bits": 16}}});
    };
    let expected = logits_in_f32(&golden("quantised/models/gptq-narrow-end"), &tokens());
    assert!(logits(differ, without_groups_of_columns)("gptq-narrow-end") == expected);
}
