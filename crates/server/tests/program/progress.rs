//! What the program says without a terminal of work that takes long.

use std::path::Path;
use std::process::Command;

#[test]
fn quantising_is_logged_from_start_to_end_unless_that_is_not_wanted() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama");
    let directory = tempfile::tempdir().unwrap();
    let said = |level: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-apple"));
        command.args(["quantize", "--quantization", "int8"]).arg(&model);
        command.arg(directory.path().join(level.unwrap_or("default"))).env_remove("RUST_LOG");
        command.envs(level.map(|level| ("VLLM_LOGGING_LEVEL", level)));
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    };
    let lines = said(None);
    let (first, last) = (lines.lines().next().unwrap_or_default(), lines.lines().last().unwrap_or_default());
    assert!(first.contains("INFO writing weights: "), "{lines}");
    let (_, counted) = last.split_once("writing weights: ").unwrap();
    let (done, total) = counted.split_once(" of ").unwrap();
    assert_eq!(done, total, "{lines}");
    assert_eq!(said(Some("error")), "");
}

#[test]
fn a_level_that_is_none_is_said_at_the_start() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama");
    let said = |variable: &str, value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-apple"));
        command.args(["tokenize", "--prompt", "hi"]).arg(&model);
        let output = command.env_remove("RUST_LOG").env(variable, value).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (variable, value) in [("VLLM_LOGGING_LEVEL", "nonsense"), ("RUST_LOG", "vllm_apple=dbug")] {
        let (code, stderr) = said(variable, value);
        assert!(code == Some(1) && stderr.starts_with(&format!("error: {variable}={value} ")), "{stderr}");
    }
    // It could be the name of something.
    let (code, stderr) = said("RUST_LOG", "dbug");
    assert!(code == Some(0) && stderr.starts_with("warning: RUST_LOG=dbug: dbug is no level"), "{stderr}");
}
