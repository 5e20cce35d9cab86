//! Signals and exit codes, with a server in a process of its own: this test program, started again.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::json;
use tokio::net::TcpListener;
use vllm_apple::http::{App, AppConfig, serve, shutdown_signal};
use vllm_apple_engine::fake::Fault;

use crate::support::{Setup, events, patiently};

/// Set in the child: which server it is.
const CHILD: &str = "VLLM_APPLE_TEST_SERVER";

/// Not a test of its own: the child's server. Without the variable it does nothing.
#[tokio::test]
async fn child_server() {
    let Ok(kind) = std::env::var(CHILD) else { return };
    let mut setup = Setup::endless();
    if kind == "dying" {
        setup.fake.faults = vec![(50, Fault::Fatal)];
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let shutdown = shutdown_signal().unwrap();
    eprintln!("url=http://{}", listener.local_addr().unwrap());
    let model = setup.model();
    let end = serve(listener, App::new(AppConfig::default()), async { Ok(model) }, shutdown).await;
    std::process::exit(match end {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {error}");
            1
        }
    });
}

/// Starts the child and waits for its address.
fn start(kind: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::child_server", "--nocapture"])
        .env(CHILD, kind)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    let url = loop {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the child ended");
        if let Some(url) = line.trim().strip_prefix("url=") {
            break url.to_owned();
        }
    };
    // Keeps the pipe open and empty.
    std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
    (child, url)
}

fn signal(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

async fn exit(mut child: Child) -> ExitStatus {
    patiently(async { tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap() }).await
}

/// A stream that has begun.
async fn open(url: &str, max_tokens: u32) -> reqwest::Response {
    let body = json!({"prompt": [5], "stream": true, "ignore_eos": true, "max_tokens": max_tokens, "temperature": 0});
    let ask = || reqwest::Client::new().post(format!("{url}/v1/completions")).json(&body).send();
    patiently(async {
        loop {
            match ask().await {
                Ok(response) if response.status() == 200 => return response,
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

#[tokio::test]
async fn either_signal_drains_and_exits_with_0() {
    for name in ["-TERM", "-INT"] {
        let (child, url) = start("endless");
        let response = open(&url, 500).await;
        signal(&child, name);
        let text = patiently(response.text()).await.unwrap();
        let last = events(&text).pop().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length");
        assert_eq!(exit(child).await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    let (child, url) = start("endless");
    let response = open(&url, 90_000).await;
    signal(&child, "-TERM");
    // Signals of one kind that arrive together are one: wait until the first has been taken.
    let refused = || reqwest::Client::new().post(format!("{url}/v1/completions")).json(&json!({"prompt": [5]})).send();
    patiently(async { while refused().await.is_ok_and(|response| response.status() != 503) {} }).await;
    signal(&child, "-TERM");
    assert_eq!(exit(child).await.code(), Some(143));
    assert!(response.text().await.is_err());
}

#[tokio::test]
async fn a_dead_engine_ends_the_process_with_1() {
    let (child, url) = start("dying");
    let response = open(&url, 90_000).await;
    let text = patiently(response.text()).await.unwrap();
    assert!(text.contains("engine_dead"), "{text}");
    assert_eq!(exit(child).await.code(), Some(1));
}
