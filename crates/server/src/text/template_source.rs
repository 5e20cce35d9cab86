//! Where a checkpoint's chat template is, and what its text is. Knows files and names, nothing of Jinja.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use vllm_apple_model::file;
use vllm_apple_model::load::gguf;

use super::TextError;
use super::special::read_object;
use super::tokenizer::{Source, Tokenizer};

/// The template for all requests that have none of their own kind.
pub(super) const DEFAULT: &str = "default";
/// Where others are beside it.
const ADDITIONAL: &str = "additional_chat_templates";
/// The template for requests with tools.
pub(super) const TOOL_USE: &str = "tool_use";

/// The origin of a template that the server was started with.
const GIVEN: &str = "--chat-template";
/// That of one that a request brings.
pub(super) const REQUEST: &str = "the request";

/// What to do about a template of this origin.
pub(super) fn remedy(origin: &str) -> &'static str {
    if [GIVEN, REQUEST].contains(&origin) { "" } else { "; --chat-template FILE takes another one in its place" }
}

/// How conversations become prompts.
#[derive(Debug)]
pub(super) enum TemplateSource {
    /// By Jinja templates.
    Jinja(JinjaSource),
    /// In the instruction format of a tekken.json's version.
    Mistral,
    /// Not at all.
    Missing { dir: PathBuf },
}

/// Jinja templates by name, as text.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct JinjaSource {
    pub templates: Vec<(String, String)>,
    /// What templates may name besides the conversation: the tokenizer's special tokens.
    pub variables: Vec<(String, String)>,
    /// The file, or how else the templates were given.
    pub origin: String,
}

impl JinjaSource {
    /// A single template.
    pub fn single(text: &str, tokenizer: &Tokenizer, origin: &str) -> Self {
        let templates = vec![(DEFAULT.to_owned(), text.to_owned())];
        Self { templates, variables: variables(tokenizer), origin: origin.to_owned() }
    }
}

impl TemplateSource {
    /// `override_text`, or chat_template.jinja, or `chat_template` in tokenizer_config.json, or Mistral's own format where
    /// there is only a tekken.json.
    pub fn find(dir: &Path, tokenizer: &Tokenizer, override_text: Option<&str>) -> Result<Self, TextError> {
        if let Some(text) = override_text {
            return Ok(Self::Jinja(JinjaSource::single(text, tokenizer, GIVEN)));
        }
        let (templates, origin) = find_templates(dir)?;
        Ok(match &tokenizer.source {
            _ if !templates.is_empty() => {
                Self::Jinja(JinjaSource { templates, variables: variables(tokenizer), origin })
            }
            Source::Tekken(_) => Self::Mistral,
            Source::HuggingFace(_) => Self::Missing { dir: dir.to_owned() },
        })
    }
}

fn variables(tokenizer: &Tokenizer) -> Vec<(String, String)> {
    tokenizer.special_tokens().iter().map(|(name, token)| (name.to_owned(), token.to_owned())).collect()
}

/// Whether a directory has a chat template.
pub fn has_chat_template(dir: &Path) -> Result<bool, TextError> {
    Ok(!find_templates(dir)?.0.is_empty())
}

/// Templates of names of their own, which transformers writes into a directory beside the one.
fn additional_templates(dir: &Path) -> Result<Vec<(String, String)>, TextError> {
    let mut templates = Vec::new();
    for entry in dir.join(ADDITIONAL).read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
        if let Some(name) = name.filter(|_| path.extension().is_some_and(|ending| ending == "jinja")) {
            templates.push((name, read_template(&path).map_err(|source| TextError::Read { path, source })?));
        }
    }
    Ok(templates)
}

fn read_template(path: &Path) -> io::Result<String> {
    file::read(path, file::MAX_TEMPLATE).and_then(|text| String::from_utf8(text).map_err(io::Error::other))
}

/// The checkpoint's templates by name, and the file that they come from.
fn find_templates(dir: &Path) -> Result<(Vec<(String, String)>, String), TextError> {
    let path = dir.join("chat_template.jinja");
    match read_template(&path) {
        Ok(text) => {
            let mut templates = vec![(DEFAULT.to_owned(), text)];
            templates.extend(additional_templates(dir)?);
            return Ok((templates, path.display().to_string()));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(TextError::Read { path, source }),
    }
    let path = dir.join("tokenizer_config.json");
    let config = read_object(&path)?.unwrap_or_default();
    let named =
        |entry: &Value| Some((entry.get("name")?.as_str()?.to_owned(), entry.get("template")?.as_str()?.to_owned()));
    let templates = match config.get("chat_template") {
        Some(Value::String(text)) => vec![(DEFAULT.to_owned(), text.clone())],
        Some(Value::Array(list)) => {
            list.iter().map(named).collect::<Option<Vec<_>>>().ok_or_else(|| TextError::Invalid {
                path: path.clone(),
                reason: "chat_template is a list, and each entry must have a name and a template".to_owned(),
            })?
        }
        None | Some(Value::Null) => Vec::new(),
        Some(_) => {
            let reason = "chat_template must be a text, or a list of entries with a name and a template".to_owned();
            return Err(TextError::Invalid { path, reason });
        }
    };
    // Of what a GGUF file stands for, the file itself.
    let origin = if gguf::is_file(dir) { dir } else { &path };
    Ok((templates, origin.display().to_string()))
}
