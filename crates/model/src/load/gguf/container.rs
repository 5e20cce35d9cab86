//! The container of GGUF files: metadata, and where each tensor lies. Every count, size and offset of a file is doubted. It knows no model.

use std::ops::Range;

use serde_json::{Map, Number, Value};

use super::types::Type;

/// What a file holds.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) metadata: Map<String, Value>,
    pub(crate) tensors: Vec<Tensor>,
}

/// A tensor.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) kind: Type,
    /// The last dimension is that along which elements lie one after the other: the opposite of how files have it.
    pub(crate) shape: Vec<usize>,
    /// Within the file.
    pub(crate) bytes: Range<usize>,
}

/// What llama.cpp's converter calls queries, keys and values as one tensor, and apart.
const TOGETHER: &str = ".attn_qkv.";
const APART: [&str; 3] = [".attn_q.", ".attn_k.", ".attn_v."];

impl Tensor {
    /// Queries, keys and values of so many rows, if the tensor is all three; else itself.
    pub(crate) fn apart(self, rows: [usize; 3]) -> Vec<Self> {
        let all: usize = rows.iter().sum();
        if !self.name.contains(TOGETHER) || self.shape.first() != Some(&all) || all == 0 {
            return vec![self];
        }
        let row = self.bytes.len() / all;
        let mut start = self.bytes.start;
        let part = |(rows, name): (usize, &str)| {
            let bytes = start..start + rows * row;
            start = bytes.end;
            let shape = [&[rows], &self.shape[1..]].concat();
            Self { name: self.name.replace(TOGETHER, name), kind: self.kind, shape, bytes }
        };
        rows.into_iter().zip(APART).map(part).collect()
    }
}

const MAGIC: &[u8] = b"GGUF";
const MAX_DIMS: u32 = 4;
/// Longest name of a tensor, or key: ggml has 64 and 65,535.
const MAX_NAME: usize = 1 << 16;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Longest text: a chat template.
const MAX_TEXT: usize = 64 << 20;
/// Longest header: vocabularies of 256 Ki tokens with their merges take 20 MB.
const MAX_HEADER: usize = 1 << 28;
/// Most values of all fields together, and most tensors: what a damaged file can make us allocate.
const MAX_VALUES: usize = 1 << 23;
const MAX_TENSORS: usize = 1 << 20;

/// Reads a file.
///
/// # Errors
/// What is wrong with it, with the name of the field or tensor.
pub(crate) fn read(file: &[u8]) -> Result<Container, String> {
    let mut cursor = Cursor { file: &file[..file.len().min(MAX_HEADER)], at: 0, values: MAX_VALUES };
    if cursor.take("the magic number", 4)? != MAGIC {
        return Err("it does not begin with GGUF".to_owned());
    }
    let version = cursor.u32("the version")?;
    if (2..=3).contains(&version.swap_bytes()) {
        return Err("it is for a big-endian machine; convert the model for a little-endian one".to_owned());
    }
    if !(2..=3).contains(&version) {
        return Err(format!("its version is {version}, expected 2 or 3"));
    }
    // At least a name's length, a number of dimensions, a type and an offset.
    let num_tensors = cursor.count("the number of tensors", 8 + 4 + 4 + 8)?;
    if num_tensors > MAX_TENSORS {
        return Err(format!("the number of tensors is {num_tensors}, expected at most {MAX_TENSORS}"));
    }
    // At least a key's length and a type.
    let num_fields = cursor.count("the number of fields", 8 + 4)?;
    let mut metadata = Map::new();
    for _ in 0..num_fields {
        let key = cursor.text("a field's name", MAX_NAME)?.to_owned();
        let value = cursor.value(&shown(&key))?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(format!("it has the field {} twice", shown(&key)));
        }
    }
    let mut infos = Vec::with_capacity(num_tensors);
    for _ in 0..num_tensors {
        infos.push(cursor.tensor()?);
    }
    let alignment = alignment(&metadata)?;
    let data = (cursor.at as u64).next_multiple_of(alignment);
    // PrismML's first files have the number of Q2_0 for blocks of 128.
    let follows = |info: &Info, next: &Info, kind| {
        info.size_as(kind)
            .is_some_and(|size| info.offset.checked_add(size.next_multiple_of(alignment)) == Some(next.offset))
    };
    let is_wide = |info: &Info, next: &Info| follows(info, next, Type::Pq2_0) && !follows(info, next, Type::Q2_0);
    if infos.windows(2).any(|pair| pair[0].kind == Type::Q2_0 && is_wide(&pair[0], &pair[1])) {
        infos.iter_mut().filter(|info| info.kind == Type::Q2_0).for_each(|info| info.kind = Type::Pq2_0);
    }
    let mut tensors: Vec<Tensor> = Vec::with_capacity(num_tensors);
    // Tensors lie one after the other.
    let mut expected = 0;
    for info in infos {
        let offset = info.offset;
        let tensor = info.placed(data, file.len())?;
        if offset != expected {
            let name = shown(&tensor.name);
            return Err(format!(
                "the tensor {name} is at offset {offset}, expected {expected}, behind the one before it: the file is damaged"
            ));
        }
        expected += (tensor.bytes.len() as u64).next_multiple_of(alignment);
        tensors.push(tensor);
    }
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("it has the tensor {} twice", shown(twice[0])));
    }
    Ok(Container { metadata, tensors })
}

/// What the places of tensors are multiples of: behind the header, and each behind the one before it.
fn alignment(metadata: &Map<String, Value>) -> Result<u64, String> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(value) => value
            .as_u64()
            .filter(|n| n.is_power_of_two() && (8..=1 << 20).contains(n))
            .ok_or_else(|| format!("{KEY} is {value}, expected a power of two from 8 to 2^20")),
    }
}

