//! The vocabulary as llguidance reads it: the bytes of each token, special tokens marked.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::text::Tokenizer;

/// The tokens that text is made of.
///
/// # Errors
/// The model has no end token, without which no output could end where its form does.
pub fn read(tokenizer: &Tokenizer, eos_token_ids: &[u32]) -> Result<TokEnv, String> {
    let vocab_size = u32::try_from(tokenizer.vocab_size()).map_err(|_| "the vocabulary is too large".to_owned())?;
    let ends: Vec<u32> = eos_token_ids.iter().copied().filter(|&id| id < vocab_size).collect();
    let Some(&tok_eos) = ends.first() else {
        return Err("the model has no end token, which structured output needs".to_owned());
    };
    let words: Vec<Vec<u8>> = (0..vocab_size).map(|id| word(tokenizer, id, &ends)).collect();
    let info = TokRxInfo { vocab_size, tok_eos, tok_bos: None, tok_pad: None, tok_unk: None, tok_end_of_turn: None };
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// A token that has no text is in no text.
fn word(tokenizer: &Tokenizer, id: u32, ends: &[u32]) -> Vec<u8> {
    if !tokenizer.contains(id) {
        return Vec::new();
    }
    let bytes = tokenizer.token_bytes(id);
    match tokenizer.is_special(id) || ends.contains(&id) {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER][..], &bytes].concat(),
        false => bytes,
    }
}
