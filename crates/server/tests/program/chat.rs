//! `vllm-apple chat` through the whole program: lines over a pipe, and keys in a terminal.

#[cfg(target_os = "linux")]
use std::io::Read;
use std::io::Write;
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::process::Child;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_vllm-apple");

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(path)
}

/// What is said over a pipe. The model never ends by itself.
fn chat(model: &str, flags: &[&str], input: &[u8]) -> Output {
    let mut process = Command::new(PROGRAM)
        .args(["chat", "--device", "cpu", "--temperature", "0", "--ignore-eos"])
        .args(flags)
        .arg(golden(model))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(input).unwrap();
    process.wait_with_output().unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn a_line_that_cannot_be_answered_fails_alone() {
    let answered = chat("models/qwen2", &["--max-tokens", "2"], b"Hello\nMore\n");
    assert!(answered.status.success(), "{}", stderr(&answered));
    assert!(stderr(&answered).contains("[cut off after 2 tokens"), "{}", stderr(&answered));
    let long = "many words ".repeat(2000);
    let lines = [b"Hello\r\n\nno \xff text\n", long.as_bytes(), b"\nMore"].concat();
    let output = chat("models/qwen2", &["--max-tokens", "2"], &lines);
    let said = stderr(&output);
    assert_eq!(output.stdout, answered.stdout, "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: line 3: not UTF-8"), "{said}");
    assert!(said.contains("error: line 4: This model's maximum context length is"), "{said}");
    assert!(said.ends_with("error: 2 of 4 lines failed\n"), "{said}");
}

#[test]
fn a_conversation_goes_on_when_the_context_is_full() {
    let flags = ["--max-model-len", "160", "--system-prompt", "Be brief."];
    let output = chat("models/qwen2", &[&flags[..], &["--max-tokens", "16"]].concat(), &b"Hello there\n".repeat(12));
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("[the context is full: from here on without the oldest turns, "), "{said}");
    assert!(said.contains("[cut off after 16 tokens") && !said.contains("[cut off: "), "{said}");
    let output = chat("models/qwen2", &flags, b"Hello there\nGo on\n");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("[cut off: the context of 160 tokens is full]").count(), 2, "{said}");
}

#[test]
fn a_model_that_makes_embeddings_is_told() {
    let output = chat("embedders/models/qwen3-last", &["--max-tokens", "1"], b"Hello\n");
    assert!(stderr(&output).contains("the model makes embeddings"), "{}", stderr(&output));
}

/// The program in a terminal that util-linux's `script` makes.
#[cfg(target_os = "linux")]
struct Terminal {
    process: Child,
    shown: String,
}

#[cfg(target_os = "linux")]
impl Terminal {
    fn start(command: &str) -> Option<Self> {
        let script = ["--quiet", "--return", "--command", command, "/dev/null"];
        let mut terminal = Command::new("script");
        terminal.args(script).env("TERM", "xterm").env("COLUMNS", "200");
        let process = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        // Not every system has it.
        Some(Self { process: process.ok()?, shown: String::new() })
    }

    /// Waits until the program shows `text` after all that was waited for.
    fn wait_for(&mut self, text: &str) {
        let stdout = self.process.stdout.as_mut().unwrap();
        let mut byte = [0];
        while !self.shown.contains(text) {
            assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{text:?} does not come after {:?}", self.shown);
            self.shown.push(char::from(byte[0]));
        }
        self.shown.clear();
    }

    fn press(&mut self, keys: &str) {
        let stdin = self.process.stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn keys_and_commands_of_the_terminal() {
    let model = golden("models/qwen2");
    let command = format!("{PROGRAM} chat --device cpu --max-tokens 2 --ignore-eos {}", model.display());
    let Some(mut terminal) = Terminal::start(&command) else {
        println!("skipped: there is no `script` here");
        return;
    };
    terminal.wait_for("Ctrl-D ends the conversation, /help tells more");
    for (keys, shown) in [
        ("unfinished\x03", "Ctrl-D ends the conversation"),
        ("/help\r", "/clear   begins the conversation anew"),
        ("/save\r", "there is no /save, and it was not sent"),
        ("/clear\r", "the conversation begins anew"),
        ("Hello\r", "[cut off after 2 tokens"),
    ] {
        terminal.wait_for("> ");
        terminal.press(keys);
        terminal.wait_for(shown);
    }
    terminal.wait_for("> ");
    terminal.press("/bye\r");
    assert!(terminal.process.wait().unwrap().success());
}
