//! `vllm-apple serve` in a process of its own, on a small checkpoint: what the system under it may do.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A copy of a golden checkpoint whose files were last written an hour ago.
fn copy() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama")).unwrap() {
        let path = entry.unwrap().path();
        let copied = directory.path().join(path.file_name().unwrap());
        fs::write(&copied, fs::read(&path).unwrap()).unwrap();
        let file = File::options().write(true).open(&copied).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    directory
}

/// A running server; it ends with the test.
pub struct Server {
    process: Child,
    pub address: String,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts one by `shell`, a script with the command line as `$0` and `$@`, and waits until it listens.
    pub fn start(shell: &str, checkpoint: &Path, arguments: &[&str]) -> Self {
        let mut process = Command::new("sh")
            .args(["-c", shell, env!("CARGO_BIN_EXE_vllm-apple"), "serve", "--port", "0", "--max-num-seqs", "4"])
            .args(arguments)
            .arg(checkpoint)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut text = String::new();
        let address = loop {
            let before = text.len();
            assert!(stderr.read_line(&mut text).unwrap() > 0, "the server ended: {text}");
            if let Some((_, address)) = text[before..].trim_end().split_once("listening on http://") {
                break address.to_owned();
            }
        };
        let log = Arc::new(Mutex::new(text));
        let rest = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = rest.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { process, address, log }
    }

