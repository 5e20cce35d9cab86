//! Orders of columns that cannot be: each is one error that names the tensor, what is expected and what to do. And what else is beside GPTQ's
//! matrices.

use std::path::Path;

use safetensors::tensor::Dtype;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_model::{Checkpoint, LoadError};
use vllm_apple_ops::{DType, permute_columns};

use crate::common::{Tensors, golden, logits_in_f32, options, rewritten};

/// A golden checkpoint with other tensors and a field of `config.json`.
fn changed(name: &str, field: Option<(&str, usize)>, change: impl FnOnce(&mut Tensors)) -> Result<bool, LoadError> {
    let configure = |config: &mut serde_json::Value| {
        if let Some((field, value)) = field {
            config[field] = value.into();
        }
    };
    permutes(rewritten(name, configure, change).path())
}

/// Whether steps bring columns into another order.
fn permutes(directory: &Path) -> Result<bool, LoadError> {
    let (checkpoint, options) = (Checkpoint::open(directory)?, options(DType::F32, 64));
    checkpoint.check(&CpuBackend::new(Some(1)), &options)?;
    Ok(checkpoint.kinds(&options)?.iter().any(|kind| kind.op == permute_columns::NAME))
}

fn integers(values: impl IntoIterator<Item = i32>) -> (Dtype, Vec<usize>, Vec<u8>) {
    let bytes: Vec<u8> = values.into_iter().flat_map(i32::to_le_bytes).collect();
    (Dtype::I32, vec![bytes.len() / 4], bytes)
}

fn zeros(dtype: Dtype, shape: [usize; 2]) -> (Dtype, Vec<usize>, Vec<u8>) {
    let size = if dtype == Dtype::I32 { 4 } else { 2 };
    (dtype, shape.to_vec(), vec![0; shape[0] * shape[1] * size])
}

#[test]
fn an_order_that_is_the_files_costs_nothing() {
    let path = |name: &str| golden(&format!("quantised/models/{name}"));
    assert!(permutes(&path("gptq-act-order")).unwrap() && permutes(&path("compressed-act-order")).unwrap());
    assert!(!permutes(&path("gptq")).unwrap(), "columns are group after group there");
    // As compressed-tensors has it of a matrix for which no order was chosen.
    let of_nothing = changed("compressed-w4a16", None, |tensors| {
        tensors.insert("model.layers.0.self_attn.q_proj.weight_g_idx".to_owned(), integers([-1; 64]));
    });
    assert!(!of_nothing.unwrap());
    // Keys in another order than queries and values, which are in one, and gates alone in one of their own, also of one expert.
    let of_expert = ("gptq-3-mixtral", "layers.1.mlp.experts.2.gate_proj");
    let of_layer = [("gptq-act-order", "layers.1.self_attn.k_proj"), ("gptq", "layers.0.mlp.gate_proj")];
    for (model, matrix) in of_layer.into_iter().chain([of_expert]) {
        let apart = changed(model, None, |tensors| {
            tensors.insert(format!("model.{matrix}.g_idx"), integers((0..64).map(|column| column % 2)));
        });
        assert!(apart.unwrap());
    }
    // Only what gate and up write is in another order.
    let of_down = changed("gptq", None, |tensors| {
        tensors.insert("model.layers.0.mlp.down_proj.g_idx".to_owned(), integers((0..96).map(|column| column % 3)));
    });
    assert!(!of_down.unwrap());
}

