//! `--speculative-config`: the bundled model repeats itself, which takes fewer steps then, and says the same.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::serve::{RUN, Server};

const CONFIG: &str =
    r#"{"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1, "prompt_lookup_max": 4}"#;

const PROMPTS: [&str; 6] = [
    "one two three four one two three four one two three",
    "def reverse(word):\n    return word[::-1]\n\ndef reverse(word):\n",
    "Once upon a time there was a fox. Once upon a time there was a",
    "The fox said: hello, hello, hello, hello,",
    "a",
    "1 + 1 = 2\n1 + 2 = 3\n1 + 3 = 4\n",
];

/// What the program answers to all prompts at once, token by token with log-probabilities.
fn answers(sampling: &str, speculative: bool) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-apple"));
    command
        .args(["generate", "--input", "-", "--json", "--logprobs", "3", "--max-tokens", "48"])
        .args(sampling.split(' '));
    if speculative {
        command.args(["--speculative-config", CONFIG]);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines: String = PROMPTS.iter().map(|prompt| format!("{}\n", json!({"prompt": prompt}))).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn no_bit_of_an_answer_tells_of_drafts() {
    for sampling in [
        "--temperature 0 --ignore-eos",
        "--temperature 0.7 --seed 5 --top-p 0.9 --repetition-penalty 1.1 --frequency-penalty 0.2",
    ] {
        let plain = answers(sampling, false);
        assert_eq!(plain.lines().count(), PROMPTS.len());
        assert_eq!(answers(sampling, true), plain, "{sampling}");
    }
}

/// Asks a server of the bundled model, and returns the answer and the counters of its metrics that `names` name.
async fn ask(arguments: &[&str], names: &[&str]) -> (Value, Vec<f64>) {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    let server = Server::start(RUN, &model, arguments);
    // Waits for the model.
    server.complete().await.unwrap();
    let url = |path: &str| format!("http://{}{path}", server.address);
    let body = json!({"prompt": PROMPTS[0], "max_tokens": 60, "temperature": 0, "ignore_eos": true});
    let client = reqwest::Client::new();
    let answer: Value = client.post(url("/v1/completions")).json(&body).send().await.unwrap().json().await.unwrap();
    let metrics = client.get(url("/metrics")).send().await.unwrap().text().await.unwrap();
    let counter = |name: &&str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("vllm:{name}_total{{"))).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    (answer["choices"][0]["text"].clone(), names.iter().map(counter).collect())
}

#[tokio::test]
async fn drafts_that_are_right_are_counted() {
    let names = ["spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"];
    let (plain, none) = ask(&[], &names).await;
    assert_eq!(none, [0.0; 3]);
    let (text, counts) = ask(&["--speculative-config", CONFIG], &names).await;
    assert_eq!(text, plain);
    assert!(counts[0] > 0.0 && counts[1] >= counts[2] && counts[2] > 3.0, "{counts:?}");
}

#[test]
fn a_method_that_there_is_not_is_refused_at_once() {
    let draft_model = r#"{"model": "a/b", "num_speculative_tokens": 3}"#;
    let program = env!("CARGO_BIN_EXE_vllm-apple");
    let output = Command::new(program).args(["serve", "--speculative-config", draft_model]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("--speculative-config") && error.contains("expected \"ngram\""),
        "{error}"
    );
}
