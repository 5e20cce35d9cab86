//! What compiling and rendering a chat template may take. Templates come with checkpoints from the internet, and some with
//! requests; Jinja is a programming language, so that they are programs which others wrote. Knows no template.

use std::time::Duration;

/// Instructions of the template engine in one rendering. Templates of current models take 30 to 60 for a message (those in
/// tests/golden), so that 300,000 messages, about as many as fit into a request, take 20 million. Loops that do not end meet
/// this limit after one or two seconds.
pub(super) const FUEL: u64 = 50_000_000;

/// Bytes that the worker process may allocate: 48 times the largest request of 16 MiB. The engine's values of 300,000 short
/// messages take 10 times their text; the rest is room for templates that copy the conversation.
pub(super) const MEMORY_BYTES: usize = 768 << 20;

/// Bytes of a worker's stack. The template engine limits the depth of calls to 500 and that of expressions to 150, which takes
/// a few MB; chains of operators it does not limit, and they end here.
pub(super) const STACK_BYTES: usize = 16 << 20;

/// Bytes of a rendered prompt: far more than any model reads. As JSON, on its way to the server, it may be six times as long.
pub(super) const MAX_TEXT_BYTES: usize = 16 << 20;

/// Bytes of an error's words, which a template may choose. It goes to the client and to the log.
const MAX_REASON_BYTES: usize = 4 << 10;

/// Time to compile or to render, which bounds what the other limits do not: work within one instruction, such as `replace`
/// on a long text. 300,000 messages take a second or two.
pub(super) const TIME: Duration = Duration::from_secs(10);

/// A worker that has needed more than this is replaced, as allocators seldom give everything back.
pub(super) const KEPT_BYTES: usize = 64 << 20;

/// Workers at once; other requests wait for one.
pub const MAX_WORKERS: usize = 4;

/// Which limit a template exceeded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateLimit {
    /// It executed too many instructions.
    #[error("takes too many steps, more than {FUEL}: its loops hardly end")]
    Steps,
    /// It ran too long.
    #[error("takes too much time, more than {} s", TIME.as_secs())]
    Time,
    /// It needed too much memory.
    #[error("needs too much memory, more than {} MiB", MEMORY_BYTES >> 20)]
    Memory,
    /// It overflowed the stack.
    #[error("nests too deeply: it overflows a stack of {} MiB", STACK_BYTES >> 20)]
    Stack,
    /// It wrote too long a prompt.
    #[error("writes too long a prompt, more than {} MiB", MAX_TEXT_BYTES >> 20)]
    Text,
    /// The process that rendered it died for another reason.
    #[error("ends the process that renders it ({0})")]
    Crash(String),
}

/// Cuts an error's words to [`MAX_REASON_BYTES`].
pub(super) fn shorten(reason: &mut String) {
    if reason.len() > MAX_REASON_BYTES {
        let end = (0..=MAX_REASON_BYTES).rev().find(|&at| reason.is_char_boundary(at)).unwrap_or(0);
        reason.truncate(end);
        reason.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_where_a_character_ends() {
        let shortened = |mut words: String| {
            shorten(&mut words);
            words
        };
        let longest = "x".repeat(MAX_REASON_BYTES);
        assert_eq!(shortened(longest.clone()), longest);
        assert_eq!(shortened(longest.clone() + "x"), longest.clone() + "…");
        assert_eq!(shortened(longest[1..].to_owned() + "éé"), longest[1..].to_owned() + "…");
    }
}
