//! The program `msl-sim`: its exit codes and what it prints, with the example of the README.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn msl_sim(arguments: &[&str]) -> Option<Output> {
    if !msl_sim::compile::clang_available() {
        return None;
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("example");
    let output = Command::new(env!("CARGO_BIN_EXE_msl-sim")).args(arguments).current_dir(example).output();
    Some(output.expect("the program runs"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_readme_shows_what_the_program_prints() {
    let readme = include_str!("../README.md");
    for arguments in [&["run", "row_sum.json"][..], &["run", "row_sum_wrong.json"]] {
        let Some(output) = msl_sim(arguments) else { return };
        let shown = format!("$ msl-sim {}\n{}", arguments.join(" "), text(&output.stdout));
        assert!(readme.contains(&shown), "the README does not show:\n{shown}{}", text(&output.stderr));
    }
    for file in ["row_sum.metal", "row_sum.json"] {
        let content =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("example").join(file)).unwrap();
        assert!(readme.contains(content.trim()), "the README does not show {file}");
    }
}

#[test]
fn exit_codes_say_what_was_found() {
    let Some(right) = msl_sim(&["run", "row_sum.json", "--json"]) else { return };
    assert_eq!(right.status.code(), Some(0), "{}", text(&right.stderr));
    let report: Value = serde_json::from_slice(&right.stdout).expect("JSON");
    assert_eq!(report["findings"], serde_json::json!([]));
    assert_eq!(report["traffic"]["loaded"], 4 * 1000 * 4);
    assert_eq!(report["outputs"]["buffer(1)"][0], "499500");
    let wrong = msl_sim(&["run", "row_sum_wrong.json", "--json"]).unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{}", text(&wrong.stderr));
    let report: Value = serde_json::from_slice(&wrong.stdout).expect("JSON");
    assert_eq!(report["findings"][0]["file"], "row_sum.metal");
    let missing = msl_sim(&["run", "no_such_file.json"]).unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("no_such_file.json"));
}

#[test]
fn sources_are_checked() {
    let Some(right) = msl_sim(&["check", "row_sum.metal"]) else { return };
    assert_eq!((right.status.code(), text(&right.stdout).as_str()), (Some(0), ""), "{}", text(&right.stderr));
    let wrong = msl_sim(&["check", "row_sum.metal", "-D", "lane=3", "--json"]).unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{}", text(&wrong.stderr));
    let lints: Value = serde_json::from_slice(&wrong.stdout).expect("JSON");
    let is_error = |lint: &Value| lint["severity"] == "error" && lint["file"] == "row_sum.metal";
    assert!(lints.as_array().unwrap().iter().any(is_error), "{lints:#}");
}

#[test]
fn code_is_generated_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let source = "kernel void f(device uint* y [[buffer(0)]]) { uint a[100000]; for (uint i = 0; i < 100000; i++) a[i] = y[i]; y[0] = a[y[1]]; }";
    let Some(checked) = run_in(directory.path(), &[("f.metal", source)], &["check", "f.metal"]) else { return };
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let built = run_in(directory.path(), &[], &["check", "--build", "f.metal"]).unwrap();
    assert!(!built.status.success() && text(&built.stderr).contains("stack"), "{}", text(&built.stderr));
    let right = msl_sim(&["check", "--build", "row_sum.metal"]).unwrap();
    assert_eq!((right.status.code(), text(&right.stdout).as_str()), (Some(0), ""), "{}", text(&right.stderr));
}

/// Files in a directory of their own, where the program then runs.
fn run_in(directory: &Path, files: &[(&str, &str)], arguments: &[&str]) -> Option<Output> {
    if !msl_sim::compile::clang_available() {
        return None;
    }
    for (name, content) in files {
        std::fs::write(directory.join(name), content).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_msl-sim")).args(arguments).current_dir(directory).output();
    Some(output.expect("the program runs"))
}

const SCALE: &str = "#include <metal_stdlib>
#include \"msl_part.h\"
constant float factor [[function_constant(0)]];
kernel void scale(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  fetch(y, i) *= is_function_constant_defined(factor) ? factor : 3;
}
";
/// A user's header whose name is like those of Metal's own here.
const PART: &str = "inline device float& fetch(device float* y, uint i) {
  y[i] += 1;
  return y[i];
}
";

