//! GGUF files: a checkpoint in one file or several. Such a file is a directory of the files that it stands for: its `config.json`,
//! `tokenizer.json` and `tokenizer_config.json` are made of its metadata when they are read.

mod blocks;
mod config;
mod container;
mod grid_blocks;
mod names;
mod tokenizer;
mod types;

use std::io;
use std::path::{Path, PathBuf};

pub(crate) use blocks::Blocks;
pub(crate) use container::{Container, Tensor};
pub(crate) use names::in_file;
use serde_json::Value;
pub(crate) use types::Type;

use crate::load::families::Names;
use crate::load::file;

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
    has_ending(path) && path.is_file()
}

/// Whether a path is called as a GGUF file is.
pub(crate) fn has_ending(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// Whether a GGUF file makes tokens of images, beside the file of a language model.
pub(crate) fn is_projector(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().to_lowercase().contains("mmproj"))
}

/// The only GGUF model of a directory: its file, or the first of its files.
///
/// # Errors
/// There are several, which the error names, the first file of one is missing, or the only one is no file.
pub fn find(directory: &Path) -> Result<Option<PathBuf>, String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let called_so = |path: &PathBuf| has_ending(path) && !is_projector(path) && !path.is_dir();
    let (files, others): (Vec<PathBuf>, Vec<PathBuf>) =
        entries.map(|entry| entry.path()).filter(called_so).partition(|path| path.is_file());
    let (mut models, mut later): (Vec<PathBuf>, Vec<PathBuf>) =
        files.into_iter().partition(|path| part_of(path).is_none_or(|(_, number, _)| number == 1));
    models.sort();
    later.sort();
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().display().to_string();
    match (&models[..], later.first()) {
        ([], None) => match others.iter().find_map(|path| Some((path, file::regular(path).err()?))) {
            Some((path, error)) => Err(format!("it holds {}, which cannot be read: {error}", name(path))),
            None => Ok(None),
        },
        ([], Some(part)) => Err(format!("it holds {}, but not the first file of that GGUF model", name(part))),
        ([only], _) => Ok(Some(only.clone())),
        (several, _) => {
            let names: Vec<_> = several.iter().map(name).collect();
            Err(format!("it holds several GGUF models ({}); give the path of one", names.join(", ")))
        }
    }
}

/// Of the file of a split model: the name before its numbers, its number and how many there are.
pub(crate) fn part_of(path: &Path) -> Option<(&str, u32, u32)> {
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
        Some((name, 1, of)) => Ok((1..=of.min(9999))
            .map(|number| path.with_file_name(format!("{name}-{number:05}-of-{of:05}.gguf")))
            .collect()),
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
    let open = |part: &PathBuf| {
        open(part).map_err(|error| match part == path {
            true => error,
            false => io::Error::other(format!("its part {}: {error}", part.display())),
        })
    };
    let made = || {
        // The vocabulary is in the first file.
        let files = if name == "config.json" { parts(path).map_err(io::Error::other)? } else { vec![path.to_owned()] };
        let parts = files.iter().map(open).collect::<io::Result<Parts>>()?;
        if name == "tokenizer.json" && tokenizer::is_guessed(&parts[0].0.metadata) {
            tracing::warn!(
                "{}: has no tokenizer.ggml.pre, so that texts are cut as llama.cpp does by default, perhaps not as the model was trained: convert it \
                 again, or give another `tokenizer`",
                path.display()
            );
        }
        make(&parts).map(|value| value.to_string().into_bytes()).map_err(io::Error::other)
    };
    Some(made())
}

/// What a GGUF file calls a field of the `config.json` that it stands for, if that is one of its own.
pub(crate) fn name_in_file(path: &Path, field: &str) -> Option<String> {
    let (container, _) = open(path).ok()?;
    config::name_in_file(container.metadata.get("general.architecture")?.as_str()?, field)
}

