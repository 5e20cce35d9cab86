//! What the system does not give: room on a disk, long files. Errors name what was being done, and nothing half done is left.

use std::path::Path;
use std::process::{Command, Output};

/// The program in a shell that has done this before.
fn after(setup: &str, arguments: &[&str]) -> Output {
    let script = format!("{setup}; exec \"$0\" \"$@\"");
    let program = env!("CARGO_BIN_EXE_vllm-apple");
    Command::new("sh").args(["-c", &script, program]).args(arguments).output().unwrap()
}

/// The model of this name among the golden ones.
fn golden(name: &str) -> String {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models");
    models.join(name).to_string_lossy().into_owned()
}

#[test]
#[cfg(target_os = "linux")]
fn an_output_that_cannot_be_written_is_named() {
    let output = after("exec >/dev/full", &["tokenize", "--prompt", "hi", &golden("qwen2")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot write standard output: No space left on device"), "{stderr}");
}

/// The system ends a process with a signal that writes more, unless it wants to know of it.
#[test]
fn a_checkpoint_that_is_too_large_for_a_file_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("int8");
    let arguments = ["quantize", "-q", "int8", &golden("qwen2-moe"), path.to_str().unwrap()];
    let output = after("ulimit -f 100", &arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("model.safetensors.part: cannot be written: ") && !path.exists(), "{stderr}");
}

#[test]
fn a_report_that_cannot_be_written_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    let path = path.to_str().unwrap();
    let output = after("ulimit -f 1", &["doctor", "--device", "cpu", "--report", path]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("error: cannot write {path}: ")), "{stderr}");
    assert!(!Path::new(path).exists());
}
