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
