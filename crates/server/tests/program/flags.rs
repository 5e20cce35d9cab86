//! Command lines that are refused, and those that are not: what others' flags, variables of the environment and names of models come to.

use std::process::{Command, Output};

/// The program with these arguments and variables; nothing that it is asked here goes to the network.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vllm-apple"));
    for name in
        ["VLLM_APPLE_DEVICE", "VLLM_APPLE_THREADS", "VLLM_APPLE_ACTIVATION_DTYPE", "VLLM_API_KEY", "HF_HUB_OFFLINE"]
    {
        program.env_remove(name);
    }
    let cache = tempfile::tempdir().unwrap();
    // Port 9 (discard) answers nobody.
    program.env("HF_ENDPOINT", "http://127.0.0.1:9").env("HF_HUB_CACHE", cache.path());
    let Output { status, stderr, .. } = program.args(arguments).envs(variables.iter().copied()).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// A command line that ends at once, with all of these words.
#[track_caller]
fn refused(code: i32, line: &str, variables: &[(&str, &str)], words: &[&str]) -> String {
    let (status, said) = run(&line.split(' ').collect::<Vec<_>>(), variables);
    assert_eq!(status, Some(code), "{line}: {said}");
    for word in words {
        assert!(said.contains(word), "{line}: {word}: {said}");
    }
    said
}

#[test]
fn flags_of_others_are_refused_together_or_left_out() {
    let line = "serve -m x.gguf -c 4096 --uds /tmp/s --jinja";
    let said = refused(2, line, &[], &["'-c': use --max-model-len", "'--uds': ", "Usage: vllm-apple serve"]);
    assert!(!said.contains("-- --"), "{said}");
    refused(1, "serve -m x.gguf -ngl 99", &[], &["warning: -ngl changes nothing", "x.gguf: no such directory or file"]);
}

#[test]
fn a_model_that_another_flag_took_is_missed() {
    refused(1, "serve --served-model-name foo owner/name", &[], &["serve owner/name --served-model-name"]);
    let said = refused(1, "serve --api-key key owner/name", &[], &["before --api-key"]);
    assert!(!said.contains("owner/name"), "it may be a key: {said}");
}

#[test]
fn a_name_that_is_nothing_here_says_so_first() {
    let said = refused(1, "serve b", &[], &["error: there is no file or directory b here, and b: ", "127.0.0.1:9"]);
    assert!(!said.contains("resume"), "nothing has arrived: {said}");
    refused(1, "serve owner/name", &[("HF_ENDPOINT", "foo")], &["error: HF_ENDPOINT is \"foo\""]);
}

#[test]
fn variables_stand_for_flags_and_are_named() {
    for (name, expected) in [
        ("VLLM_APPLE_DEVICE", "possible values: auto, cpu"),
        ("VLLM_APPLE_THREADS", "from 1 to 1024"),
        ("VLLM_APPLE_ACTIVATION_DTYPE", "possible values: "),
    ] {
        refused(2, "bench b", &[(name, "many")], &[&format!("'many' for '{name}'"), expected]);
        // Empty is unset, and a flag comes first.
        refused(1, "bench b", &[(name, "")], &["directory b"]);
    }
    refused(1, "bench b --device cpu", &[("VLLM_APPLE_DEVICE", "metal")], &["directory b"]);
    refused(2, "serve b", &[("VLLM_API_KEY", "")], &["'VLLM_API_KEY'"]);
}

#[test]
fn what_a_command_does_not_read_is_refused() {
    for flag in ["--seed 5", "--no-enable-prefix-caching", "--generation-config vllm", "--chat-template x.jinja"] {
        let flag_alone = flag.split(' ').next().unwrap();
        refused(1, &format!("verify --only invariance {flag}"), &[], &[flag_alone, "the section concurrency"]);
        refused(2, &format!("doctor {flag}"), &[], &[&format!("'{flag_alone}': `vllm-apple doctor` does not read it")]);
        refused(2, &format!("bench {flag}"), &[], &["`vllm-apple bench` does not read it, but serve"]);
    }
}

#[test]
fn values_are_refused_in_words_of_their_own() {
    for (line, expected) in [
        ("serve --port 80x", "from 0 to 65535"),
        ("serve --seed -1", "from 0 to 18446744073709551615"),
        ("serve --max-waiting -1", "a whole number"),
        ("serve --max-model-len 1.5", "32K or 32k"),
        ("serve --host http://localhost", "--port has the port"),
        ("serve --served-model-name=", "a value is required"),
        ("serve --shutdown-timeout abc", "a whole number"),
    ] {
        refused(2, line, &[], &[expected]);
    }
    let (status, said) = run(&["generate", "--prompt-token-ids", "5, 6", "--temperature", "-1"], &[]);
    assert!(status == Some(1) && said.contains("temperature"), "{said}");
}
