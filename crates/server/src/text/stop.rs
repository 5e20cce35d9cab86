//! Finds stop strings in streamed text and holds back what may still become one; knows characters, not tokens' meaning.

use std::sync::Arc;

/// What may be sent after one more piece of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutput {
    /// Text that is safe to send now; may be empty.
    pub text: String,
    /// The stop string that ended the text, if one was found. Nothing may be pushed after it.
    pub stop: Option<String>,
}

/// Checks the text of one request for stop strings, one token's text at a time, with vLLM's rules: where several stop
/// strings complete in the same token, the one that completes first wins, as it would if each character were a token; of those that end
/// together the first in the request's order. A stop string that completes within the first `min_tokens` tokens is ordinary text.
#[derive(Debug, Clone)]
pub struct StopChecker {
    stops: Arc<[String]>,
    include_in_output: bool,
    min_tokens: usize,
    num_tokens: usize,
    /// The newest text: what is held back, after as much sent text as a stop string could still reach into.
    recent: String,
    /// How many bytes of `recent` have been sent.
    sent: usize,
}

impl StopChecker {
    /// Watches for `stops` (empty strings are ignored). `include_in_output` keeps the stop string in the text.
    pub fn new(stops: Arc<[String]>, include_in_output: bool, min_tokens: usize) -> Self {
        Self { stops, include_in_output, min_tokens, num_tokens: 0, recent: String::new(), sent: 0 }
    }

    /// Takes the text of exactly one more token (possibly empty) and returns what may be sent.
    pub fn push(&mut self, text: &str) -> StopOutput {
        self.num_tokens += 1;
        if self.stops().next().is_none() {
            return StopOutput { text: text.to_owned(), stop: None };
        }
        let old_len = self.recent.len();
        self.recent.push_str(text);
        if self.num_tokens > self.min_tokens
            && let Some((stop, end)) = self.find(old_len)
        {
            // Never negative in practice: text that a stop string could begin with was held back.
            let text = self.recent.get(self.sent..end).unwrap_or_default().to_owned();
            return StopOutput { text, stop: Some(stop) };
        }
        let free = self.recent.len() - self.held_len();
        let text = self.recent[self.sent..free].to_owned();
        self.sent = free;
        self.forget_unreachable();
        StopOutput { text, stop: None }
    }

    fn stops(&self) -> impl Iterator<Item = &String> {
        self.stops.iter().filter(|stop| !stop.is_empty())
    }

    /// The text still held back, for a request that ends for another reason (length, end of sequence, abort).
    pub fn finish(&mut self) -> String {
        let text = self.recent[self.sent..].to_owned();
        self.sent = self.recent.len();
        text
    }

    /// The stop string that ends first after `old_len`, and where the output ends because of it.
    fn find(&self, old_len: usize) -> Option<(String, usize)> {
        let found = self.stops().filter_map(|stop| {
            let mut from = (old_len + 1).saturating_sub(stop.len());
            while !self.recent.is_char_boundary(from) {
                from += 1;
            }
            Some((stop, from + self.recent[from..].find(stop.as_str())?))
        });
        let (stop, start) = found.min_by_key(|(stop, start)| start + stop.len())?;
        let end = if self.include_in_output { start + stop.len() } else { start };
        Some((stop.clone(), end))
    }

    /// Length of the longest end of the text that is the beginning of a stop string.
    fn held_len(&self) -> usize {
        if self.include_in_output {
            return 0;
        }
        let unsent = &self.recent[self.sent..];
        let longest =
            |stop: &String| (1..stop.len()).rev().find(|&n| stop.is_char_boundary(n) && unsent.ends_with(&stop[..n]));
        self.stops().filter_map(longest).max().unwrap_or(0)
    }

    /// Drops sent text that no stop string can reach into any more, so that a token costs the same at any length.
    fn forget_unreachable(&mut self) {
        let reach = self.stops().map(String::len).max().unwrap_or(0);
        let mut keep_from = self.recent.len().saturating_sub(reach).min(self.sent);
        while !self.recent.is_char_boundary(keep_from) {
            keep_from -= 1;
        }
        self.recent.drain(..keep_from);
        self.sent -= keep_from;
    }
}
