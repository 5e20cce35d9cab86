//! `vllm-apple generate` through the whole program: lines in, lines out.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn a_line_that_is_no_text_fails_alone_also_where_nobody_reads_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("lines.jsonl");
    std::fs::write(&input, b"{\"prompt_token_ids\": [5]}\r\n\n{\"prompt\": \"\xff\"}\n{\"prompt_token_ids\": [6]}\n")
        .unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2");
    let mut process = Command::new(env!("CARGO_BIN_EXE_vllm-apple"))
        .args(["generate", "--device", "cpu", "--max-tokens", "1", "--json", "--input"])
        .args([&input, &model])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(process.stderr.take());
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<Value> =
        output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let [first, second, third] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(first["token_ids"].is_array() && third["token_ids"].is_array(), "{lines:?}");
    assert!(second["error"].as_str().unwrap().starts_with("line 3: not a request"), "{second}");
}
