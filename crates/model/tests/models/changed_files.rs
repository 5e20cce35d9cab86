//! Weights files that somebody changes while they are loaded or in use: an error that names the file, and never other weights. What
//! ends a process is tested in one of its own: this test program, started again.

use crate::common::{Sequence, golden, load_checkpoint, metal, options, step};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use vllm_apple_cpu::CpuBackend;
use vllm_apple_executor::{Batch, Executor, ExecutorError};
use vllm_apple_model::{Checkpoint, LoadError, ModelExecutor};
use vllm_apple_ops::{Backend, DType};

/// A copy of a golden checkpoint whose files were last written an hour ago: whatever writes to them is seen, however coarse the clock.
fn copy(name: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden(&format!("models/{name}"))).unwrap() {
        let path = entry.unwrap().path();
        let copied = directory.path().join(path.file_name().unwrap());
        fs::write(&copied, fs::read(&path).unwrap()).unwrap();
        let file = File::options().write(true).open(&copied).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    directory
}

/// The checkpoint's only or last weights file.
fn weights(directory: &Path) -> PathBuf {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).max().unwrap()
}

fn truncate(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// Changes the last number of a file, in place.
fn flip(path: &Path) {
    let mut content = fs::read(path).unwrap();
    *content.last_mut().unwrap() ^= 0x55;
    OpenOptions::new().write(true).open(path).unwrap().write_all(&content).unwrap();
}

/// Changes a file the way that is no fault: the new one takes over the name.
fn replace(path: &Path) {
    let new = path.with_extension("new");
    fs::copy(path, &new).unwrap();
    flip(&new);
    fs::rename(new, path).unwrap();
}

/// In the file's own type, so that a device may use it in place.
fn load<B: Backend>(backend: B, checkpoint: &Checkpoint) -> Result<ModelExecutor<B>, LoadError> {
    load_checkpoint(backend, checkpoint, &options(checkpoint.dtype(), 64))
}

fn open<B: Backend>(backend: B, directory: &Path) -> ModelExecutor<B> {
    load(backend, &Checkpoint::open(directory).unwrap()).unwrap()
}

/// The logits of a prompt.
fn logits<B: Backend>(model: &mut ModelExecutor<B>) -> Vec<f32> {
    let sequence = Sequence { tokens: (5..21).collect(), computed: 0, blocks: vec![0] };
    step(model, &mut [sequence], &[(0, 16)]).concat().concat()
}

/// How a step of the same prompt fails.
fn failure<B: Backend>(model: &mut ModelExecutor<B>) -> ExecutorError {
    let mut batch = Batch::default();
    batch.clear(1);
    batch.push_request(&(5..21).collect::<Vec<_>>(), 0, &[0], 16, 1);
    model.forward(&batch).expect_err("the change must be seen")
}

fn check_message(message: &str, file: &Path) {
    for word in ["the weights file", &file.display().to_string(), "changed while it was in use", "restart"] {
        assert!(message.contains(word), "{message:?} does not say {word:?}");
    }
}

#[test]
fn a_change_while_loading_is_an_error_on_any_backend() {
    for model in ["llama", "mixtral"] {
        for change in [
            flip,
            |path: &Path| truncate(path, fs::metadata(path).unwrap().len() - 1),
            |path: &Path| truncate(path, 1 << 24),
        ] {
            let directory = copy(model);
            let file = weights(directory.path());
            let checkpoint = Checkpoint::open(directory.path()).unwrap();
            change(&file);
            let error = load(CpuBackend::new(Some(1)), &checkpoint).map(drop).unwrap_err();
            assert!(matches!(&error, LoadError::Changed { path, .. } if *path == file), "{error}");
            check_message(&error.to_string(), &file);
            let error = load(metal(), &checkpoint).map(drop).unwrap_err();
            check_message(&error.to_string(), &file);
        }
    }
}

#[test]
fn a_change_in_use_is_the_end_where_the_file_is_computed_on() {
    for change in [flip, |path: &Path| truncate(path, fs::metadata(path).unwrap().len() - 1)] {
        let directory = copy("mixtral");
        let file = weights(directory.path());
        let mut model = open(metal(), directory.path());
        assert!(model.backend().keeps_host_tensors());
        logits(&mut model);
        change(&file);
        // Not only once.
        for _ in 0..2 {
            match failure(&mut model) {
                ExecutorError::Fatal(reason) => check_message(&reason, &file),
                other => panic!("{other}"),
            }
            assert!(model.logits().is_empty(), "nothing of the step is left to read");
        }
    }
}

#[test]
fn a_file_that_is_replaced_by_renaming_is_no_fault() {
    fn check<B: Backend>(backend: B) {
        let directory = copy("llama");
        let file = weights(directory.path());
        let expected = logits(&mut open(metal(), directory.path()));
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        replace(&file);
        let mut model = load(backend, &checkpoint).unwrap();
        let before = logits(&mut model);
        replace(&file);
        fs::remove_file(&file).unwrap();
        assert_eq!(logits(&mut model), before);
        let close = |a: &f32, b: &f32| (a - b).abs() < 1e-3;
        assert!(
            before.iter().zip(&expected).all(|(a, b)| close(a, b)),
            "the weights are those of the file that was opened"
        );
    }
    check(CpuBackend::new(Some(1)));
    check(metal());
}

#[test]
fn copied_weights_need_no_file() {
    fn check<B: Backend>(backend: B, dtype: DType) {
        let directory = copy("llama");
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let mut model = load_checkpoint(backend, &checkpoint, &options(dtype, 64)).unwrap();
        let before = logits(&mut model);
        truncate(&weights(directory.path()), 0);
        assert_eq!(logits(&mut model), before);
        drop(checkpoint);
        assert_eq!(logits(&mut model), before);
    }
    check(CpuBackend::new(Some(1)), DType::F32);
    // Of another type than the file's, so that nothing is used in place.
    check(metal(), DType::F16);
}

/// Set in a child: what it is to do, and with which checkpoint.
const CHILD: &str = "VLLM_APPLE_TEST_CHILD";
const CHECKPOINT: &str = "VLLM_APPLE_TEST_CHECKPOINT";

/// Not a test of its own: the child's work. Without the variable it does nothing.
#[test]
fn child() {
    let Ok(kind) = std::env::var(CHILD) else { return };
    let directory = PathBuf::from(std::env::var_os(CHECKPOINT).unwrap());
    let checkpoint = Checkpoint::open(&directory).unwrap();
    let wait = || {
        println!("\nready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
    };
    match &kind[..] {
        "load" => {
            wait();
            let _ = load(CpuBackend::new(Some(2)), &checkpoint);
        }
        "use" => {
            let mut model = load(metal(), &checkpoint).unwrap();
            logits(&mut model);
            wait();
            let _ = failure(&mut model);
        }
        "stack" => {
            wait();
            overflow(1);
        }
        "other file" => {
            let file = File::open(weights(&directory)).unwrap();
            // SAFETY: not sound at all: the signal is what is tested.
            let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
            wait();
            std::hint::black_box(map[0]);
        }
        "closed" => {
            let (file, map) = (File::open(weights(&directory)).unwrap(), memmap2::MmapOptions::new());
            drop(checkpoint);
            // SAFETY: as above. Most likely where the checkpoint was.
            let map = unsafe { map.map(&file) }.unwrap();
            wait();
            std::hint::black_box(map[0]);
        }
        other => panic!("{other}"),
    }
    println!("still there");
}

#[allow(unconditional_recursion, reason = "that is the test")]
fn overflow(n: u64) -> u64 {
    let memory = std::hint::black_box([n; 1000]);
    overflow(memory[7] + 1) + memory[8]
}

/// Starts a child on a copy of a checkpoint, truncates its weights when it is ready, and returns its end, what it said, and the file.
fn run(kind: &str) -> (ExitStatus, String, PathBuf) {
    let directory = copy("llama");
    let file = weights(directory.path());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "changed_files::child", "--nocapture"])
        .envs([(CHILD, kind.as_ref()), (CHECKPOINT, directory.path().as_os_str())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim() != "ready" {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "{kind}: the child ended");
    }
    truncate(&file, 0);
    writeln!(child.stdin.take().unwrap(), "go").unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    stdout.read_to_string(&mut out).unwrap();
    assert!(!out.contains("still there"), "{kind}: {out}");
    (child.wait().unwrap(), err, file)
}

#[test]
fn a_file_that_shrinks_ends_the_process_with_its_name() {
    for kind in ["load", "use"] {
        let (status, stderr, file) = run(kind);
        assert_eq!(status.code(), Some(1), "{kind}: {status}, {stderr}");
        check_message(&stderr, &file);
        let lines: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(lines.len(), 1, "{kind}: {stderr}");
    }
}

#[test]
fn other_faults_are_what_they_were() {
    let (status, stderr, _) = run("stack");
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}: {stderr}");
    assert!(stderr.contains("has overflowed its stack"), "{stderr}");
    for kind in ["other file", "closed"] {
        let (status, stderr, _) = run(kind);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{kind}, {status}: {stderr}");
        assert!(!stderr.contains("weights file"), "{kind}: {stderr}");
    }
}
