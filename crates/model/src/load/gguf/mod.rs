//! GGUF files: a checkpoint in one file or several. Such a file is a directory of the files that it stands for: its `config.json`,
//! `tokenizer.json` and `tokenizer_config.json` are made of its metadata when they are read.

mod blocks;
mod config;
mod container;
mod names;
mod tokenizer;
mod types;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
pub(crate) use blocks::Blocks;
pub(crate) use container::{Container, Tensor};
pub(crate) use types::Type;

use crate::load::families::Names;

/// In which order the rows of a matrix lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// In their own.
    Plain,
    /// As `llama` has queries and keys: of each head of so many rows, those of its lower and its upper half in turn.
    Interleaved { head: usize },
}

impl RowOrder {
    /// Where row `row` lies.
    pub(crate) fn stored(self, row: usize) -> usize {
        match self {
            Self::Plain => row,
            Self::Interleaved { head } => {
                let (first, within) = (row - row % head, row % head);
                first + within % (head / 2) * 2 + within / (head / 2)
            }
        }
    }
}

/// Whether a path is that of a GGUF file.
pub fn is_file(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) && path.is_file()
}

/// The only GGUF model of a directory: its file, or the first of its files.
///
/// # Errors
/// There are several, which the error names.
pub fn find(directory: &Path) -> Result<Option<PathBuf>, String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut models: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| is_file(path) && part_of(path).is_none_or(|(_, number, _)| number == 1))
        .collect();
    models.sort();
    match &models[..] {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        several => {
            let names: Vec<_> = several.iter().map(|path| path.file_name().unwrap_or_default().display().to_string()).collect();
            Err(format!("it holds several GGUF models ({}); give the path of one", names.join(", ")))
        }
    }
}

/// Of the file of a split model: the name before its numbers, its number and how many there are.
fn part_of(path: &Path) -> Option<(&str, u32, u32)> {
    let (rest, of) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    Some((name, number.parse().ok()?, of.parse().ok()?))
}

/// All files of the model whose first is `path`.
///
/// # Errors
/// It is a later one.
pub(crate) fn parts(path: &Path) -> Result<Vec<PathBuf>, String> {
    match part_of(path) {
        None => Ok(vec![path.to_owned()]),
        Some((name, 1, of)) => {
            Ok((1..=of.min(9999)).map(|number| path.with_file_name(format!("{name}-{number:05}-of-{of:05}.gguf"))).collect())
        }
        Some((_, number, of)) => Err(format!("it is part {number} of {of}; give the path of the first")),
    }
}

/// What is in the bytes of a file.
pub(crate) fn read(bytes: &[u8]) -> Result<Container, String> {
    container::read(bytes)
}

/// The file `name` that a GGUF file stands for; `None` if it stands for no such file.
pub(crate) fn member(path: &Path, name: &str) -> Option<io::Result<Vec<u8>>> {
    type Parts = Vec<(Container, memmap2::Mmap)>;
    let make: fn(&Parts) -> Result<Value, String> = match name {
        "config.json" => |parts| config::config(parts),
        "tokenizer.json" => |parts| tokenizer::tokenizer(&parts[0].0.metadata),
        "tokenizer_config.json" => |parts| tokenizer::settings(&parts[0].0.metadata),
        _ => return None,
    };
    let open = |path: &PathBuf| {
        let file = std::fs::File::open(path)?;
        // SAFETY: whoever changes the file meanwhile changes what is read, which is doubted as any; what is no longer there ends the process.
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        Ok::<_, io::Error>((container::read(&map).map_err(io::Error::other)?, map))
    };
    let made = || {
        // The vocabulary is in the first file.
        let files = if name == "config.json" { parts(path).map_err(io::Error::other)? } else { vec![path.to_owned()] };
        let parts = files.iter().map(open).collect::<io::Result<Parts>>()?;
        make(&parts).map(|value| value.to_string().into_bytes()).map_err(io::Error::other)
    };
    Some(made())
}

/// A tensor as checkpoints of safetensors have it: name, shape and order of rows.
pub(crate) fn translated(tensor: &Tensor, model: &Model<'_>) -> (String, Vec<usize>, RowOrder) {
    let name = names::translated(&tensor.name, model.names, model.shares_experts);
    let mut shape = tensor.shape.clone();
    // A matrix of one row.
    if tensor.name.ends_with(".ffn_gate_inp_shexp.weight") && shape.len() == 1 {
        shape.insert(0, 1);
    }
    let is_rotated = [".attn_q.", ".attn_k."].iter().any(|part| tensor.name.contains(part));
    let order = match model.interleaved && is_rotated {
        true => RowOrder::Interleaved { head: model.head_dim },
        false => RowOrder::Plain,
    };
    (name, shape, order)
}

/// What of a model decides what its tensors are called and how they lie.
pub(crate) struct Model<'a> {
    pub(crate) names: &'a Names,
    pub(crate) shares_experts: bool,
    pub(crate) interleaved: bool,
    pub(crate) head_dim: usize,
}