/// A matrix whose groups have each other's numbers is the same, and its columns come in another order than those of the other matrix with its input.
#[test]
fn an_experts_gate_may_have_an_order_of_its_own() {
    let swap = |part: &mut (Dtype, Vec<usize>, Vec<u8>)| {
        let half = part.2.len() / 2;
        part.2.rotate_left(half);
    };
    let exchanged = rewritten(
        "gptq-3-mixtral",
        |_| (),
        |tensors| {
            for (name, part) in tensors.iter_mut().filter(|(name, _)| name.contains(".gate_proj.")) {
                match name.rsplit_once('.').unwrap().1 {
                    "g_idx" => *part = integers((0..64).map(|column| 1 - column / 32)),
                    "scales" | "qzeros" => swap(part),
                    _ => (),
                }
            }
        },
    );
    assert!(permutes(exchanged.path()).unwrap());
    let tokens: Vec<u32> = (0..24).map(|i| 7 + 11 * i % 60).collect();
    let logits = |path: &Path| logits_in_f32(path, &tokens);
    let pairs = logits(&golden("quantised/models/gptq-3-mixtral")).into_iter().zip(logits(exchanged.path()));
    // Groups are added up in the other order.
    let worst = pairs.map(|(as_it_was, exchanged)| (as_it_was - exchanged).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn orders_that_cannot_be_are_named() {
    let with = |model: &str, name: &str, groups: Vec<i32>, words: &[&str]| {
        let set = |tensors: &mut Tensors| drop(tensors.insert(name.to_owned(), integers(groups)));
        let error = changed(model, None, set).expect_err("the fault must be found").to_string();
        for word in ["model.safetensors"].iter().chain(words) {
            assert!(error.contains(word), "{name}: \"{error}\" does not say \"{word}\"");
        }
    };
    let in_turn = || (0..64).map(|column| column % 2).collect::<Vec<i32>>();
    let with_first = |group: i32| [vec![group], in_turn()[1..].to_vec()].concat();
    let gate = "model.layers.0.mlp.gate_proj.g_idx";
    let expected = "2 groups of 32 columns each";
    with("gptq-act-order", gate, with_first(2), &[gate, "column 0 in group 2", expected, "download"]);
    with("gptq-act-order", gate, with_first(-1), &[gate, "column 0 in group -1", expected]);
    with("gptq-act-order", gate, with_first(1), &[gate, "31 columns in group 0", expected]);
    with("gptq-act-order", gate, vec![0; 63], &[gate, "[63]", "[64]"]);
    let packed = "model.layers.0.self_attn.o_proj.weight_g_idx";
    with("compressed-act-order", packed, vec![6; 96], &[packed, "column 0 in group 6", "6 groups of 16 columns each"]);
}

#[test]
fn floats_beside_codes_are_refused_of_one_expert_alone() {
    let with_floats = |model: &str, matrix: &str, rows: usize| {
        changed(model, None, |tensors| {
            tensors.retain(|name, _| !name.starts_with(matrix) || name.ends_with("bias"));
            tensors.insert(format!("{matrix}.weight"), zeros(Dtype::F16, [rows, 64]));
        })
    };
    assert!(with_floats("gptq-act-order", "model.layers.0.self_attn.q_proj", 64).unwrap());
    let of_expert = with_floats("fp8-tensor", "model.layers.1.mlp.experts.2.gate_proj", 24);
    let error = of_expert.expect_err("the fault must be found").to_string();
    for word in ["experts.0.gate_proj (e4m3)", "experts.2.gate_proj (not quantised)", "quantise them alike"] {
        assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
    }
}

/// Makes a matrix of floats one of codes of 8 bits in two groups of columns in turn.
fn quantise(tensors: &mut Tensors, name: &str, rows: usize, cols: usize) {
    tensors.remove(&format!("{name}.weight"));
    let mut put = |suffix: &str, part| drop(tensors.insert(format!("{name}.{suffix}"), part));
    put("qweight", zeros(Dtype::I32, [cols / 4, rows]));
    put("qzeros", zeros(Dtype::I32, [2, rows / 4]));
    put("scales", zeros(Dtype::F16, [2, rows]));
    put("g_idx", integers((0..cols as i32).map(|column| column % 2)));
}

#[test]
fn matrices_whose_inputs_nobody_orders_are_named() {
    let of_head = changed("gptq", Some(("vocab_size", 448)), |tensors| {
        tensors.insert("model.embed_tokens.weight".to_owned(), zeros(Dtype::F16, [448, 64]));
        quantise(tensors, "lm_head", 448, 64);
    });
    let error = of_head.expect_err("the fault must be found").to_string();
    for word in ["lm_head.g_idx", "output heads and routers"] {
        assert!(error.contains(word), "\"{error}\" does not say \"{word}\"");
    }
}

/// AutoGPTQ wrote a bias beside every matrix; those of models without biases are zeros.
#[test]
fn biases_that_add_nothing_are_left_out() {
    let with = |name: &str, byte: u8| {
        let bias = (Dtype::F16, vec![64], vec![byte; 128]);
        changed("gptq", None, |tensors| drop(tensors.insert(name.to_owned(), bias)))
    };
    let of_codes = "model.layers.0.self_attn.o_proj.bias";
    assert_eq!(with(of_codes, 0).map_err(|error| error.to_string()), Ok(false));
    for (name, byte) in [(of_codes, 1), ("model.layers.0.input_layernorm.bias", 0)] {
        let error = with(name, byte).expect_err("the model has no such tensor").to_string();
        assert!(error.contains(name) && error.contains("belong to no part"), "{error}");
    }
}
