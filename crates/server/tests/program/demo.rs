//! The bundled model through the whole program, as a newcomer runs it: outside the repository, with no model named. What it
//! must say was recorded with transformers in float32 (tools/demo-model/goldens.py).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const GOLDEN: &str = include_str!("../../../../tests/golden/demo.json");

const PROGRAM: &str = env!("CARGO_BIN_EXE_vllm-apple");

/// A directory with nothing in it, which is also the user's cache.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Where the model is unpacked.
    fn cache(&self) -> PathBuf {
        self.0.path().join("cache")
    }

    /// A command whose user is at home here.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.0.path()).env("HOME", self.0.path()).env("XDG_CACHE_HOME", self.cache());
        command
    }

    /// Runs the program and returns what it printed.
    fn run(&self, arguments: &[&str], input: &str) -> String {
        let mut child = self
            .command(PROGRAM)
            .args(arguments)
            // No op of the software Metal device may be computed on the host.
            .env("VLLM_METAL_STRICT", "1")
            // Its compiled kernels are kept from run to run.
            .env("MSL_SIM_CACHE", crate::compiled_kernels())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }
}

fn golden() -> Value {
    serde_json::from_str(GOLDEN).unwrap()
}

/// All prompts up to a length at once: they share steps, are cut into chunks and hit each other's prefixes, and none may show it.
fn check_continuations(device: &str, longest: u64) {
    let golden = golden();
    let fits = |case: &&Value| case["length"].as_u64().unwrap() <= longest;
    let cases: Vec<&Value> = golden["cases"].as_array().unwrap().iter().filter(fits).collect();
    let families = ["fox", "code", "story", "instruction"];
    let lengths = |family: &str| cases.iter().filter(|case| case["family"] == *family).count();
    assert!(families.iter().all(|family| lengths(family) >= if longest < 1000 { 3 } else { 7 }));
    let lines: String =
        cases.iter().map(|case| format!("{}\n", json!({"prompt_token_ids": case["prompt_token_ids"]}))).collect();
    let arguments =
        format!("generate --device {device} --input - --json --dtype float32 --temperature 0 --max-tokens 32");
    let output = Home::new().run(&arguments.split(' ').collect::<Vec<_>>(), &lines);
    let results: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(results.len(), cases.len());
    for (result, case) in results.iter().zip(cases) {
        assert_eq!(result["token_ids"], case["greedy"], "{} of {} tokens", case["family"], case["length"]);
    }
}

#[test]
fn four_families_of_prompts_continue_as_in_transformers() {
    check_continuations("auto", u64::MAX);
}

/// Through every Metal kernel; the long prompts would take minutes.
#[test]
fn the_software_metal_device_continues_as_transformers_does() {
    check_continuations("software-metal", 200);
}

#[test]
fn a_conversation_goes_as_in_transformers() {
    let golden = golden();
    let turns = golden["conversation"].as_array().unwrap();
    assert!(turns.len() >= 3);
    let text = |turn: &Value, who: &str| format!("{}\n", turn[who].as_str().unwrap());
    let asked: String = turns.iter().map(|turn| text(turn, "user")).collect();
    let replies: String = turns.iter().map(|turn| text(turn, "assistant")).collect();
    assert_eq!(Home::new().run(&["chat", "--dtype", "float32", "--temperature", "0"], &asked), replies);
}

/// 8 bits lose too little to be noticed here.
#[test]
fn a_conversation_goes_the_same_way_with_weights_of_8_bits() {
    let golden = golden();
    let turns = golden["conversation"].as_array().unwrap();
    let text = |turn: &Value, who: &str| format!("{}\n", turn[who].as_str().unwrap());
    let asked: String = turns.iter().map(|turn| text(turn, "user")).collect();
    let replies: String = turns.iter().map(|turn| text(turn, "assistant")).collect();
    let quantised = ["chat", "--device", "cpu", "--quantization", "int8", "--temperature", "0"];
    assert_eq!(Home::new().run(&quantised, &asked), replies);
}

