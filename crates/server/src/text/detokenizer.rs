//! Turns one request's token ids into text as they arrive, never splitting a character; knows no stop strings.

use std::sync::Arc;

use super::TextError;
use super::hugging_face::{LeadingStrip, Pieces};
use super::tokenizer::{Source, Tokenizer};

/// Which tokens show, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetokenizeOptions {
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Whether a decoder that joins tokens by spaces may do so between two added tokens that follow each other. Has an effect only
    /// when special tokens show, as in vLLM.
    pub spaces_between_special_tokens: bool,
}

impl Default for DetokenizeOptions {
    fn default() -> Self {
        Self { skip_special_tokens: true, spaces_between_special_tokens: true }
    }
}

/// The text of one request, piece by piece. All pieces, with that of `finish`, make the text that decoding the tokens at once makes, without a
/// character that the end cuts off: as in vLLM, half a character is none. No piece ends inside a character, so that the tokens of a piece have its
/// text between them.
///
/// One exception: where byte tokens (`<0xE2>`) first make whole characters and then, with no other token between, an
/// invalid sequence, decoding at once gives U+FFFD for all of them; a stream has already shown the characters.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    options: DetokenizeOptions,
    state: State,
}

#[derive(Debug)]
enum State {
    Bytes { pending: Vec<u8> },
    SentencePiece { run: ByteRun, strip: LeadingStrip },
    Windowed(Window),
}

impl Detokenizer {
    /// Starts after `prompt`, whose text is not returned but decides, for instance, whether the first token keeps its leading space.
    pub fn new(tokenizer: Arc<Tokenizer>, prompt: &[u32], options: DetokenizeOptions) -> Self {
        let state = match tokenizer.pieces() {
            None | Some((_, Pieces::Bytes(_))) => State::Bytes { pending: Vec::new() },
            Some((_, Pieces::SentencePiece(strip))) => State::SentencePiece { run: ByteRun::default(), strip: *strip },
            Some((_, Pieces::Windowed)) => State::Windowed(Window::default()),
        };
        let mut detokenizer = Self { tokenizer, options, state };
        // Enough context for any character that the prompt left incomplete and for any text that depends on its neighbour.
        let end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        let shown = end.iter().rev().copied().filter(|&id| !detokenizer.skips(id));
        let mut context: Vec<u32> = shown.take(PROMPT_CONTEXT).collect();
        context.reverse();
        // Cut inside a character, the context must not make its byte run look invalid.
        let inside = |id: u32| {
            let byte = detokenizer.tokenizer.pieces().and_then(|(hugging_face, _)| hugging_face.byte_token(id));
            byte.is_some_and(|byte| byte & 0xC0 == 0x80)
        };
        let start = context.iter().position(|&id| !inside(id)).unwrap_or(context.len());
        for &id in &context[start..] {
            // An error here would be one of the prompt's text, which nobody asked for.
            let _ = detokenizer.push(id);
        }
        if let State::Bytes { pending } = &mut detokenizer.state {
            take_complete(pending);
        }
        detokenizer
    }

    /// Takes the next token and returns the text that is now complete; often a word, sometimes nothing.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        let skips = self.skips(id);
        let tokenizer = &self.tokenizer;
        if skips {
            return Ok(match (&tokenizer.source, &mut self.state) {
                // With tekken.json a special token separates, even when it does not show.
                (Source::Tekken(_), State::Bytes { pending }) => take_all(pending),
                _ => String::new(),
            });
        }
        if !tokenizer.contains(id) {
            return Ok(String::new());
        }
        match &mut self.state {
            State::Bytes { pending } => Ok(push_bytes(tokenizer, pending, id)),
            State::SentencePiece { run, strip } => {
                let text = match tokenizer.pieces().and_then(|(hugging_face, _)| hugging_face.byte_token(id)) {
                    Some(byte) => run.push(byte),
                    None => {
                        let mut text = run.finish();
                        text.push_str(&String::from_utf8_lossy(&tokenizer.token_bytes(id)));
                        text
                    }
                };
                Ok(strip.apply(text))
            }
            State::Windowed(window) => window.push(tokenizer, id, self.options),
        }
    }

    /// The rest of the text, without a character that never became complete. For the end of a request.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Bytes { pending } => {
                let rest = take_complete(pending);
                pending.clear();
                rest
            }
            State::SentencePiece { run, .. } => {
                *run = ByteRun::default();
                String::new()
            }
            State::Windowed(window) => window.finish(),
        }
    }

    fn skips(&self, id: u32) -> bool {
        self.options.skip_special_tokens && self.tokenizer.is_special(id)
    }
}

/// Tokens of the prompt that are looked at; vLLM looks at 5 to 23.
const PROMPT_CONTEXT: usize = 8;

/// Tokens at the end of the prompt among which they are looked for: each of many answers to a long prompt does so.
const PROMPT_END: usize = 1024;

/// Bytes of text that wait for a character to become complete: no model leaves as many, and text does not wait for ever.
const MAX_PENDING: usize = 256;

