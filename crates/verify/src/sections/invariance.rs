//! A request's answer is the same to the bit however it is computed: alone, in batches, in any order and chunks, cached, preempted, on
//! other numbers of threads.

use vllm_apple_engine::Engine;
use vllm_apple_executor::Executor;

use super::{Progress, Settings, unless_no_memory};
use crate::answers::{How, Token, alone, answers};
use crate::report::{Line, Section};
use crate::subject::{Subject, VerifyError, Wish};

/// The user's batches, of equal and of different lengths.
const BATCHES: [usize; 7] = [3, 5, 7, 9, 12, 15, 16];
const UNIFORM: usize = 48;
const MIXED: [usize; 16] = [1, 17, 64, 150, 33, 5, 96, 31, 2, 48, 16, 70, 9, 100, 15, 40];
const TOGETHER: [usize; 4] = [32, 128, 512, 2048];
/// Tokens of a step.
const CHUNKS: [usize; 3] = [16, 50, 256];
/// Threads of the CPU.
const THREADS: [usize; 3] = [1, 2, 3];
const HOW: How = How::greedy(6, "");

type Below = Engine<Box<dyn Executor>>;

/// Compares with answers alone.
struct Comparison<'a> {
    lines: Vec<Line>,
    progress: &'a mut dyn Progress,
    total: u64,
}

impl Comparison<'_> {
    fn line(&mut self, what: String, prompts: &[Vec<u32>], got: &[Vec<Token>], alone: &[Vec<Token>]) {
        let differing: Vec<String> = prompts
            .iter()
            .zip(got.iter().zip(alone))
            .filter(|(_, (got, alone))| got != alone)
            .map(|(prompt, (got, alone))| {
                let at = got.iter().zip(alone).position(|(got, alone)| got != alone).unwrap_or(alone.len());
                format!("{} tokens, from output {at} on", prompt.len())
            })
            .collect();
        let found = if differing.is_empty() {
            format!("{} of {} the same", prompts.len(), prompts.len())
        } else {
            format!("different: prompts of {}", differing.join("; "))
        };
        self.lines.push(Line::judged(what, found, "the same bits as alone", differing.is_empty()));
        let part = &self.lines[self.lines.len() - 1].what;
        self.progress.show(self.lines.len() as u64, self.total, part);
    }
}

/// Whether prompts were found in the prefix cache, as far as there is anything to find: whole blocks before a prompt's last token.
fn cached(prompts: &[Vec<u32>], block_size: usize, hits: u64) -> Line {
    const WHAT: &str = "tokens found in the prefix cache";
    match prompts.iter().any(|prompt| prompt.len() > block_size) {
        true => Line::judged(WHAT, hits.to_string(), "at least 1", hits > 0),
        false => Line::skipped(WHAT, format!("no prompt is longer than a block of {block_size} tokens")),
    }
}

/// Answers for which the cache has too few blocks, though it has enough for the prompts.
fn preempted(subject: &Subject, prompts: &[Vec<u32>], comparison: &mut Comparison<'_>) -> Result<(), VerifyError> {
    const LONG: How = How::greedy(32, "");
    let block_size = subject.options.block_size;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1) + LONG.len as usize;
    if longest > subject.max_model_len() {
        comparison
            .lines
            .push(Line::skipped("preempted requests", format!("sequences of {longest} tokens are too long")));
        return Ok(());
    }
    let of_prompts: usize = prompts.iter().map(|prompt| prompt.len().div_ceil(block_size)).sum();
    let load = |num_blocks| {
        subject.engine(Wish { num_blocks, ..Wish::default() }, |options| {
            options.max_model_len = Some(longest);
            options.max_num_seqs = prompts.len();
        })
    };
    let alone = alone(&mut load(None)?, prompts, LONG)?;
    let mut engine = load(Some((of_prompts + 1).max(longest.div_ceil(block_size))))?;
    let got = answers(&mut engine, prompts, LONG)?;
    let preemptions = engine.stats().num_preemptions;
    comparison.line(format!("{} requests with {preemptions} preemptions", prompts.len()), prompts, &got, &alone);
    comparison.lines.push(Line::judged("preemptions", preemptions.to_string(), "at least 1", preemptions > 0));
    Ok(())
}

/// The section.
pub fn run(subject: &Subject, settings: &Settings, progress: &mut dyn Progress) -> Result<Section, VerifyError> {
    let total = (2 * BATCHES.len() + CHUNKS.len() + THREADS.len() + 7) as u64;
    let mut comparison = Comparison { lines: Vec::new(), progress, total };
    let compared = compare(subject, settings, &mut comparison);
    unless_no_memory(&mut comparison.lines, "all else", compared)?;
    Ok(Section {
        about: "Each request's tokens and the bits of their log-probabilities, beside those of the same request alone."
            .to_owned(),
        lines: comparison.lines,
        ..Section::default()
    })
}

