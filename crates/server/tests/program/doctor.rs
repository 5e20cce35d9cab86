//! `doctor` and the software Metal device through the whole program, as a user runs them.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vllm-apple")).args(arguments).env("VLLM_METAL_STRICT", "1").output().unwrap()
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::str::from_utf8(&output.stdout).unwrap()
}

/// The rows of ops, all of which pass, and those of traffic. Facts and choices are always there.
pub(super) fn examine(device: &str, facts: &[&str], choices: &[&str]) -> [Vec<Value>; 2] {
    let report: Value = serde_json::from_str(stdout(&run(&["doctor", "--device", device, "--json"]))).unwrap();
    assert_eq!(report["pass"], true);
    let of_every_device = [
        "weights and activations of a bfloat16 checkpoint",
        "its KV cache",
        "weights, KV cache and scratch",
        "KV cache",
    ];
    for (rows, names) in
        [(&report["device"]["facts"], facts), (&report["choices"], choices), (&report["choices"], &of_every_device)]
    {
        assert!(names.iter().all(|name| rows[name].is_string()), "{names:?}: {rows}");
    }
    ["ops", "traffic"].map(|name| report[name].as_array().unwrap().clone())
}

#[test]
fn every_op_passes_on_the_cpu_which_counts_no_traffic() {
    let [ops, traffic] = examine("cpu", &["memory", "processor", "threads"], &[]);
    assert!(ops.iter().any(|op| op["op"] == "paged_attention"));
    assert!(ops.iter().all(|op| op["moved_to_minimum"].is_null()));
    assert!(traffic.is_empty());
}

#[test]
fn a_report_has_the_machine_the_speed_and_the_comparison_of_answers_and_no_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    // Nobody reads the table, which is no reason to lose the report.
    let mut process = Command::new(env!("CARGO_BIN_EXE_vllm-apple"))
        .args(["doctor", "--device", "cpu", "--report", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(process.stdout.take());
    assert!(process.wait().unwrap().success());
    let text = std::fs::read_to_string(&path).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["pass"], &report["problems"]), (&Value::Bool(true), &Value::Array(Vec::new())));
    assert!(report["ops"].as_array().unwrap().len() > 20);
    assert!(report["system"]["os"].is_string() && report["program"]["version"].is_string(), "{text}");
    let limits = &report["limits"];
    assert!(limits["read_bandwidth_gb_per_s"].as_f64().is_some_and(|gbps| gbps > 0.0), "{text}");
    assert!(limits["peak_gflop_per_s"].as_f64().is_some_and(|gflops| gflops > 0.0), "{text}");
    let bench = &report["model"]["bench"];
    assert_eq!(bench["results"].as_array().unwrap().len(), 2);
    assert!(bench["start"].is_string() && bench["facts"]["processor"].is_string(), "{text}");
    assert_eq!(report["model"]["invariance"]["different"], Value::Array(Vec::new()));
    let home = std::env::var("HOME").unwrap();
    assert!(!text.contains(&home) && !text.contains(directory.path().to_str().unwrap()), "{text}");
}

#[test]
fn a_device_that_is_not_there_leaves_no_report() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-apple"))
        .args(["doctor", "--device", "software-metal", "--report"])
        .arg(&path)
        .env("MSL_SIM_CLANG", "/no/such/compiler")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(!path.exists());
}

/// A compiler that takes no kernel: under VLLM_METAL_STRICT=1 neither the self-test nor the counting of bytes gets anywhere.
#[cfg(unix)]
#[test]
fn the_verdicts_are_printed_where_everything_else_fails() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    let compiler = directory.path().join("clang");
    let script = r#"#!/bin/sh
clang=$(command -v clang++-19 || command -v clang++-20 || command -v clang++-18 || command -v clang++)
case " $* " in *" -E "*) ;; *) exec "$clang" "$@" ;; esac
source=$(mktemp -p "${0%/*}") && cat > "$source"
grep -q metal_stdlib "$source" && { echo "no kernels today" >&2; exit 1; }
"$clang" "$@" < "$source"
"#;
    std::fs::write(&compiler, script).unwrap();
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = directory.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-apple"))
        .args(["doctor", "--device", "software-metal", "--report"])
        .arg(&path)
        .env("VLLM_METAL_STRICT", "1")
        .env("MSL_SIM_CLANG", &compiler)
        .env("MSL_SIM_CACHE", directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |op: &str| text.lines().find(|line| line.starts_with(op)).unwrap_or_else(|| panic!("no {op}: {text}"));
    assert!(row("rms_norm").ends_with("FAIL") && row("paged_attention").ends_with("FAIL"), "{text}");
    assert!(text.contains("no kernels today"), "{text}");
    assert!(text.contains("the engine would not start") && text.contains("memory traffic was not counted"), "{text}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("do not meet their tolerance"), "{message}");

    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(report["pass"], false);
    assert!(report["problems"][0].as_str().unwrap().contains("VLLM_METAL_STRICT=1"), "{report}");
    assert!(report["ops"].as_array().unwrap().iter().all(|op| op["pass"] == false));
}

/// The greedy tokens of each family's checkpoint, as recorded with transformers, from the Metal kernels alone.
#[test]
fn the_software_device_generates_what_transformers_does() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut checked = 0;
    for entry in std::fs::read_dir(golden.join("models")).unwrap() {
        let model = entry.unwrap().path();
        let name = model.file_name().unwrap().to_str().unwrap();
        let record = std::fs::read_to_string(golden.join(format!("logits/{name}.json"))).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        // A prompt of 40 tokens: prefill in tiles of many rows, then decode.
        let prompt = &record["prompts"][2];
        let ids = |value: &Value| {
            value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap().to_string()).collect::<Vec<_>>()
        };
        let (input, greedy) = (ids(&prompt["token_ids"]).join(","), ids(&prompt["greedy"]));
        assert!(!greedy.is_empty());
        let (length, tokens) = (prompt["max_model_len"].to_string(), greedy.len().to_string());
        let flags =
            ["--device", "software-metal", "--dtype", "float32", "--temperature", "0", "--ignore-eos", "--json"];
        let sizes = ["--prompt-token-ids", &input, "--max-tokens", &tokens, "--max-model-len", &length];
        let model = ["generate", model.to_str().unwrap(), "--kv-cache-memory", "64MiB"];
        let output = run(&[&model[..], &flags, &sizes].concat());
        let result: Value = serde_json::from_str(stdout(&output)).unwrap();
        assert_eq!(ids(&result["token_ids"]), greedy, "{name}");
        checked += 1;
    }
    assert!(checked >= 14, "{checked}");
}

#[test]
fn a_device_that_the_command_line_names_wins_over_the_environment() {
    let stderr = |device: &str, use_engine: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-apple"))
            .args(["doctor", "--device", device])
            .env("VLLM_APPLE_USE_ENGINE", use_engine)
            .env("MSL_SIM_CLANG", "/no/such/compiler")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let message = stderr("software-metal", "0");
    assert!(message.contains("VLLM_APPLE_USE_ENGINE=0 is ignored"), "{message}");
    assert!(message.contains("the software Metal device"), "it was opened: {message}");
    for device in ["cpu", "software-metal"] {
        let message = stderr(device, "no");
        assert!(message.contains("VLLM_APPLE_USE_ENGINE must be 0 or 1, got \"no\""), "{message}");
    }
}

#[cfg(not(target_os = "macos"))]
#[test]
fn where_there_is_no_metal_the_error_says_what_to_do() {
    let output = run(&["generate", "--device", "metal", "--prompt", "Hello"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--device cpu"), "{message}");
}
