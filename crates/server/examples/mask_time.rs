//! How long masks take: `cargo run --release --example mask_time -- TOKENIZER_DIR [SCHEMAS.json]`. Walks through each schema of a list with a
//! random allowed token at a time, and prints the times of a mask (with taking in the token before it), of compiling, and of starting.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use vllm_apple::structured::{Memory, Structure, Structures};
use vllm_apple::text::Tokenizer;

const ANSWERS: u64 = 3;
const MAX_TOKENS: usize = 300;

/// Memory that nobody counts.
#[derive(Debug)]
struct Endless;

impl Memory for Endless {
    fn take(&self, _: usize) -> bool {
        true
    }

    fn give_back(&self, _: usize) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("name a directory with a tokenizer")?;
    let schemas =
        args.next().unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/examples/schemas.json").to_owned());
    let tokenizer = Arc::new(Tokenizer::from_dir(Path::new(&dir))?);
    let ends: Arc<[u32]> = tokenizer.eos_token_ids().into();
    let structures = Structures::new(Arc::clone(&tokenizer), Arc::clone(&ends));
    let schemas: Vec<Value> = serde_json::from_slice(&std::fs::read(schemas)?)?;
    let started = Instant::now();
    structures.compile(&Structure::json_object())?;
    println!("{} tokens; reading the vocabulary took {:?}", tokenizer.vocab_size(), started.elapsed());
    let (mut masks, mut compiles, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for schema in schemas {
        let structure = Structure::schema(schema, None);
        let started = Instant::now();
        let grammar = structures.compile(&structure)?.counted(Arc::new(Endless), 0);
        compiles.push(micros(started));
        for answer in 0..ANSWERS {
            let started = Instant::now();
            let mut matcher = grammar.start();
            starts.push(micros(started));
            let mut state = answer + 1;
            let mut token = None;
            for _ in 0..MAX_TOKENS {
                let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32)];
                let started = Instant::now();
                if let Some(token) = token {
                    matcher.accept(token)?;
                }
                matcher.allowed(&mut mask)?;
                masks.push(micros(started));
                let next = pick(&mask, &mut state);
                if ends.contains(&next) {
                    break;
                }
                token = Some(next);
            }
        }
    }
    for (name, times) in [("mask", &mut masks), ("compile", &mut compiles), ("start", &mut starts)] {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "{name}: median {:.1} us, 90% {:.1}, 99% {:.1}, most {:.1}, of {}",
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0),
            times.len()
        );
    }
    Ok(())
}

fn micros(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6
}

/// A random token of a mask.
fn pick(mask: &[u32], state: &mut u64) -> u32 {
    let count: u64 = mask.iter().map(|word| u64::from(word.count_ones())).sum();
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mut nth = (*state >> 33) % count.max(1);
    for (at, word) in mask.iter().enumerate() {
        let ones = u64::from(word.count_ones());
        if nth < ones {
            let bit = (0..32).filter(|bit| word >> bit & 1 == 1).nth(nth as usize).unwrap_or(0);
            return at as u32 * 32 + bit;
        }
        nth -= ones;
    }
    0
}
