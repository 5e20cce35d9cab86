//! What a server and its template workers say to each other: frames of JSON, each after its length. Knows no process.
//!
//! The server sends one [`Ask`] at a time. The worker answers with an empty frame as soon as it has read it, so that the server
//! knows whose fault the worker's death is, and then with an [`Answer`].

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::TextError;
use super::tekken::Piece;
use super::template_limits::TemplateLimit;
use super::template_source::JinjaSource;

/// Far above any request or prompt as JSON: a longer frame is none.
const MAX_FRAME_BYTES: u32 = 512 << 20;

/// What the server wants.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask<'a> {
    /// Compile these templates and forget others.
    Compile(JinjaSource),
    /// Render a conversation with the templates compiled last.
    #[serde(borrow)]
    Render(RenderAsk<'a>),
    /// The same in Mistral's format of this version.
    Mistral {
        version: u32,
        #[serde(borrow)]
        ask: RenderAsk<'a>,
    },
}

/// A conversation; see [`super::ChatRequest`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RenderAsk<'a> {
    #[serde(borrow)]
    pub messages: &'a RawValue,
    pub tools: Option<&'a RawValue>,
    pub documents: Option<&'a RawValue>,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
    pub kwargs: BTreeMap<String, &'a RawValue>,
}

/// What the worker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub reply: Reply,
    /// The worker has grown and ends now.
    pub is_spent: bool,
}

/// The result of an [`Ask`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The templates are compiled.
    Compiled,
    /// The prompt.
    Rendered(String),
    /// The prompt in Mistral's format.
    Pieces(Vec<Piece>),
    /// The templates do not compile.
    Syntax(String),
    /// The template refused the conversation or failed on it.
    Refused(String),
    /// The rendering takes too many steps.
    Steps,
    /// The prompt is too long.
    Text,
}

impl From<TextError> for Reply {
    fn from(error: TextError) -> Self {
        match error {
            TextError::TemplateSyntax { reason, .. } => Self::Syntax(reason),
            TextError::TemplateLimit(TemplateLimit::Steps) => Self::Steps,
            TextError::TemplateLimit(TemplateLimit::Text) => Self::Text,
            TextError::Template(reason) => Self::Refused(reason),
            other => Self::Refused(other.to_string()),
        }
    }
}

/// Writes one frame.
pub(super) fn write_frame(out: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let len = u32::try_from(frame.len()).ok().filter(|&len| len <= MAX_FRAME_BYTES);
    let len = len.ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(frame)?;
    out.flush()
}

/// Reads one frame; `None` where the stream ends before one.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match from.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let len = u32::from_le_bytes(len);
    if len > MAX_FRAME_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; len as usize];
    from.read_exact(&mut frame)?;
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe that has broken.
    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn frames_come_back_until_the_stream_ends() {
        let mut stream = Vec::new();
        write_frame(&mut stream, b"one").unwrap();
        write_frame(&mut stream, b"").unwrap();
        let mut from = stream.as_slice();
        assert_eq!(read_frame(&mut from).unwrap().as_deref(), Some(b"one".as_slice()));
        assert_eq!(read_frame(&mut from).unwrap().as_deref(), Some(b"".as_slice()));
        assert_eq!(read_frame(&mut from).unwrap(), None);
    }

    #[test]
    fn what_breaks_is_no_end() {
        assert_eq!(read_frame(&mut Broken).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let cut = [&4_u32.to_le_bytes()[..], b"abc"].concat();
        assert_eq!(read_frame(&mut cut.as_slice()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let long = (MAX_FRAME_BYTES + 1).to_le_bytes();
        assert_eq!(read_frame(&mut long.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let longest = MAX_FRAME_BYTES.to_le_bytes();
        assert_eq!(read_frame(&mut longest.as_slice()).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
