//! What a described dispatch may say. It knows the JSON, and nothing of devices.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::element::Type;

/// A dispatch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The `.metal` file.
    pub file: PathBuf,
    /// The kernel.
    pub function: String,
    /// Where `#include` looks.
    #[serde(default)]
    pub include: Vec<PathBuf>,
    /// Macros and their values.
    #[serde(default)]
    pub define: BTreeMap<String, String>,
    /// `[[function_constant(index)]]`
    #[serde(default)]
    pub constants: Vec<ConstantValue>,
    /// What is bound.
    #[serde(default)]
    pub arguments: Vec<Binding>,
    /// Threads of the grid; or else `threadgroups`.
    pub threads: Option<[u32; 3]>,
    /// Threadgroups of the grid; or else `threads`.
    pub threadgroups: Option<[u32; 3]>,
    /// Threads of a threadgroup.
    pub threads_per_threadgroup: [u32; 3],
    /// `maxTotalThreadsPerThreadgroup` of the pipeline.
    pub max_threads: Option<u32>,
    /// In which order threads run.
    #[serde(default)]
    pub order: RunOrder,
}

/// A function constant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConstantValue {
    /// Its index in the source.
    pub index: u32,
    /// Its type in the source; not needed without a value.
    #[serde(rename = "type")]
    pub kind: Option<ConstantType>,
    /// Its value: a number, or true or false. Without one, or with null, the constant stays undefined.
    pub value: Option<serde_json::Value>,
}

/// Types of function constants.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConstantType {
    Bool,
    Ushort,
    Short,
    Uint,
    Int,
    Ulong,
    Float,
}

/// What is bound to a parameter.
#[derive(Debug, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub enum Binding {
    /// A buffer of its own.
    Buffer(BufferBinding),
    /// Bytes that are copied, as by `setBytes`: an argument by reference.
    Bytes(BytesBinding),
    /// Threadgroup memory.
    Threadgroup(ThreadgroupBinding),
}

/// A buffer of its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferBinding {
    /// The n of `[[buffer(n)]]`.
    pub buffer: usize,
    #[serde(rename = "type")]
    pub kind: Type,
    /// Number of elements; by default that of the file.
    pub count: Option<usize>,
    #[serde(default)]
    pub fill: Fill,
    /// Whether writing to it is a mistake.
    #[serde(default)]
    pub read_only: bool,
    /// How many of its elements are printed in the end.
    #[serde(default)]
    pub print: usize,
    /// Where its content is written to in the end.
    pub write: Option<PathBuf>,
}

/// Bytes that are copied.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BytesBinding {
    /// The n of `[[buffer(n)]]`.
    pub bytes: usize,
    #[serde(rename = "type")]
    pub kind: Type,
    pub values: Vec<f64>,
}

/// Threadgroup memory.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadgroupBinding {
    /// The n of `[[threadgroup(n)]]`.
    pub threadgroup: usize,
    /// Its length in bytes.
    pub length: usize,
}

impl TryFrom<serde_json::Value> for Binding {
    type Error = String;

    fn try_from(value: serde_json::Value) -> Result<Self, String> {
        let kinds = ["buffer", "bytes", "threadgroup"];
        let kind = kinds.into_iter().find(|kind| value.get(kind).is_some());
        let kind = kind.ok_or_else(|| format!("argument {value} has none of the keys {}", kinds.join(", ")))?;
        let name = format!("argument {{ \"{kind}\": {}, … }}", value[kind]);
        let result = match kind {
            "buffer" => serde_json::from_value(value).map(Self::Buffer),
            "bytes" => serde_json::from_value(value).map(Self::Bytes),
            _ => serde_json::from_value(value).map(Self::Threadgroup),
        };
        result.map_err(|error| format!("{name}: {error}"))
    }
}

/// What a buffer holds in the beginning.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Fill {
    #[default]
    Zeros,
    /// 0, 1, 2, …
    Iota,
    /// Between -1 and 1, or for integers of any size: always the same.
    Random,
    /// One value.
    Value(f64),
    /// These values, over and over.
    Values(Vec<f64>),
    /// The bytes of a file.
    File(PathBuf),
}

/// In which order threads run.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOrder {
    #[default]
    Forward,
    Reverse,
    Shuffled(u64),
}