/// Adds a token's bytes and takes out the text, unless it ends inside a character.
fn push_bytes(tokenizer: &Tokenizer, pending: &mut Vec<u8>, id: u32) -> String {
    let mut before = String::new();
    match &tokenizer.source {
        Source::Tekken(tekken) => {
            if tekken.is_special(id) {
                before = take_all(pending);
            }
            pending.extend_from_slice(tekken.token_bytes(id));
        }
        Source::HuggingFace(hugging_face) => pending.extend_from_slice(&hugging_face.token_bytes(id)),
    }
    if incomplete_suffix(pending) == 0 || pending.len() > MAX_PENDING {
        before.push_str(&take_complete(pending));
    }
    before
}

/// Takes out all text, with U+FFFD for a character that will not become complete.
fn take_all(pending: &mut Vec<u8>) -> String {
    String::from_utf8_lossy(&std::mem::take(pending)).into_owned()
}

/// Takes out the text before a character that is not complete.
fn take_complete(pending: &mut Vec<u8>) -> String {
    let complete = pending.len() - incomplete_suffix(pending);
    let text = String::from_utf8_lossy(&pending[..complete]).into_owned();
    pending.drain(..complete);
    text
}

/// How many bytes at the end could be the beginning of a character.
fn incomplete_suffix(bytes: &[u8]) -> usize {
    // Such a beginning is at most three bytes long, and its first byte is the last one that can begin a character.
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    let Some(from_end) = tail.iter().rev().position(|&b| b >= 0xC0) else { return 0 };
    let candidate = &tail[tail.len() - 1 - from_end..];
    // `error_len` is None exactly if the input ends before the character does.
    match std::str::from_utf8(candidate) {
        Err(e) if e.valid_up_to() == 0 && e.error_len().is_none() => candidate.len(),
        _ => 0,
    }
}

/// Consecutive byte tokens. Once a run is invalid, each of its bytes shows as U+FFFD, as in the library's ByteFallback.
#[derive(Debug, Default)]
struct ByteRun {
    pending: Vec<u8>,
    invalid: bool,
}

impl ByteRun {
    fn push(&mut self, byte: u8) -> String {
        self.pending.push(byte);
        if !self.invalid {
            match std::str::from_utf8(&self.pending) {
                Ok(text) => {
                    let text = text.to_owned();
                    self.pending.clear();
                    return text;
                }
                Err(e) if e.error_len().is_none() => return String::new(),
                Err(_) => self.invalid = true,
            }
        }
        self.replace_pending()
    }

    /// Ends the run: what is still incomplete is invalid.
    fn finish(&mut self) -> String {
        self.invalid = false;
        self.replace_pending()
    }

    fn replace_pending(&mut self) -> String {
        let text = "\u{FFFD}".repeat(self.pending.len());
        self.pending.clear();
        text
    }
}

impl LeadingStrip {
    /// Removes what is still to be removed at the beginning of the whole text.
    fn apply(&mut self, mut text: String) -> String {
        while self.count > 0 && !text.is_empty() {
            if text.starts_with(self.what) {
                text.remove(0);
                self.count -= 1;
            } else {
                self.count = 0;
            }
        }
        text
    }
}

/// The last tokens and their text: a token's text is by how much the text of these grows with it (vLLM's prefix and read
/// offsets).
#[derive(Debug, Default)]
struct Window {
    ids: Vec<u32>,
    /// How many of `ids` have been shown, and their text.
    shown: usize,
    shown_text: String,
    /// Text that waits for the rest of a character.
    waiting: String,
    last_added: bool,
}

/// A character has at most four bytes, so more tokens than this never wait for one another.
const MAX_WAITING: usize = 8;

impl Window {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, options: DetokenizeOptions) -> Result<String, TextError> {
        self.ids.push(id);
        let text = tokenizer.decode(&self.ids, false)?;
        // A decoder that rewrites earlier text cannot be streamed exactly; its newest text is then shown as it stands.
        let new = match text.strip_prefix(self.shown_text.as_str()) {
            Some(new) => new.to_owned(),
            None => tokenizer.decode(&self.ids[self.shown..], false)?,
        };
        let added = tokenizer.pieces().and_then(|(hugging_face, _)| hugging_face.added_token(id));
        let adjacent = self.last_added && added.is_some();
        self.last_added = added.is_some();
        if new.ends_with('\u{FFFD}') && self.ids.len() - self.shown < MAX_WAITING {
            self.waiting = new;
            return Ok(String::new());
        }
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        self.shown_text = tokenizer.decode(&self.ids, false)?;
        self.waiting.clear();
        let spaces = options.skip_special_tokens || options.spaces_between_special_tokens;
        Ok(added.filter(|_| adjacent && !spaces).unwrap_or(new))
    }

    fn finish(&mut self) -> String {
        self.shown = self.ids.len();
        std::mem::take(&mut self.waiting).trim_end_matches('\u{FFFD}').to_owned()
    }
}