fn open(path: &Path) -> io::Result<(Container, memmap2::Mmap)> {
    file::regular(path)?;
    let file = std::fs::File::open(path)?;
    // SAFETY: whoever changes the file meanwhile changes what is read, which is doubted as any; what is no longer there ends the process.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    Ok((container::read(&map).map_err(io::Error::other)?, map))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(name: &str) -> Vec<u8> {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/quantised/models");
        std::fs::read(models.join(name)).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.gguf");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(open(&path).unwrap_err().to_string().contains("not a regular file"));
    }

    /// A multiplicative generator (Knuth's MMIX constants), of whose numbers the upper bits are taken.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((u128::from(self.0) * n as u128) >> 64) as usize
        }

        fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
            of[self.below(of.len())]
        }
    }

    /// Changes a byte, a number or a run of bytes before `header`, or cuts the file.
    fn damage(bytes: &mut Vec<u8>, header: usize, random: &mut Random) {
        let at = random.below(header - 8);
        match random.below(5) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.one_of(&[0, 1, 7, 8, 9, 127, 128, 255]),
            2 => {
                let number =
                    random.one_of(&[0, 1, 2, 1 << 31, 1 << 32, u64::MAX / 32, u64::MAX / 2, u64::MAX - 31, u64::MAX]);
                bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            3 => {
                let from = random.below(header - 8);
                bytes.copy_within(from..from + 8, at);
            }
            _ => bytes.truncate(random.below(bytes.len())),
        }
    }

    /// Everything that is made of a file, or what is wrong with it.
    fn read_all(bytes: &[u8]) -> Result<(), String> {
        let container = read(bytes)?;
        for tensor in &container.tensors {
            assert!(bytes.get(tensor.bytes.clone()).is_some(), "{} lies outside", tensor.name);
        }
        let (tokens, settings) = (tokenizer::tokenizer(&container.metadata), tokenizer::settings(&container.metadata));
        let mut map = memmap2::MmapMut::map_anon(bytes.len()).map_err(|error| error.to_string())?;
        map.copy_from_slice(bytes);
        let map = map.make_read_only().map_err(|error| error.to_string())?;
        let config = config::config(&[(container, map)]);
        tokens.and(settings).and(config).map(drop)
    }

    /// Where tensors begin.
    fn header(bytes: &[u8]) -> usize {
        read(bytes).unwrap().tensors.iter().map(|tensor| tensor.bytes.start).min().unwrap()
    }

    #[test]
    fn a_damaged_file_is_an_error_or_another_file_but_never_a_panic() {
        for name in ["gguf-llama/model.gguf", "gguf-qwen2/model-00001-of-00003.gguf"] {
            let sound = golden(name);
            // Data beyond the first tensor's take time and say nothing.
            read_all(&sound).unwrap_or_else(|error| assert!(name.contains("-of-"), "{error}"));
            let (header, mut random, mut refused) = (header(&sound), Random(1), 0);
            for _ in 0..10_000 {
                let mut bytes = sound.clone();
                damage(&mut bytes, header, &mut random);
                if let Err(reason) = read_all(&bytes) {
                    assert!(reason.len() < 1000 && !reason.is_empty(), "{reason}");
                    refused += 1;
                }
            }
            assert!(refused > 2000, "{name}: of 10,000 damaged files {refused} are refused");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let sound = golden("gguf-llama/model.gguf");
        let error = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = sound.clone();
            change(&mut bytes);
            read_all(&bytes).unwrap_err()
        };
        let find = |text: &str| sound.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        let put =
            |bytes: &mut Vec<u8>, at: usize, number: u64| bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        assert!(error(&|bytes| bytes[0] = b'X').contains("begin with GGUF"));
        assert!(error(&|bytes| bytes[4] = 9).contains("version is 9"));
        assert!(error(&|bytes| bytes[4..8].reverse()).contains("big-endian"));
        let part = read_all(&golden("gguf-qwen2/model-00001-of-00003.gguf")).unwrap_err();
        assert!(part.contains("part of 3") && part.contains("-00001-of-00003.gguf"), "{part}");
        assert!(error(&|bytes| put(bytes, 8, u64::MAX)).contains("number of tensors is 18446744073709551615"));
        assert!(error(&|bytes| put(bytes, 16, 1 << 60)).contains("number of fields"));
        assert!(error(&|bytes| bytes.truncate(bytes.len() - 1)).contains("beyond the file"));
        assert!(error(&|bytes| bytes.truncate(100)).contains("truncated"));
        // Of the first dimension, the type and the offset of a tensor.
        let name = "blk.1.ffn_gate.weight";
        let dims = find(name) + name.len() + 4;
        assert!(error(&|bytes| put(bytes, dims, u64::MAX)).contains(name));
        assert!(error(&|bytes| put(bytes, dims, 33)).contains("multiples of 32"));
        assert!(error(&|bytes| bytes[dims + 16] = 24).contains("I8, which is not supported"));
        assert!(error(&|bytes| put(bytes, dims + 20, u64::MAX - 31)).contains(name));
        assert!(error(&|bytes| put(bytes, dims + 20, 0)).contains("at offset 0, expected "));
        let eps = find("layer_norm_rms_epsilon") + "layer_norm_rms_epsilon".len() + 4;
        let not_finite = error(&|bytes| bytes[eps..eps + 4].copy_from_slice(&f32::NAN.to_le_bytes()));
        assert!(not_finite.contains("layer_norm_rms_epsilon is not a finite number"), "{not_finite}");
        let key = find("general.architecture") + "general.architecture".len();
        assert!(error(&|bytes| bytes[key] = 77).contains("general.architecture has the unknown type 77"));
        assert!(error(&|bytes| bytes[key + 12] = b'k').contains("klama"));
        let tokens = find("tokenizer.ggml.tokens") + "tokenizer.ggml.tokens".len() + 8;
        assert!(error(&|bytes| put(bytes, tokens, 1 << 40)).contains("the length of tokenizer.ggml.tokens"));
    }

    #[test]
    fn rows_of_interleaved_heads_are_found() {
        let order = RowOrder::Interleaved { head: 6 };
        assert_eq!((0..12).map(|row| order.stored(row)).collect::<Vec<_>>(), [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        assert_eq!(RowOrder::Plain.stored(7), 7);
    }

    #[test]
    fn the_files_of_a_split_model_are_known_by_their_numbers() {
        let files = parts(Path::new("/m/a-b-00001-of-00002.gguf")).unwrap();
        assert_eq!(files, ["/m/a-b-00001-of-00002.gguf", "/m/a-b-00002-of-00002.gguf"].map(PathBuf::from));
        assert!(parts(Path::new("/m/a-00002-of-00002.gguf")).unwrap_err().contains("the path of the first"));
        assert_eq!(parts(Path::new("/m/a.gguf")).unwrap(), [PathBuf::from("/m/a.gguf")]);
    }
}
