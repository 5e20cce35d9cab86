//! The formats by the names that vLLM gives their parsers, and which one a model's template shows.

use crate::machine::Machine;
use crate::reasoning::{Behind, Opening, Think};
use crate::schemas::ToolSchemas;
use crate::tools::deepseek::DeepSeek;
use crate::tools::glm::Glm;
use crate::tools::harmony::Harmony;
use crate::tools::json::{Form, JsonTools};
use crate::tools::mistral::Mistral;
use crate::tools::named::Named;
use crate::tools::pythonic::Pythonic;
use crate::tools::qwen_xml::QwenXml;

/// How a model writes calls of tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`
    Hermes,
    /// `{"name": …, "parameters": …}`, alone
    LlamaJson,
    /// `[TOOL_CALLS]` with a list of calls, or with a name and its arguments
    Mistral,
    /// `<tool_call><function=name><parameter=key>…`
    QwenXml,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name` and a block of JSON
    DeepSeekV3,
    /// `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}`
    DeepSeekV31,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>…`
    Glm,
    /// `[name(key=value), …]`
    Pythonic,
    /// gpt-oss: messages in channels, to recipients; brings reasoning, too
    Harmony,
    /// A list of calls as JSON and nothing else: what a required call is held to.
    Required,
    /// Arguments of this tool and nothing else: what a named call is held to.
    Named(String),
}

/// How a model writes what it thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>…</think>`, where the model begins with it or the prompt ends with it
    Think,
    /// The same, and a text without the first tag is reasoning as well: DeepSeek R1
    ThinkAlways,
    /// `[THINK]…[/THINK]`
    Mistral,
    /// `<seed:think>…</seed:think>`
    Seed,
    /// As [`ToolFormat::Harmony`], which reads it
    Harmony,
}

const TOOLS: &[(&str, ToolFormat)] = &[
    ("hermes", ToolFormat::Hermes),
    ("qwen3_json", ToolFormat::Hermes),
    ("llama3_json", ToolFormat::LlamaJson),
    ("llama4_json", ToolFormat::LlamaJson),
    ("mistral", ToolFormat::Mistral),
    ("qwen3_coder", ToolFormat::QwenXml),
    ("qwen3_xml", ToolFormat::QwenXml),
    ("deepseek_v3", ToolFormat::DeepSeekV3),
    ("deepseek_v31", ToolFormat::DeepSeekV31),
    ("glm45", ToolFormat::Glm),
    ("glm47", ToolFormat::Glm),
    ("pythonic", ToolFormat::Pythonic),
    ("llama4_pythonic", ToolFormat::Pythonic),
    ("openai", ToolFormat::Harmony),
];

const REASONING: &[(&str, ReasoningFormat)] = &[
    ("deepseek_r1", ReasoningFormat::ThinkAlways),
    ("deepseek_v3", ReasoningFormat::Think),
    ("qwen3", ReasoningFormat::Think),
    ("glm45", ReasoningFormat::Think),
    ("mistral", ReasoningFormat::Mistral),
    ("seed_oss", ReasoningFormat::Seed),
    ("openai_gptoss", ReasoningFormat::Harmony),
];

