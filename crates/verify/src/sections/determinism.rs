//! The same request has the same answer whenever it is asked, and draws by a seed are its alone.

use super::{Progress, Settings, unless_no_memory};
use crate::answers::{How, Token, answers};
use crate::report::{Line, Section};
use crate::subject::{Subject, VerifyError, Wish};

const LENGTHS: [usize; 5] = [20, 33, 64, 100, 7];
const MAX_TOKENS: u32 = 16;
const RERUNS: usize = 3;
/// Lines.
const TOTAL: u64 = 5;
const LIMIT: usize = 128;

/// The section.
pub fn run(subject: &Subject, _: &Settings, progress: &mut dyn Progress) -> Result<Section, VerifyError> {
    let room = subject.max_model_len().min(LIMIT);
    let lengths = LENGTHS.map(|len| len.min(room.saturating_sub(MAX_TOKENS as usize)).max(1));
    let prompts = subject.prompts_of(&lengths, 0);
    let load = || {
        subject.engine(Wish::default(), |options| {
            options.max_model_len = Some(room);
            options.max_num_seqs = LENGTHS.len();
        })
    };
    let how = |seed| How { seed, ..How::greedy(MAX_TOKENS, "") };
    let mut engine = load()?;
    let likeliest = answers(&mut engine, &prompts, how(None))?;
    let drawn = answers(&mut engine, &prompts, how(Some(7)))?;
    let mut lines = Vec::new();
    let mut same = |lines: &mut Vec<Line>, what: &str, got: &[Vec<Token>], want: &[Vec<Token>]| {
        let count = got.iter().zip(want).filter(|(got, want)| got == want).count();
        let found = format!("{count} of {} the same", want.len());
        lines.push(Line::judged(what, found, "the same tokens and bits", count == want.len()));
        progress.show(lines.len() as u64, TOTAL, what);
    };
    for (name, seed, want) in [("the likeliest token", None, &likeliest), ("draws with a seed", Some(7), &drawn)] {
        let mut all = Vec::new();
        for _ in 0..RERUNS {
            all.extend(answers(&mut engine, &prompts, how(seed))?);
        }
        let want: Vec<Vec<Token>> = (0..RERUNS).flat_map(|_| want.clone()).collect();
        same(&mut lines, &format!("{name}, {RERUNS} more runs"), &all, &want);
    }
    let other = answers(&mut engine, &prompts, how(Some(8)))?;
    drop(engine);
    if let Some(mut engine) = unless_no_memory(&mut lines, "after a restart", load())? {
        let again = answers(&mut engine, &prompts, how(None))?;
        same(&mut lines, "the likeliest token after a restart", &again, &likeliest);
        let again = answers(&mut engine, &prompts, how(Some(7)))?;
        same(&mut lines, "draws with a seed after a restart", &again, &drawn);
    }
    let differing = other.iter().zip(&drawn).filter(|(other, drawn)| other != drawn).count();
    let found = format!("{differing} of {} other tokens", prompts.len());
    lines.push(Line::judged("draws with another seed", found, "other tokens for most", 2 * differing > prompts.len()));
    Ok(Section {
        about:
            "Tokens and the bits of their log-probabilities: run again, with seeds, and after loading the model again."
                .to_owned(),
        lines,
        ..Section::default()
    })
}