    /// Four tokens, waiting for the model if need be.
    pub async fn complete(&self) -> reqwest::Result<(u16, Value)> {
        let url = format!("http://{}/v1/completions", self.address);
        let body = json!({"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": true});
        let client = reqwest::Client::builder().timeout(Duration::from_secs(60)).build()?;
        loop {
            let response = client.post(&url).json(&body).send().await?;
            let (status, answer) = (response.status().as_u16(), response.json::<Value>().await?);
            if answer["error"]["code"] != "loading" {
                return Ok((status, answer));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The exit code and everything that was logged.
    fn end(&mut self) -> (Option<i32>, String) {
        let status = self.process.wait().unwrap();
        // The last lines may still be on their way.
        std::thread::sleep(Duration::from_millis(200));
        (status.code(), self.log.lock().unwrap().clone())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub const RUN: &str = "exec \"$0\" \"$@\"";

/// Changes the weights of a server that has answered, and returns what it says at the end.
async fn change_in_use(device: &str, change: fn(&Path)) -> (Server, PathBuf, TempDir) {
    let checkpoint = copy();
    let server = Server::start(RUN, checkpoint.path(), &["--device", device]);
    let (status, answer) = server.complete().await.unwrap();
    assert_eq!(status, 200, "{answer}");
    let file = checkpoint.path().join("model.safetensors");
    change(&file);
    (server, file, checkpoint)
}

fn write_to(path: &Path) {
    File::options().write(true).open(path).unwrap().write_all(&fs::read(path).unwrap()).unwrap();
}

fn empty(path: &Path) {
    File::options().write(true).open(path).unwrap().set_len(0).unwrap();
}

#[tokio::test]
async fn weights_that_change_in_use_end_the_server_with_the_files_name() {
    for change in [write_to, empty] {
        let (mut server, file, _checkpoint) = change_in_use("software-metal", change).await;
        // An error, or a connection that ends; never a completion.
        if let Ok((status, answer)) = server.complete().await {
            assert_eq!((status, &answer["error"]["code"]), (503, &json!("engine_dead")), "{answer}");
        }
        let (code, log) = server.end();
        assert_eq!(code, Some(1), "{log}");
        let last = log.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(&file.display().to_string()), "{log}");
        assert!(last.contains("changed while it was in use"), "{log}");
    }
}

#[tokio::test]
async fn weights_that_were_copied_may_change() {
    let (server, _file, _checkpoint) = change_in_use("cpu", empty).await;
    assert_eq!(server.complete().await.unwrap().0, 200);
}

#[tokio::test]
async fn connections_beyond_the_file_limit_wait_and_the_server_goes_on() {
    let checkpoint = copy();
    let server = Server::start(&format!("ulimit -n 48; {RUN}"), checkpoint.path(), &["--device", "cpu"]);
    let log = server.log.lock().unwrap().clone();
    assert!(log.contains("the limit of open files is 48") && log.contains("(ulimit -n 10"), "{log}");
    let (status, answer) = server.complete().await.unwrap();
    assert_eq!(status, 200, "{answer}");
    let connections: Vec<_> = (0..100).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    let url = format!("http://{}/health", server.address);
    let ask = reqwest::Client::builder().timeout(Duration::from_secs(3)).build().unwrap().get(&url);
    assert!(ask.send().await.unwrap_err().is_timeout(), "no connection is left");
    drop(connections);
    assert_eq!(server.complete().await.unwrap().0, 200);
    let log = server.log.lock().unwrap().clone();
    let complaints = log.lines().filter(|line| line.contains("others wait") && line.contains("as many")).count();
    assert!((1..20).contains(&complaints), "it says so and does not spin: {log}");
}

/// Silent clients do not keep the files that others need, whether they have said nothing or half of a header.
#[test]
fn a_silent_connection_is_closed() {
    let checkpoint = copy();
    let server = Server::start(RUN, checkpoint.path(), &["--device", "cpu"]);
    let silent = ["", "GET /health HTTP/1.1\r\nHost: "].map(|begin| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(begin.as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    });
    for mut stream in silent {
        let mut rest = Vec::new();
        // The end of the stream, or a reset: but no time-out.
        let end = stream.read_to_end(&mut rest);
        assert!(!end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }
}

#[test]
fn the_file_limit_is_raised() {
    let checkpoint = copy();
    let server = Server::start(&format!("ulimit -Sn 64; {RUN}"), checkpoint.path(), &["--device", "cpu"]);
    let log = server.log.lock().unwrap().clone();
    assert!(!log.contains("the limit of open files is 64"), "{log}");
}

#[tokio::test]
async fn a_page_that_is_named_may_use_the_server_from_a_browser() {
    const PAGE: &str = "http://localhost:3000";
    let checkpoint = copy();
    let flags = ["--device", "cpu", "--api-key", "secret", "--allowed-origins", r#"["http://localhost:3000"]"#];
    let server = Server::start(RUN, checkpoint.path(), &flags);
    let url = format!("http://{}/v1/chat/completions", server.address);
    let client = reqwest::Client::new();
    for (origin, status) in [(PAGE, 200), ("http://example.com", 403)] {
        let asks = client.request(reqwest::Method::OPTIONS, &url).header("Origin", origin);
        let asks = asks.header("Access-Control-Request-Method", "POST");
        let response =
            asks.header("Access-Control-Request-Headers", "authorization,content-type").send().await.unwrap();
        let allowed = response.headers().get("access-control-allow-origin").map(|origin| origin.to_str().unwrap());
        assert_eq!((response.status().as_u16(), allowed), (status, (status == 200).then_some(PAGE)));
    }
    let refused = client.post(&url).header("Origin", PAGE).json(&json!({})).send().await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["access-control-allow-origin"]),
        (401, &PAGE.parse().unwrap())
    );
}

#[test]
fn a_list_that_is_none_is_refused_at_once() {
    for (flag, value, reason) in [
        ("--allowed-origins", "http://localhost:3000", "expected a JSON list of strings"),
        ("--allowed-origins", r#"["http://localhost:3000/"]"#, "is no origin as browsers write one"),
        ("--allowed-methods", r#"["post"]"#, "is no method"),
        ("--allowed-headers", r#"["a b"]"#, "is no name of a header"),
    ] {
        let ended = Command::new(env!("CARGO_BIN_EXE_vllm-apple")).args(["serve", flag, value]).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains(flag) && said.contains(reason), "{said}");
    }
}
