//! The texts that a model is examined with, as token ids: a sentence that repeats itself, code, a story, instructions, and all in turn.

use std::path::Path;

use vllm_apple_verify::Prompt;

use crate::text::{TextError, Tokenizer};

/// Tokens that each prompt has at least; longer ones begin again.
const LEAST: usize = 4096;

const FOX: &str = "The quick brown fox jumps over the lazy dog. ";

const CODE: &str = r#"def merge_sort(values):
    """Return the values in ascending order; equal values keep theirs."""
    if len(values) < 2:
        return list(values)
    middle = len(values) // 2
    left, right = merge_sort(values[:middle]), merge_sort(values[middle:])
    merged = []
    while left and right:
        source = left if left[0] <= right[0] else right
        merged.append(source.pop(0))
    return merged + left + right


class Counter:
    def __init__(self, start=0):
        self.count = start

    def add(self, amount=1):
        if amount < 0:
            raise ValueError(f"expected a positive amount, got {amount}")
        self.count += amount
        return self.count

"#;

const STORY: &str = "Once upon a time there lived a brave knight in a castle by the sea. Every morning she climbed the highest tower and looked \
for ships. One day, in a storm, a small boat with a torn sail came round the rocks, and in it sat an old man who held a lantern in one hand and a \
letter in the other. \"I have sailed for forty days,\" he said, when the knight had pulled him out of the water, \"because the king of the \
northern islands is ill, and only the fruit of the tree in your garden can help him.\" The knight did not know of any tree; behind the castle \
there was only sand. But that night, while the wind went down and the moon rose over the dunes, she heard leaves. ";

const INSTRUCTION: &str = "You are a careful assistant. Answer in complete sentences, and say so when you do not know something.\n\n\
Question: How do I change the tyre of a bicycle?\n1. Take the wheel out of the frame.\n2. Push the levers under the edge of the tyre, two hands \
apart, and lift it over the rim.\n3. Pull the old tube out, look for what has damaged it, and put in the new one.\n4. Press the tyre back with your \
thumbs; begin opposite to the valve.\n5. Pump it up to the pressure that is printed on its side.\n\n\
Question: Summarise the rules of chess in three sentences, for a child of eight years.\nAnswer: ";

/// The prompts by the tokenizer in this directory.
///
/// # Errors
/// There is no tokenizer, or it refuses the texts.
pub fn of_texts(directory: &Path) -> Result<Vec<Prompt>, TextError> {
    let tokenizer = Tokenizer::from_dir(directory)?;
    let mixed = [STORY, CODE, FOX, INSTRUCTION].concat();
    let texts = [("fox", FOX), ("code", CODE), ("story", STORY), ("instruction", INSTRUCTION), ("mixed", &mixed)];
    let prompt = |(name, text): (&'static str, &str)| Ok(Prompt { name, token_ids: tokenize(&tokenizer, text)? });
    texts.into_iter().map(prompt).collect()
}

/// The text as often as is needed; each time but the fox's with its number, so that it is not only a repetition.
fn tokenize(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TextError> {
    let once = tokenizer.encode(text, false)?.len().max(1);
    let mut times = LEAST.div_ceil(once) + 1;
    let numbered = |number: usize| match text == FOX {
        true => text.to_owned(),
        false => format!("{text}\n\n{}\n\n", number + 1),
    };
    loop {
        let token_ids = tokenizer.encode(&(0..times).map(numbered).collect::<String>(), true)?;
        // Where a text ends, tokens may reach into the next one.
        if token_ids.len() >= LEAST {
            return Ok(token_ids);
        }
        times += times / 4 + 1;
    }
}

/// Prompts for weights that mean nothing: numbers, of as many kinds.
pub fn of_numbers(vocab_size: usize) -> Vec<Prompt> {
    let kinds = [("fox", 10), ("code", 251), ("story", 1021), ("instruction", 509), ("mixed", LEAST)];
    // A stride of its own for each, so that they also begin differently.
    let ids = |period: usize| (0..LEAST).map(move |i| (i % period * (7919 + period) % vocab_size) as u32).collect();
    kinds.into_iter().map(|(name, period)| Prompt { name, token_ids: ids(period) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn check(prompts: &[Prompt]) {
        let names: Vec<_> = prompts.iter().map(|prompt| prompt.name).collect();
        assert_eq!(names, ["fox", "code", "story", "instruction", "mixed"]);
        assert!(prompts.iter().all(|prompt| prompt.token_ids.len() >= LEAST));
        let beginnings: HashSet<_> = prompts.iter().map(|prompt| prompt.beginning(100)).collect();
        assert!(beginnings.len() >= 4, "{} kinds", beginnings.len());
    }

    #[test]
    fn prompts_are_of_five_kinds_and_long() {
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo");
        check(&of_texts(demo.as_ref()).unwrap());
        check(&of_numbers(151_936));
    }
}
