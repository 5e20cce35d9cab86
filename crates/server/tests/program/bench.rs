//! `vllm-apple bench` through the whole program: what it prints must have been measured, and what it cannot measure it says.

use std::process::{Command, Output};

use serde_json::Value;

/// A short run of the bundled model with these arguments besides.
fn bench(arguments: &[&str]) -> Output {
    let short = ["bench", "--device", "cpu", "--repeat", "1", "--json"];
    Command::new(env!("CARGO_BIN_EXE_vllm-apple")).args(short).args(arguments).output().unwrap()
}

#[test]
fn steps_count_in_which_all_requests_get_a_token() {
    let output = bench(&["--batch", "1,4", "--input-len", "64", "--output-len", "8"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["results"].as_array().unwrap().len(), 2);
    for (result, batch) in report["results"].as_array().unwrap().iter().zip([1.0, 4.0]) {
        let (speed, step) = (&result["decode_tokens_per_s"], &result["decode_ms_per_step"]);
        let tokens = speed.as_f64().unwrap() * step.as_f64().unwrap() / 1e3;
        assert!((tokens - batch).abs() < 1e-6, "{result}");
    }
    // The first has its last token before the last has its first, in steps of so few tokens; or there is memory for one alone.
    for apart in [["--max-num-batched-tokens", "16"], ["--kv-cache-memory", "512KiB"]] {
        let output = bench(&[&["--batch", "8", "--input-len", "64", "--output-len", "4"], &apart[..]].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("in no step did all 8 requests get a token"), "{message}");
    }
}

#[test]
fn absurd_sizes_are_refused() {
    let output = bench(&["--input-len", "18446744073709551615"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("tokens, the model's longest sequence is"));
    let output = bench(&["--input-len", "16", "--output-len", "40", "--max-model-len", "18"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--input-len 16 and --output-len 40 are 56 tokens, --max-model-len is 18"), "{message}");
    let output = bench(&["--threads", "100000"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("from 1 to 1024"));
}

#[test]
fn a_batch_is_not_more_than_a_step_may_have() {
    for (option, most) in [("--max-num-seqs", "4"), ("--max-num-batched-tokens", "7")] {
        let output = bench(&["--batch", "1,8", option, most]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(&format!("--batch 8 needs {option} of at least as many, got {most}")), "{message}");
    }
}
