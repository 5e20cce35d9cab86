//! What a report says of machine, program, model and settings: nothing that names a person, a host or a place.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};
use vllm_apple_model::{Checkpoint, LoadOptions};
use vllm_apple_verify::sections::human;
use vllm_apple_verify::{Pinned, Settings, Subject};

use super::VerifyArgs;
use crate::cli::args::{ModelArgs, variable};
use crate::cli::{CliError, demo_model, first_run};
use crate::settings::word;

/// More bytes than these are not read for their hash.
const MOST_HASHED: u64 = 8 << 30;
/// What is read of each file instead: a header and the first tensors.
const BEGINNING: u64 = 1 << 20;

/// What changes how a device computes and is no flag.
const VARIABLES: [&str; 7] = [
    "VLLM_APPLE_USE_ENGINE",
    "VLLM_APPLE_ENGINE_PREFILL",
    "VLLM_METAL_ATTENTION",
    "VLLM_METAL_STRICT",
    "VLLM_METAL_SCRATCH_POOL_MB",
    "VLLM_METAL_MAX_BATCH_SIZE",
    "VLLM_METAL_ALLOW_VM",
];

type Fact = (String, String);

/// All facts.
pub fn of(args: &VerifyArgs, subject: &Subject, device: Pinned, settings: &Settings) -> Result<Vec<Fact>, CliError> {
    let mut facts = program_and_machine();
    facts.extend(of_device(device, &facts));
    facts.push(fact("model", model_name(args.model.model.as_deref())));
    let hash =
        weights_hash(&subject.checkpoint).map_err(|source| CliError::Input { path: "the weights".into(), source })?;
    facts.push(fact("weights", hash));
    let (types, config) = (subject.types(), subject.checkpoint.config());
    let shape =
        format!("{} layers, hidden size {}, vocabulary {}", config.layers.len(), config.hidden_size, config.vocab_size);
    facts.push(fact("shape", shape));
    facts.push(fact(
        "types",
        format!("weights {}, activations {}, KV cache {}", types.weights, types.activations, types.kv_cache),
    ));
    facts.push(fact("longest sequence", format!("{} tokens", subject.max_model_len())));
    facts.push(fact("depth", if settings.full { "full" } else { "quick" }));
    let sections = if args.only.is_empty() { "all".to_owned() } else { args.only.join(", ") };
    facts.push(fact("sections", sections));
    facts.push(fact("soak", human(settings.soak)));
    facts.push(fact("settings", settings_given(&args.model)));
    let reference = settings.reference.as_deref().and_then(Path::file_name);
    facts.extend(reference.map(|name| fact("reference", name.to_string_lossy())));
    Ok(facts)
}

/// What the device is and does, and why it is not another, but for what the machine's facts say.
fn of_device(device: Pinned, of_machine: &[Fact]) -> Vec<Fact> {
    let Pinned { info, choices, instead } = device;
    let mut facts = vec![fact("device", format!("{}: {}", info.backend, info.description))];
    facts.extend(instead.map(|reason| fact("the CPU in place of Metal", word(&reason))));
    let is_new = |(name, _): &Fact| of_machine.iter().all(|(known, _)| known != name);
    facts.extend(info.facts.into_iter().filter(is_new));
    facts.extend(choices.into_iter().map(|(what, how)| (what, word(&how).into_owned())));
    facts
}

/// What is not as it is by default and no other fact says.
fn settings_given(args: &ModelArgs) -> String {
    let (engine, default) = (&args.engine, LoadOptions::default());
    let number = |flag: &str, value: Option<u64>| value.map(|value| format!("{flag} {value}"));
    let count = |value: usize, default: usize| (value != default).then_some(value as u64);
    let word = |flag: &str, given: bool| given.then(|| flag.to_owned());
    let mut given = vec![
        number("--max-num-seqs", engine.max_num_seqs.map(|value| value as u64)),
        number("--max-num-batched-tokens", engine.max_num_batched_tokens.map(|value| value as u64)),
        number("--block-size", count(engine.block_size, default.block_size)),
        number("--kv-cache-memory", engine.kv_cache_memory),
        word("--no-enable-prefix-caching", args.no_enable_prefix_caching),
        number("--seed", (args.seed != 0).then_some(args.seed)),
        word("--tokenizer", args.tokenizer.is_some()),
        word("--chat-template", args.chat_template.is_some()),
    ];
    given.extend(VARIABLES.map(|name| variable(name).map(|value| format!("{name}={value}"))));
    let given: Vec<String> = given.into_iter().flatten().collect();
    if given.is_empty() { "defaults".to_owned() } else { given.join(", ") }
}