/// Both devices multiply by the same elements, in other orders.
#[test]
fn the_software_metal_device_continues_as_the_cpu_does_with_quantised_weights() {
    let continued = |device: &str, quantization: &str| {
        let arguments =
            ["generate", "--prompt-token-ids", "5,6,7", "--max-tokens", "12", "--json", "--dtype", "float32"];
        let quantised = ["--device", device, "-q", quantization, "--temperature", "0", "--ignore-eos"];
        let printed = Home::new().run(&[&arguments[..], &quantised[..]].concat(), "");
        serde_json::from_str::<Value>(&printed).unwrap()["token_ids"].clone()
    };
    for quantization in ["int4", "int8"] {
        assert_eq!(continued("software-metal", quantization), continued("cpu", quantization), "{quantization}");
    }
}

/// The block of the README that begins with `$ vllm-apple chat`: lines with `> ` are typed, the others are printed.
#[test]
fn the_sample_conversation_of_the_readme_is_what_the_program_prints() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let (_, block) = readme.split_once("````console\n$ vllm-apple chat").expect("the README shows a conversation");
    let (block, _) = block.split_once("````").unwrap();
    let (arguments, lines) = block.split_once('\n').unwrap();
    let typed = lines.lines().filter_map(|line| line.strip_prefix("> "));
    let asked: String = typed.map(|line| format!("{line}\n")).collect();
    let printed: String =
        lines.lines().filter(|line| !line.starts_with("> ")).map(|line| format!("{line}\n")).collect();
    assert!(asked.lines().count() >= 3);
    let arguments: Vec<&str> = std::iter::once("chat").chain(arguments.split_whitespace()).collect();
    assert_eq!(Home::new().run(&arguments, &asked), printed);
}

/// One token of the bundled model.
const ONE_TOKEN: [&str; 6] = ["generate", "--prompt-token-ids", "5,6,7", "--max-tokens", "1", "--json"];

#[test]
fn eight_starts_at_once_on_a_damaged_cache_all_answer_as_one_on_a_new_one() {
    let home = Home::new();
    let expected = home.run(&ONE_TOKEN, "");
    let unpacked = |home: &Home| {
        let entries = std::fs::read_dir(home.cache().join("vllm-apple")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let [directory] = &unpacked(&home)[..] else { panic!("{:?}", unpacked(&home)) };
    std::fs::File::options().write(true).open(directory.join("model.safetensors")).unwrap().set_len(5000).unwrap();
    std::fs::remove_file(directory.join("tokenizer.json")).unwrap();
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| home.run(&ONE_TOKEN, ""))).collect();
        for start in starts {
            assert_eq!(start.join().unwrap(), expected);
        }
    });
    assert_eq!(unpacked(&home).len(), 1, "nothing is left behind");
}

/// What the program says that is run by `shell`, a script with the program as `$0`.
fn fails(home: &Home, shell: &[&str]) {
    let output: Output = home.command(shell[0]).args(&shell[1..]).arg(PROGRAM).args(ONE_TOKEN).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap_or_default();
    let path = home.cache().join("vllm-apple").display().to_string();
    assert!(last.starts_with("error: ") && last.contains(&path) && last.contains("free them"), "{stderr}");
}

#[test]
fn a_write_that_fails_is_told_and_leaves_nothing() {
    let home = Home::new();
    // Files of at most 1 MiB, or 2 where the shell counts so.
    fails(&home, &["sh", "-c", "ulimit -f 2048; exec \"$0\" \"$@\""]);
    assert_eq!(std::fs::read_dir(home.cache().join("vllm-apple")).unwrap().count(), 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_told_and_leaves_nothing() {
    // Disks of our own need a namespace of our own, which not every system gives.
    let namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"];
    let home = Home::new();
    let cache = home.cache().join("vllm-apple");
    std::fs::create_dir_all(&cache).unwrap();
    let mount = format!("mount -t tmpfs -o size=4m disk '{}'", cache.display());
    if !home.command(namespace[0]).args(&namespace[1..]).arg(&mount).status().is_ok_and(|status| status.success()) {
        println!("skipped: no disk can be mounted here");
        return;
    }
    // Nothing but what is listed may be left, and the space must be free again.
    let script =
        format!("{mount}; \"$0\" \"$@\"; status=$?; [ -z \"$(ls '{}')\" ] || status=9; exit $status", cache.display());
    fails(&home, &[&namespace[..], &[&script]].concat());
}
