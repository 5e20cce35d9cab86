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

/// The file was written by tools/reference.py with `--lengths 40 --positions 6 --dtypes bfloat16`.
#[test]
fn what_transformers_computed_is_met_and_what_it_did_not_is_named() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let (model, reference) = (golden.join("models/qwen2"), golden.join("reference-qwen2.safetensors"));
    let arguments = |reference: &Path| -> Vec<String> {
        let all = ["--device", "cpu", "--dtype", "float32", "--only", "equivalence", "--reference"].map(str::to_owned);
        let model = model.to_string_lossy().into_owned();
        [model].into_iter().chain(all).chain([reference.to_string_lossy().into_owned()]).collect()
    };
    let of_file = arguments(&reference);
    let report = passes(&of_file.iter().map(String::as_str).collect::<Vec<_>>());
    let lines = report["sections"][0]["lines"].as_array().unwrap();
    let of = |what: &str| lines.iter().filter(|line| line["what"].as_str().unwrap().starts_with(what)).count();
    assert!(of("hidden states after each of 3 layers") == 1 && of("first tokens") >= 5, "{lines:?}");

    // The last value that the second layer left of the first prompt is another.
    let mut bytes = std::fs::read(&reference).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let hidden = &tensors["prompt.0.hidden"];
    let [begin, end] = [0, 1].map(|i| hidden["data_offsets"][i].as_u64().unwrap() as usize);
    let of_layer = (end - begin) / hidden["shape"][0].as_u64().unwrap() as usize;
    bytes[header + begin + 3 * of_layer - 4..][..4].copy_from_slice(&9.0f32.to_le_bytes());
    let home = tempfile::tempdir().unwrap();
    let wrong = home.path().join("wrong.safetensors");
    std::fs::write(&wrong, bytes).unwrap();
    let of_file = arguments(&wrong);
    let output = verify(&home, &of_file.iter().map(String::as_str).collect::<Vec<_>>());
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("the first layer beyond the bound is 1"), "{stdout}");
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
