//! `vllm-apple verify` of the bundled model through the whole program: exit codes, and what stands in the report. The sections' own tests are
//! beside them.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Runs the command with a home of its own.
fn verify(home: &TempDir, arguments: &[&str]) -> Output {
    let cache = home.path().join("cache");
    Command::new(env!("CARGO_BIN_EXE_vllm-apple"))
        .arg("verify")
        .args(arguments)
        .env("HOME", home.path())
        .env("XDG_CACHE_HOME", cache)
        // No op of the software Metal device may be computed on the host; its compiled kernels are kept from run to run.
        .env("VLLM_METAL_STRICT", "1")
        .env("MSL_SIM_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/msl-sim"))
        .output()
        .unwrap()
}

fn read(path: &Path, name: &str) -> String {
    std::fs::read_to_string(path.join(name)).unwrap()
}

/// A report with these arguments, which passes.
fn passes(arguments: &[&str]) -> Value {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("report");
    let at = directory.to_string_lossy().into_owned();
    let output = verify(&home, &[arguments, &["--report", &at]].concat());
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    let [json, markdown, html] = ["report.json", "report.md", "report.html"].map(|name| read(&directory, name));
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["pass"], &report["failures"]), (&true.into(), &0.into()));
    for section in report["sections"].as_array().unwrap() {
        let title = section["title"].as_str().unwrap();
        assert!([&*stdout, &markdown, &html].iter().all(|form| form.contains(title)), "{title}");
        assert!(!section["lines"].as_array().unwrap().is_empty(), "{title}");
    }
    for form in [&json, &markdown, &html] {
        assert!(!form.contains(&*home.path().to_string_lossy()), "a report names no places");
    }
    report
}

fn fact<'a>(report: &'a Value, name: &str) -> &'a str {
    report["facts"][name].as_str().unwrap_or_default()
}

#[test]
fn a_selection_of_sections_passes_on_the_cpu() {
    let report = passes(&["--device", "cpu", "--only", "soak,concurrency", "--soak", "1s"]);
    let names: Vec<_> = report["sections"].as_array().unwrap().iter().map(|section| &section["name"]).collect();
    assert_eq!(names, ["soak", "concurrency"]);
    assert!(fact(&report, "weights").starts_with("sha256 "), "{report}");
    assert_eq!(fact(&report, "model"), "demo");
    assert!(fact(&report, "program").contains(env!("CARGO_PKG_VERSION")), "{report}");
    assert!(report["sections"][0]["plots"].as_array().unwrap().len() == 2);
}

#[test]
fn a_selection_of_sections_passes_on_the_software_metal_device() {
    let small = ["--device", "software-metal", "--only", "soak", "--soak", "0.1s", "--max-model-len", "8"];
    assert!(fact(&passes(&small), "device").contains("metal"));
}

#[test]
fn what_fails_is_named_and_ends_with_code_1() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("none.safetensors");
    std::fs::write(&path, "none").unwrap();
    let output = verify(&home, &["--device", "cpu", "--only", "equivalence", "--reference", &path.to_string_lossy()]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("FAIL") && stdout.contains("the reference"), "{stdout}");
    assert!(stderr.contains("1 of 1 lines fail"), "{stderr}");
}

#[test]
fn a_section_that_there_is_not_is_refused() {
    let output = verify(&tempfile::tempdir().unwrap(), &["--only", "soaked"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("token-cap") && stderr.contains("concurrency"), "{stderr}");
}