fn compare(subject: &Subject, settings: &Settings, comparison: &mut Comparison<'_>) -> Result<(), VerifyError> {
    let room = subject.max_model_len().saturating_sub(HOW.len as usize);
    let lengths = |lengths: &[usize]| -> Vec<usize> { lengths.iter().map(|&len| len.min(room)).collect() };
    // The longest takes as long as all others.
    let together: Vec<usize> = TOGETHER
        .iter()
        .copied()
        .filter(|&len| settings.full || len <= 1024 || subject.flops_per_token() < 2e9)
        .collect();
    let (uniform, mixed, together) = (lengths(&[UNIFORM; 16]), lengths(&MIXED), lengths(&together));
    let longest = together.iter().chain(&mixed).copied().max().unwrap_or(1) + HOW.len as usize;
    let [uniform, mixed, together] =
        [(0, uniform), (16, mixed), (32, together)].map(|(seed, lengths)| subject.prompts_of(&lengths, seed));

    let load = |tokens: Option<usize>, wish: Wish| -> Result<Below, VerifyError> {
        subject.engine(wish, |options| {
            options.max_model_len = Some(longest);
            options.max_num_seqs = 16;
            options.max_num_batched_tokens = tokens.or(options.max_num_batched_tokens);
        })
    };
    let mut engine = load(None, Wish::default())?;
    let [uniform_alone, mixed_alone, together_alone] =
        [alone(&mut engine, &uniform, HOW)?, alone(&mut engine, &mixed, HOW)?, alone(&mut engine, &together, HOW)?];
    for (name, prompts, alone) in [("equal", &uniform, &uniform_alone), ("different", &mixed, &mixed_alone)] {
        for size in BATCHES {
            let got = answers(&mut engine, &prompts[..size], HOW)?;
            comparison.line(format!("{size} requests of {name} lengths"), &prompts[..size], &got, &alone[..size]);
        }
    }
    let got = answers(&mut engine, &together, HOW)?;
    let names: Vec<String> = together.iter().map(|prompt| prompt.len().to_string()).collect();
    comparison.line(format!("{} tokens together", names.join(", ")), &together, &got, &together_alone);

    let reversed: Vec<Vec<u32>> = mixed.iter().rev().cloned().collect();
    let mut got = answers(&mut engine, &reversed, HOW)?;
    got.reverse();
    comparison.line("the other way round".to_owned(), &mixed, &got, &mixed_alone);

    let singles: Vec<Vec<u32>> = subject.prompts_of(&[1; 8], 48);
    let single_alone = alone(&mut engine, &singles, HOW)?;
    let got = answers(&mut engine, &singles, HOW)?;
    comparison.line("8 requests of a single token".to_owned(), &singles, &got, &single_alone);
    drop(engine);

    for tokens in CHUNKS {
        let got = answers(&mut load(Some(tokens), Wish::default())?, &mixed, HOW)?;
        comparison.line(format!("in steps of up to {tokens} tokens"), &mixed, &got, &mixed_alone);
    }

    let mut engine = load(None, Wish { prefix_caching: true, ..Wish::default() })?;
    answers(&mut engine, &mixed, HOW)?;
    let got = answers(&mut engine, &mixed, HOW)?;
    let (hits, block_size) = (engine.stats().prefix_cache_hits, engine.info().block_size);
    comparison.line(format!("with cached beginnings, {hits} tokens"), &mixed, &got, &mixed_alone);
    comparison.lines.push(cached(&mixed, block_size, hits));
    drop(engine);

    preempted(subject, &uniform, comparison)?;

    let Some(default) = subject.threads()? else {
        comparison
            .lines
            .push(Line::skipped("on other numbers of threads", "this device does not compute on the CPU's threads"));
        return Ok(());
    };
    for threads in THREADS.into_iter().filter(|&threads| threads != default) {
        let mut engine = load(None, Wish { threads: Some(threads), ..Wish::default() })?;
        let got = answers(&mut engine, &mixed, HOW)?;
        let noun = if threads == 1 { "thread" } else { "threads" };
        comparison.line(format!("on {threads} {noun}, where the others are on {default}"), &mixed, &got, &mixed_alone);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn a_prefix_cache_that_never_hits_fails_if_it_could() {
        let prompts = [vec![1; 3], vec![1; 17]];
        assert_eq!(cached(&prompts, 16, 16).outcome, Outcome::Pass);
        assert_eq!(cached(&prompts, 16, 0).outcome, Outcome::Fail);
        // The last token is computed in any case.
        assert_eq!(cached(&prompts, 17, 0).outcome, Outcome::Skipped);
    }
}