/// What the header says of a tensor.
struct Info {
    name: String,
    kind: Type,
    shape: Vec<usize>,
    offset: u64,
}

impl Info {
    /// Bytes if it were of another type.
    fn size_as(&self, kind: Type) -> Option<u64> {
        let (blocks, bytes) = kind.block();
        let elements = self.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64))?;
        (elements / blocks as u64).checked_mul(bytes as u64).filter(|size| *size < 1 << 48)
    }

    fn placed(self, data: u64, file: usize) -> Result<Tensor, String> {
        let Self { name, kind, shape, offset } = self;
        let (blocks, bytes) = kind.block();
        let named = shown(&name);
        let row = *shape.last().unwrap_or(&1);
        if !row.is_multiple_of(blocks) {
            return Err(format!(
                "the tensor {named} has rows of {row} elements, of {kind} they must be multiples of {blocks}"
            ));
        }
        let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
        let size = elements.and_then(|n| (n / blocks as u64).checked_mul(bytes as u64));
        let start = data.checked_add(offset);
        let end = start.zip(size).and_then(|(start, size)| start.checked_add(size));
        match (start, end) {
            (Some(start), Some(end)) if end <= file as u64 => {
                Ok(Tensor { name, kind, shape, bytes: start as usize..end as usize })
            }
            _ => Err(format!(
                "the tensor {named} of {kind} and shape {shape:?} at offset {offset} lies beyond the file's {file} bytes: the file is \
                 truncated or damaged"
            )),
        }
    }
}

/// A name for messages: of a damaged file it may be anything.
fn shown(name: &str) -> String {
    const MOST: usize = 80;
    let cut: String = name.chars().take(MOST).flat_map(char::escape_debug).collect();
    if name.chars().nth(MOST).is_some() { cut + "…" } else { cut }
}

struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
    /// How many values there may still be.
    values: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.file.len() - self.at
    }

    fn take(&mut self, what: &str, len: usize) -> Result<&'a [u8], String> {
        if len > self.left() {
            return Err(format!("it ends within {what}: it is truncated or damaged"));
        }
        let bytes = &self.file[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(what, N)?);
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The number of things that take at least `least` bytes each: no more than there is room for.
    fn count(&mut self, what: &str, least: usize) -> Result<usize, String> {
        let count = self.u64(what)?;
        match usize::try_from(count).ok().filter(|&n| n.checked_mul(least).is_some_and(|bytes| bytes <= self.left())) {
            Some(count) => Ok(count),
            None => Err(format!("{what} is {count}, for which the file is too short: it is truncated or damaged")),
        }
    }

    fn text(&mut self, what: &str, most: usize) -> Result<&'a str, String> {
        let len = self.count(&format!("the length of {what}"), 1)?;
        if len > most {
            return Err(format!("{what} has {len} bytes, expected at most {most}"));
        }
        std::str::from_utf8(self.take(what, len)?).map_err(|_| format!("{what} is not UTF-8"))
    }

    fn value(&mut self, key: &str) -> Result<Value, String> {
        let kind = self.u32(key)?;
        match self.value_of(key, kind)? {
            Value::Null => Err(format!("the field {key} is not a finite number")),
            value => Ok(value),
        }
    }

    fn value_of(&mut self, key: &str, kind: u32) -> Result<Value, String> {
        let float = |number: f64| Number::from_f64(number).map_or(Value::Null, Value::Number);
        Ok(match kind {
            0 => u8::from_le_bytes(self.array(key)?).into(),
            1 => i8::from_le_bytes(self.array(key)?).into(),
            2 => u16::from_le_bytes(self.array(key)?).into(),
            3 => i16::from_le_bytes(self.array(key)?).into(),
            4 => self.u32(key)?.into(),
            5 => i32::from_le_bytes(self.array(key)?).into(),
            6 => float(f32::from_le_bytes(self.array(key)?).into()),
            7 => Value::Bool(self.take(key, 1)? != [0]),
            8 => self.text(key, MAX_TEXT)?.into(),
            9 => self.list(key)?,
            10 => self.u64(key)?.into(),
            11 => i64::from_le_bytes(self.array(key)?).into(),
            12 => float(f64::from_le_bytes(self.array(key)?)),
            _ => return Err(format!("the field {key} has the unknown type {kind}")),
        })
    }

    fn list(&mut self, key: &str) -> Result<Value, String> {
        let kind = self.u32(key)?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            _ => return Err(format!("the field {key} is a list of the unknown type {kind}")),
        };
        let count = self.count(&format!("the length of {key}"), least)?;
        self.values = self
            .values
            .checked_sub(count)
            .ok_or_else(|| format!("the length of {key} is {count}, which is too many values"))?;
        (0..count).map(|_| self.value_of(key, kind)).collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    fn tensor(&mut self) -> Result<Info, String> {
        let full = self.text("a tensor's name", MAX_NAME)?.to_owned();
        let name = shown(&full);
        let dims = self.u32(&name)?;
        if dims == 0 || dims > MAX_DIMS {
            return Err(format!("the tensor {name} has {dims} dimensions, expected 1 to {MAX_DIMS}"));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let size = self.u64(&name)?;
            match usize::try_from(size) {
                Ok(size) if size > 0 => shape.insert(0, size),
                _ => return Err(format!("the tensor {name} has a dimension of {size}")),
            }
        }
        let kind = self.u32(&name)?;
        let kind = Type::numbered(kind).ok_or_else(|| {
            format!(
                "the tensor {name} has the type {}, which is not supported; supported are {}",
                Type::name_of(kind),
                Type::names()
            )
        })?;
        Ok(Info { offset: self.u64(&name)?, name: full, kind, shape })
    }
}
