//! `vllm-apple verify` of the bundled model through the whole program: exit codes, and what stands in the report. The sections' own tests are
//! beside them.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The command with a home of its own.
fn command(home: &TempDir, arguments: &[&str]) -> Command {
    let cache = home.path().join("cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-apple"));
    command
        .arg("verify")
        .args(arguments)
        .env("HOME", home.path())
        .env("XDG_CACHE_HOME", cache)
        // No op of the software Metal device may be computed on the host; its compiled kernels are kept from run to run.
        .env("VLLM_METAL_STRICT", "1")
        .env("MSL_SIM_CACHE", crate::compiled_kernels());
    command
}

fn verify(home: &TempDir, arguments: &[&str]) -> Output {
    command(home, arguments).output().unwrap()
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
    assert!(report["judged"].as_u64().unwrap() >= 8, "{report}");
}

/// Rounded activations are what the references multiply, too, and in float32 the bound is what that costs them.
#[test]
fn activations_of_8_bits_are_judged_as_such() {
    let quantised = ["--quantization", "int4", "--activation-dtype", "int8"];
    let report = passes(&[&quantised[..], &["--device", "cpu", "--only", "layers"]].concat());
    assert_eq!(report["sections"][0]["name"], "layers");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen2");
    let in_float32 = ["--device", "cpu", "--dtype", "float32", "--max-model-len", "64", "--only", "equivalence", model];
    let report = passes(&[&quantised[..], &in_float32].concat());
    assert_eq!(report["judged"], 5, "{report}");
}

/// The Metal kernels, by a model with experts whose sequences reach into a second block of the cache: beside their references op by op and as
/// a whole, and the same bits in batches, chunks, from the cache and again.
#[test]
fn the_software_metal_device_is_examined() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen3-moe");
    let sections = ["--only", "equivalence,layers,invariance,determinism"];
    let small = [model, "--device", "software-metal", "--max-model-len", "24", "--block-size", "16"];
    let report = passes(&[&small[..], &sections[..]].concat());
    assert!(fact(&report, "device").contains("metal"));
    assert_eq!(fact(&report, "ops on the host"), "none");
    let lines: Vec<&Value> = report["sections"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|section| section["lines"].as_array().unwrap())
        .collect();
    for op in [
        "paged_attention",
        "grouped_matmul",
        "topk_softmax",
        "in steps of up to 16 tokens",
        "with cached beginnings",
        "tokens found in the prefix cache",
        "ops that the host computes",
    ] {
        let of = lines.iter().find(|line| line["what"].as_str().unwrap().starts_with(op));
        assert_eq!(of.unwrap_or_else(|| panic!("{op}"))["outcome"], "pass", "{op}");
    }
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

/// A run that is ended says what it found, and that it did not find all; another one does not write to its directory meanwhile.
#[test]
fn a_run_that_is_ended_leaves_a_report_that_does_not_pass() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("report");
    let at = directory.to_string_lossy().into_owned();
    let mut command =
        command(&home, &["--device", "cpu", "--only", "determinism,soak", "--soak", "1h", "--report", &at]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let passed = || {
        let text = std::fs::read_to_string(directory.join("report.json")).unwrap_or_default();
        serde_json::from_str::<Value>(&text)
            .ok()
            .filter(|report| report["sections"][0]["lines"][0]["outcome"] == "pass")
    };
    while passed().is_none() && begun.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let other = verify(&home, &["--device", "cpu", "--only", "determinism", "--report", &at]);
    run.kill().unwrap();
    run.wait().unwrap();
    let report = passed().unwrap();
    assert_eq!((&report["pass"], &report["sections"][1]["lines"][0]["outcome"]), (&false.into(), &"fail".into()));
    assert!(read(&directory, "report.html").contains("the program was ended before it"));
    let stderr = String::from_utf8_lossy(&other.stderr);
    assert!(other.status.code() == Some(1) && stderr.contains("another run"), "{stderr}");
}

/// What a directory is called, here `.`, is no word of the report; and whoever reads only the first lines does not keep it from being written.
#[test]
fn names_of_places_are_taken_out_and_nothing_else_and_a_closed_output_stops_nothing() {
    let home = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/models/qwen2");
    let directory = home.path().join("report");
    let at = directory.to_string_lossy().into_owned();
    let mut command = command(&home, &["--device", "cpu", "--only", "determinism", "--report", &at, "."]);
    let mut run = command.current_dir(model).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(run.stdout.take());
    assert!(run.wait().unwrap().success());
    let report: Value = serde_json::from_str(&read(&directory, "report.json")).unwrap();
    assert_eq!((&report["pass"], fact(&report, "model")), (&true.into(), "qwen2"));
    assert!(fact(&report, "program").contains(env!("CARGO_PKG_VERSION")), "{report}");
}

#[test]
fn a_model_of_too_short_sequences_is_not_said_to_be_right() {
    let home = tempfile::tempdir().unwrap();
    let output = verify(&home, &["--device", "cpu", "--max-model-len", "2", "--only", "soak,invariance,concurrency"]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("3 skipped") && stderr.contains("nothing was examined"), "{stdout}{stderr}");
}

#[test]
fn weights_that_are_no_numbers_are_named_as_the_cause() {
    let home = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen2");
    for file in std::fs::read_dir(golden).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), home.path().join(file.file_name())).unwrap();
    }
    let path = home.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    let model = home.path().to_string_lossy().into_owned();
    let output = verify(&home, &[&model, "--device", "cpu", "--only", "layers,determinism"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("look at: the weights"), "{stdout}");
    assert!(
        stdout.contains("FAIL  determinism: examination: it failed: a request ended without a token: the model's"),
        "{stdout}"
    );
}

#[test]
fn a_reference_that_nothing_reads_is_refused() {
    let output = verify(&tempfile::tempdir().unwrap(), &["--only", "layers", "--reference", "none.safetensors"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("equivalence"), "{stderr}");
}

#[test]
fn a_section_that_there_is_not_is_refused() {
    let output = verify(&tempfile::tempdir().unwrap(), &["--only", "soaked"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("token-cap") && stderr.contains("concurrency"), "{stderr}");
}
