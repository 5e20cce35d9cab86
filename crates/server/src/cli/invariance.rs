//! Whether a model's answers on a device are the same to the bit however they are computed: alone, together and in chunks, and with a
//! prompt that is cached. It prints nothing.

use std::path::Path;

use vllm_apple_device::{Device, with_backend};
use vllm_apple_engine::{Engine, EngineConfig};
use vllm_apple_executor::Executor;
use vllm_apple_model::{Checkpoint, LoadedModel};
use vllm_apple_verify::answers::{How, alone, answers};

use super::CliError;
use super::args::EngineArgs;

/// Tokens of each prompt. All together they are more than a step may have.
const PROMPTS: [usize; 6] = [1, 17, 64, 150, 33, 260];
const STEP: usize = 200;
const OUTPUT: u32 = 12;

/// What differs, in words; nothing if nothing does.
pub fn check(args: &EngineArgs, directory: &Path) -> Result<Vec<String>, CliError> {
    let mut args = args.clone();
    args.max_num_batched_tokens = Some(STEP);
    args.max_num_seqs = Some(PROMPTS.len());
    args.max_model_len = Some(512);
    let (checkpoint, options) = (Checkpoint::open(directory)?, args.load_options());
    let device_options = args.device_options()?;
    let device = Device::open(&device_options, &checkpoint.kinds(&options)?)?;
    device.start(&device_options, CliError::is_refusal, |device| {
        with_backend!(device, backend => {
            let loaded = LoadedModel::load(backend, &checkpoint, &options)?;
            let num_blocks = loaded.num_blocks()?;
            let config = EngineConfig { enable_prefix_caching: true, max_waiting: PROMPTS.len(), seed: 0, speculation: None };
            let engine = Engine::new(loaded.allocate(num_blocks)?, config);
            differences(&mut engine.map_err(|error| CliError::Load(error.to_string()))?)
        })
    })
}

fn differences<E: Executor>(engine: &mut Engine<E>) -> Result<Vec<String>, CliError> {
    let vocab = engine.info().vocab_size;
    // Different first tokens: none is another's cached beginning.
    let prompts: Vec<Vec<u32>> = PROMPTS
        .iter()
        .enumerate()
        .map(|(p, &len)| (0..len).map(|i| ((p * 31 + i * 7919) % vocab) as u32).collect())
        .collect();
    let alone = alone(engine, &prompts, How::greedy(OUTPUT, "alone"))?;
    let mut different = Vec::new();
    // A salt of its own is a cache of its own: the second time the prompts are cached.
    for how in ["together and in chunks", "with cached prompts"] {
        let together = answers(engine, &prompts, How::greedy(OUTPUT, "together"))?;
        let wrong = together.iter().zip(&alone).zip(PROMPTS).filter(|((together, alone), _)| together != alone);
        different.extend(wrong.map(|(_, len)| format!("a prompt of {len} tokens is answered differently {how}")));
    }
    // What is computed anew is the same, too. Only whole blocks before a prompt's last token are cached.
    let can_hit = PROMPTS.iter().any(|&len| len > engine.info().block_size);
    if can_hit && engine.stats().prefix_cache_hits == 0 {
        different.push("no prompt is found in the prefix cache when it comes again".to_owned());
    }
    Ok(different)
}