fn fact(name: &str, value: impl Into<String>) -> Fact {
    (name.to_owned(), value.into())
}

fn program_and_machine() -> Vec<Fact> {
    let (program, system) = (first_run::program(), first_run::system());
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut facts = vec![
        fact("program", format!("vllm-apple {} for {}", text(&program["version"]), text(&program["target"]))),
        fact("begun", jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()),
    ];
    let known = ["processor", "cores", "os", "kernel"].map(|name| (name, &system[name]));
    facts.extend(known.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| fact(name, text(value))));
    facts
}

/// The id of a model on the hub, or the last part of a directory's path.
fn model_name(model: Option<&str>) -> String {
    let Some(model) = model else { return demo_model::NAME.to_owned() };
    let (path, tag) = match model.rsplit_once(':') {
        Some((directory, tag)) if Path::new(directory).is_dir() => (Path::new(directory), format!(":{tag}")),
        _ => (Path::new(model), String::new()),
    };
    match path.exists() {
        true => path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned() + &tag)),
        false => Some(model.to_owned()),
    }
    .unwrap_or_else(|| "a directory".to_owned())
}

/// A hash of the weights' files, and what it is of.
fn weights_hash(checkpoint: &Checkpoint) -> io::Result<String> {
    let mut files: Vec<&Path> = checkpoint.weights_paths().collect();
    files.sort_unstable();
    if files.is_empty() {
        return Ok("random".to_owned());
    }
    let bytes = files.iter().map(|file| Ok(file.metadata()?.len())).sum::<io::Result<u64>>()?;
    let whole = bytes <= MOST_HASHED;
    let mut digest = Sha256::new();
    for file in &files {
        let open = File::open(file)?;
        if !whole {
            digest.update(open.metadata()?.len().to_le_bytes());
        }
        hash(open.take(if whole { u64::MAX } else { BEGINNING }), &mut digest)?;
    }
    let hash: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let of = if whole { "their bytes" } else { "the size and the first MiB of each" };
    Ok(format!(
        "sha256 {hash}, of {of}; {bytes} bytes in {} file{}",
        files.len(),
        if files.len() == 1 { "" } else { "s" }
    ))
}

fn hash(mut from: impl Read, digest: &mut Sha256) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            read => digest.update(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_ops::DeviceInfo;

    #[test]
    fn a_device_says_what_it_leaves_to_the_host_and_why_it_is_not_another() {
        let info = DeviceInfo { backend: "cpu", description: "2 threads".into(), facts: vec![fact("processor", "b")] };
        let choices = vec![fact("rms_norm float16", "on the host: `metal_strict`=0")];
        let device = Pinned { info, choices, instead: Some("matmul is wrong; use `device` cpu".into()) };
        let facts = of_device(device, &[fact("processor", "a")]);
        assert_eq!(
            facts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["device", "the CPU in place of Metal", "rms_norm float16"]
        );
        assert_eq!(facts[1].1, "matmul is wrong; use --device cpu");
    }

    #[test]
    fn a_directory_is_named_by_its_last_part() {
        let directory = tempfile::tempdir().unwrap();
        let model = directory.path().join("my-model");
        std::fs::create_dir(&model).unwrap();
        assert_eq!(model_name(Some(&model.to_string_lossy())), "my-model");
        assert_eq!(model_name(Some("org/model")), "org/model");
        assert_eq!(model_name(None), "demo");
    }

    #[test]
    fn the_hash_is_that_of_the_file() {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo");
        let checkpoint = Checkpoint::open(demo.as_ref()).unwrap();
        let bytes = std::fs::read(format!("{demo}/model.safetensors")).unwrap();
        let expected: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let found = weights_hash(&checkpoint).unwrap();
        assert!(found.starts_with(&format!("sha256 {expected}, of their bytes")), "{found}");
    }
}