impl ToolFormat {
    /// The names that [`ToolFormat::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TOOLS.iter().map(|(name, _)| *name)
    }

    /// The format of a parser of vLLM.
    pub fn named(name: &str) -> Option<Self> {
        TOOLS.iter().find(|(known, _)| *known == name).map(|(_, format)| format.clone())
    }

    /// The format that a chat template shows the model: each has words that no other has.
    pub fn of_template(template: &str) -> Option<Self> {
        let has = |words: &str| template.contains(words);
        Some(match () {
            () if has("<|channel|>") && has("<|message|>") => Self::Harmony,
            () if has("<function=") && has("<parameter=") => Self::QwenXml,
            () if has("<arg_key>") => Self::Glm,
            () if has("<tool_call>") => Self::Hermes,
            () if has("[TOOL_CALLS]") => Self::Mistral,
            () if has("<｜tool▁sep｜>") && has("```json") => Self::DeepSeekV3,
            () if has("<｜tool▁sep｜>") => Self::DeepSeekV31,
            () if has("[func_name1(params_name1=") => Self::Pythonic,
            () if has("\"parameters\":") || has("<|python_tag|>") => Self::LlamaJson,
            () => return None,
        })
    }

    /// Tags that it stands between, where they may be special tokens.
    pub fn tags(&self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::QwenXml => &["<tool_call>", "</tool_call>"],
            Self::LlamaJson => &["<|python_tag|>"],
            Self::Mistral => &["[TOOL_CALLS]", "[ARGS]"],
            Self::DeepSeekV3 | Self::DeepSeekV31 => &["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"],
            Self::Glm => &["<tool_call>", "<arg_key>"],
            Self::Harmony => &["<|channel|>", "<|message|>"],
            Self::Pythonic | Self::Required | Self::Named(_) => &[],
        }
    }

    /// How a call begins in thoughts that were not ended: in formats whose models forget to, as in vLLM.
    pub(crate) fn opening(&self) -> Option<Opening> {
        let (tag, behind) = match self {
            Self::Hermes => ("<tool_call>", Behind::Text("{")),
            Self::QwenXml => ("<tool_call>", Behind::Text("<function=")),
            Self::Glm => ("<tool_call>", Behind::Name),
            Self::Mistral => ("[TOOL_CALLS]", Behind::Anything),
            Self::LlamaJson | Self::DeepSeekV3 | Self::DeepSeekV31 | Self::Pythonic => return None,
            Self::Harmony | Self::Required | Self::Named(_) => return None,
        };
        Some(Opening { tag, behind })
    }

    pub(crate) fn machine(self, schemas: ToolSchemas) -> Box<dyn Machine> {
        match self {
            Self::Hermes => Box::new(JsonTools::new(Form::Tagged)),
            Self::LlamaJson => Box::new(JsonTools::new(Form::Bare)),
            Self::Required => Box::new(JsonTools::new(Form::List)),
            Self::Mistral => Box::new(Mistral::default()),
            Self::QwenXml => Box::new(QwenXml::new(schemas)),
            Self::DeepSeekV3 => Box::new(DeepSeek::v3()),
            Self::DeepSeekV31 => Box::new(DeepSeek::v31()),
            Self::Glm => Box::new(Glm::new(schemas)),
            Self::Pythonic => Box::new(Pythonic::default()),
            Self::Harmony => Box::new(Harmony::default()),
            Self::Named(name) => Box::new(Named::new(name)),
        }
    }
}

impl ReasoningFormat {
    /// The names that [`ReasoningFormat::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        REASONING.iter().map(|(name, _)| *name)
    }

    /// The format of a parser of vLLM.
    pub fn named(name: &str) -> Option<Self> {
        REASONING.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// The format that a chat template shows.
    pub fn of_template(template: &str) -> Option<Self> {
        let has = |words: &str| template.contains(words);
        Some(match () {
            () if has("<|channel|>") && has("<|message|>") => Self::Harmony,
            () if has("</think>") => Self::Think,
            () if has("[THINK]") => Self::Mistral,
            () if has("<seed:think>") => Self::Seed,
            () => return None,
        })
    }

    /// The tags around it. `None` for one that has none.
    pub fn tags(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Think | Self::ThinkAlways => Some(("<think>", "</think>")),
            Self::Mistral => Some(("[THINK]", "[/THINK]")),
            Self::Seed => Some(("<seed:think>", "</seed:think>")),
            Self::Harmony => None,
        }
    }

    /// `opening`: how a call begins, if tools are offered. What DeepSeek R1 thinks has an end always, as in vLLM.
    pub(crate) fn think(self, begun: bool, opening: Option<Opening>) -> Option<Think> {
        let (start, end) = self.tags()?;
        let is_r1 = self == Self::ThinkAlways;
        Some(Think::new(start, end, begun || is_r1, opening.filter(|_| !is_r1)))
    }
}
