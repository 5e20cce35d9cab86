//! Flags of others on command lines.

use super::*;

/// The flags of vLLM 0.33's `serve`, of llama-server and of mlx_lm.server.
const OTHERS: [&str; 3] = [
    include_str!("../../../tests/flags/vllm-0.33.0.txt"),
    include_str!("../../../tests/flags/llama-server.txt"),
    include_str!("../../../tests/flags/mlx_lm.server.txt"),
];

fn of_others() -> impl Iterator<Item = &'static str> {
    OTHERS.iter().flat_map(|list| list.lines()).filter(|line| line.starts_with('-'))
}

fn parsed(arguments: &[&str]) -> Result<(Cli, Vec<String>), clap::Error> {
    parse(&["vllm-apple"].iter().chain(arguments).map(OsString::from).collect::<Vec<_>>())
}

fn refused(arguments: &[&str]) -> String {
    parsed(arguments).unwrap_err().to_string()
}

#[test]
fn every_flag_of_others_is_known_or_advised() {
    let mut program = Cli::command();
    program.build();
    let serve = program.find_subcommand("serve").unwrap();
    let flags: Vec<_> = of_others().collect();
    assert!(flags.len() > 800, "{} flags", flags.len());
    let is_told = |flag: &str| {
        let told = instead(&program, serve, flag);
        !told.contains("no such flag") && !told.contains("did you mean")
    };
    let is_known = |flag: &str| knows(serve, flag) || unneeded::why(flag, None, None).is_some();
    let silent: Vec<_> = flags.into_iter().filter(|flag| !is_known(flag) && !is_told(flag)).collect();
    assert!(silent.is_empty(), "{silent:?}");
}

#[test]
fn every_advice_names_flags_that_there_are() {
    let mut program = Cli::command();
    program.build();
    for flag in of_others() {
        let advice = advice::instead(flag).unwrap_or_default();
        for word in
            advice.split(|c: char| c.is_whitespace() || "`,;:.'\"".contains(c)).filter(|word| word.starts_with("--"))
        {
            let is_known = program.get_subcommands().any(|command| knows(command, word)) || word == "--version";
            assert!(is_known, "{flag}: {advice}");
        }
    }
}

#[test]
fn all_flags_of_others_are_told_at_once() {
    let line = ["serve", "-c", "4096", "--uds=/tmp/s", "--jinja", "-hf", "a/b:Q4_0", "--max-model-lne", "5", "-c", "1"];
    let told = refused(&line);
    for (flag, instead) in [
        ("'-c'", "--max-model-len"),
        ("'--uds'", "--host and --port"),
        ("'-hf'", "without a flag"),
        ("'--max-model-lne'", "did you mean '--max-model-len'?"),
    ] {
        assert!(told.lines().any(|line| line.contains(flag) && line.contains(instead)), "{flag}: {told}");
    }
    assert_eq!((told.matches("'-c'").count(), told.contains("jinja")), (1, false), "{told}");
    assert!(told.contains("Usage: vllm-apple serve [OPTIONS] [MODEL]"), "{told}");
}

#[test]
fn what_is_so_anyway_is_left_out_with_a_warning() {
    let line = "serve --jinja -ngl 99 -tp 1 --tensor-parallel-size=1 -fa on -fa --trust-remote-code a/b";
    let (cli, warnings) = parsed(&line.split(' ').collect::<Vec<_>>()).unwrap();
    assert!(format!("{cli:?}").contains(r#"model: Some("a/b")"#), "{cli:?}");
    assert_eq!(warnings.len(), 7, "{warnings:?}");
    assert_eq!(warnings[1], "warning: -ngl changes nothing: --device has all layers");
    // What stands around it stays apart.
    let swallowed = "serve --served-model-name foo --trust-remote-code a/b";
    let (cli, _) = parsed(&swallowed.split(' ').collect::<Vec<_>>()).unwrap();
    assert!(format!("{cli:?}").contains(r#"model: Some("a/b")"#), "{cli:?}");
    assert!(refused(&["serve", "--api-key", "--jinja", "a/b"]).contains("a value is required for '--api-key"));
    assert!(refused(&["tokenize", "--prompt", "-fa", "hello"]).contains("a value is required for '--prompt"));
    assert!(refused(&["serve", "--allow-credentials", "--no-allow-credentials"]).contains("contradicts"));
    for asks in ["-ngl 0", "-tp 2", "--flash-attn off", "--jinja=1"] {
        refused(&["serve"].into_iter().chain(asks.split(' ')).collect::<Vec<_>>());
    }
}

#[test]
fn a_model_may_have_a_flag() {
    for line in ["serve --served-model-name a b -m x.gguf", "serve --model=x.gguf", "chat -m x.gguf"] {
        let (cli, warnings) = parsed(&line.split(' ').collect::<Vec<_>>()).unwrap();
        assert!(format!("{cli:?}").contains(r#"model: Some("x.gguf")"#) && warnings.is_empty(), "{cli:?}");
    }
    assert!(refused(&["serve", "-m"]).contains("without a flag"));
    assert!(refused(&["doctor", "-m", "x"]).contains("'-m'"));
}

#[test]
fn all_else_is_answered_as_ever() {
    assert!(refused(&["serve", "--max-model-length", "1"]).contains("'--max-model-len'"));
    assert!(refused(&["serve", "--gpu-memory-utilization=0.9"]).contains("--kv-cache-memory 4GiB"));
    assert!(refused(&["serve", "-h"]).contains("--max-model-len"));
    assert!(refused(&["serve", "-t", "0"]).contains("'--threads"), "{}", refused(&["serve", "-t", "0"]));
    assert!(!refused(&["--api-key=secret", "serve"]).contains("secret"));
    assert!(refused(&["serve", "-z"]).contains("'-z': there is no such flag"));
    assert!(refused(&["serve", "a", "b"]).contains("'b'"));
    assert!(refused(&["serve", "--temperature", "1"]).contains("in a request: `temperature`"));
    assert!(refused(&["tokenize", "--max-model-len", "1"]).contains("but serve, generate"));
    assert!(parsed(&["serve", "-t", "2", "-qint8"]).is_ok());
    assert!(parsed(&["serve", "--", "--jinja"]).is_ok());
}

#[test]
fn commands_of_others_are_told_what_to_use() {
    for (line, instead) in [
        (&["complete"][..], "generate"),
        (&["run", "x"], "`vllm-apple chat MODEL`"),
        (&["version"], "--version"),
        (&["owner/name"], "`vllm-apple serve owner/name`"),
        (&["--port", "8000"], "`vllm-apple serve --port`"),
        (&["bench", "serve"], "without a server"),
        (&["srve"], "'serve'"),
    ] {
        assert!(refused(line).contains(instead), "{}", refused(line));
    }
    assert!(refused(&[]).contains("Usage") && refused(&["-V"]).starts_with("vllm-apple "));
}