fn scale(constants: &str, buffer: &str, threads: &str) -> String {
    format!(
        r#"{{ "file": "scale.metal", "function": "scale", "constants": [{constants}],
             "arguments": [{{ "buffer": 0, {buffer}, "print": 2 }}], "threads": {threads}, "threads_per_threadgroup": [4, 1, 1] }}"#
    )
}

#[test]
fn constants_may_be_left_undefined() {
    for (constants, code, expected) in [
        (r#"{ "index": 0, "type": "float", "value": 2 }"#, 0, "buffer(0): 2 4\n"),
        (r#"{ "index": 0, "type": "float", "value": null }"#, 0, "buffer(0): 3 6\n"),
        (r#"{ "index": 0 }"#, 0, "buffer(0): 3 6\n"),
        (r#"{ "index": 0, "value": 2 }"#, 2, "function constant 0: `type` is missing"),
        ("", 2, "[[function_constant(0)]] is not among `constants`: list it"),
    ] {
        let json = scale(constants, r#""type": "float", "count": 2, "fill": "iota""#, "[2, 1, 1]");
        let files = [("scale.metal", SCALE), ("msl_part.h", PART), ("scale.json", &json)];
        let directory = tempfile::tempdir().unwrap();
        let Some(output) = run_in(directory.path(), &files, &["run", "scale.json"]) else { return };
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(expected), "{constants}: {said}");
    }
}

#[test]
fn a_wrong_description_is_explained() {
    let constant = r#"{ "index": 0 }"#;
    let right = r#""type": "float", "count": 2"#;
    for (buffer, threads, expected) in [
        (
            r#""type": "flot", "count": 2"#,
            "[2, 1, 1]",
            "argument { \"buffer\": 0, … }: unknown variant `flot`, expected one of `float`, `half`",
        ),
        (r#""type": "float", "number": 2"#, "[2, 1, 1]", "argument { \"buffer\": 0, … }: unknown field `number`"),
        (
            right,
            "[0, 1, 1]",
            "kernel scale: a grid of 0 x 1 x 1 threads, with 4 x 1 x 1 threads in a threadgroup, has no threads",
        ),
    ] {
        let json = scale(constant, buffer, threads);
        let files = [("scale.metal", SCALE), ("msl_part.h", PART), ("scale.json", &json)];
        let directory = tempfile::tempdir().unwrap();
        let Some(output) = run_in(directory.path(), &files, &["run", "scale.json"]) else { return };
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(expected), "{said}");
    }
    let json = r#"{ "file": "scale.metal", "function": "scale", "arguments": [{ "bufer": 0 }], "threads_per_threadgroup": [4, 1, 1] }"#;
    let directory = tempfile::tempdir().unwrap();
    let Some(output) = run_in(directory.path(), &[("scale.json", json)], &["run", "scale.json"]) else { return };
    let said = text(&output.stderr);
    assert!(said.contains("argument {\"bufer\":0} has none of the keys buffer, bytes, threadgroup"), "{said}");
}

/// A library comes from the cache wherever the same file lies; a finding names it as it was named this time, and a header by its own
/// name.
#[test]
fn findings_name_files_as_the_description_does() {
    let json = scale(r#"{ "index": 0 }"#, r#""type": "float", "count": 2"#, "[3, 1, 1]");
    let files = [("scale.metal", SCALE), ("msl_part.h", PART), ("scale.json", &json)];
    for directory in [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()] {
        let Some(output) = run_in(directory.path(), &files, &["run", "scale.json", "--json"]) else { return };
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let finding = report["findings"].as_array().unwrap().iter().find(|finding| finding["line"] == 2);
        let finding = finding.unwrap_or_else(|| panic!("{report:#}"));
        assert_eq!((&finding["file"], &finding["kind"]), (&"msl_part.h".into(), &"out_of_bounds".into()), "{report:#}");
        let place = serde_json::json!({ "buffer": 0, "name": "y", "offset": 8, "length": 8 });
        assert_eq!((&finding["place"], &finding["size"]), (&place, &4.into()), "{report:#}");
        let at = |line: u32| report["findings"].as_array().unwrap().iter().find(|finding| finding["line"] == line);
        assert_eq!(at(5).unwrap_or_else(|| panic!("{report:#}"))["file"], "scale.metal");
    }
}

#[test]
fn nobody_has_to_read_on() {
    let Some(_) = msl_sim(&["run", "row_sum.json"]) else { return };
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("example");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_msl-sim"))
        .args(["run", "row_sum_wrong.json"])
        .current_dir(example)
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(1), ""));
}
