//! `msl-sim run`: runs a described dispatch. It knows how a description becomes a dispatch, and not how its report reads.

use std::path::{Path, PathBuf};

use msl_sim::{
    Argument, Buffer, Check, Config, Constant, Device, Dispatch, Instrument, LoadError, Order, Pipeline, Size, Source,
};

use crate::description::{
    Binding, BufferBinding, BytesBinding, ConstantType, ConstantValue, Description, Fill, RunOrder, ThreadgroupBinding,
};
use crate::element::Type;
use crate::{Failure, read, report};

/// Runs what the file describes; what came of it as text, and whether nothing was found.
pub fn run(path: &Path, as_json: bool, checked: bool) -> Result<(String, bool), Failure> {
    let description: Description =
        serde_json::from_str(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))?;
    let here = path.parent().unwrap_or(Path::new(""));
    let (pipeline, lints) = pipeline(&description, here, checked)?;
    let bound = description.arguments.iter().map(|binding| bind(binding, here)).collect::<Result<Vec<_>, _>>()?;
    let size = match (description.threads, description.threadgroups) {
        (Some(threads), None) => Size::Threads(threads),
        (None, Some(threadgroups)) => Size::Threadgroups(threadgroups),
        _ => return Err("the description must have either `threads` or `threadgroups`".into()),
    };
    let order = match description.order {
        RunOrder::Forward => Order::Forward,
        RunOrder::Reverse => Order::Reverse,
        RunOrder::Shuffled(seed) => Order::Shuffled(seed),
    };
    let check = if checked { Check::Full } else { Check::Off };
    let arguments: Vec<_> = bound.iter().map(|(index, bound)| (*index, bound.argument())).collect();
    let threads_per_threadgroup = description.threads_per_threadgroup;
    let dispatch = Dispatch { arguments: &arguments, size, threads_per_threadgroup };
    let report = Device::new(Config { check, order, ..Config::default() })?.dispatch(&pipeline, &dispatch)?;
    let outputs = outputs(&description, &bound, here)?;
    let text = if as_json {
        report::json(&report, checked, &lints, &outputs)?
    } else {
        report::text(&report, checked, &lints, &outputs)
    };
    Ok((text, report.findings.is_empty()))
}

fn pipeline(description: &Description, here: &Path, checked: bool) -> Result<(Pipeline, Vec<msl_sim::Lint>), Failure> {
    let text = read(&here.join(&description.file))?;
    let include: Vec<PathBuf> = std::iter::once(here.join(&description.file).parent().unwrap_or(here).to_owned())
        .chain(description.include.iter().map(|directory| here.join(directory)))
        .filter(|directory| directory != Path::new(""))
        .collect();
    let source = Source {
        name: &description.file.display().to_string(),
        text: &text,
        include_dirs: &include.iter().map(PathBuf::as_path).collect::<Vec<_>>(),
        defines: &description.define.iter().map(|(name, value)| (&**name, &**value)).collect::<Vec<_>>(),
    };
    let binary = msl_sim::compile(&source, if checked { Instrument::Accesses } else { Instrument::None })?;
    let constants = description.constants.iter().map(constant).collect::<Result<Vec<_>, _>>()?;
    let mut pipeline = Pipeline::new(&binary, &description.function, &constants).map_err(|error| match error {
        LoadError::MissingConstant { index } => Failure::from(format!(
            "[[function_constant({index})]] is not among `constants`: list it with its value, or as {{ \"index\": {index} }} to \
             leave it undefined"
        )),
        other => other.into(),
    })?;
    if let Some(threads) = description.max_threads {
        pipeline.set_max_total_threads_per_threadgroup(threads);
    }
    Ok((pipeline, binary.lints))
}

fn constant(given: &ConstantValue) -> Result<(u32, Constant), Failure> {
    let ConstantValue { index, kind, value } = given;
    let Some(value) = value else { return Ok((*index, Constant::Undefined)) };
    let kind = kind.ok_or_else(|| format!("function constant {index}: `type` is missing"))?;
    let wrong = || format!("function constant {index}: {value} is no {kind:?}");
    let number = || value.as_i64().ok_or_else(wrong);
    let constant = match kind {
        ConstantType::Bool => Constant::Bool(value.as_bool().ok_or_else(wrong)?),
        ConstantType::Ushort => Constant::U16(number()?.try_into().map_err(|_| wrong())?),
        ConstantType::Short => Constant::I16(number()?.try_into().map_err(|_| wrong())?),
        ConstantType::Uint => Constant::U32(number()?.try_into().map_err(|_| wrong())?),
        ConstantType::Int => Constant::I32(number()?.try_into().map_err(|_| wrong())?),
        ConstantType::Ulong => Constant::U64(value.as_u64().ok_or_else(wrong)?),
        ConstantType::Float => Constant::F32(value.as_f64().ok_or_else(wrong)? as f32),
    };
    Ok((*index, constant))
}

/// What an argument is made of.
enum Bound {
    Buffer(Buffer),
    Bytes(Vec<u8>),
    Threadgroup(usize),
}

impl Bound {
    fn argument(&self) -> Argument<'_> {
        match self {
            Self::Buffer(buffer) => Argument::buffer(buffer),
            Self::Bytes(bytes) => Argument::Bytes(bytes),
            Self::Threadgroup(length) => Argument::Threadgroup(*length),
        }
    }
}

fn bind(binding: &Binding, here: &Path) -> Result<(usize, Bound), Failure> {
    match binding {
        &Binding::Buffer(BufferBinding { buffer, kind, count, ref fill, read_only, .. }) => {
            let bytes = content(kind, count, fill, here).map_err(|error| format!("buffer {buffer}: {error}"))?;
            let memory = Buffer::from_slice(&bytes)?;
            Ok((buffer, Bound::Buffer(if read_only { memory.read_only() } else { memory })))
        }
        Binding::Bytes(BytesBinding { bytes, kind, values }) => {
            let mut content = Vec::new();
            values.iter().for_each(|&value| kind.encode(value, &mut content));
            Ok((*bytes, Bound::Bytes(content)))
        }
        &Binding::Threadgroup(ThreadgroupBinding { threadgroup, length }) => {
            Ok((threadgroup, Bound::Threadgroup(length)))
        }
    }
}

fn content(kind: Type, count: Option<usize>, fill: &Fill, here: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    if let Fill::File(path) = fill {
        let path = here.join(path);
        bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let wanted = count.map_or(bytes.len(), |count| count * kind.size());
        if bytes.len() < wanted {
            return Err(format!("{} has {} bytes, not {wanted}", path.display(), bytes.len()).into());
        }
        bytes.truncate(wanted);
        return Ok(bytes);
    }
    let count = count.ok_or("`count` is missing")?;
    match fill {
        Fill::Zeros | Fill::File(_) => bytes.resize(count * kind.size(), 0),
        Fill::Iota => (0..count).for_each(|i| kind.encode(i as f64, &mut bytes)),
        Fill::Value(value) => (0..count).for_each(|_| kind.encode(*value, &mut bytes)),
        Fill::Values(values) => values.iter().cycle().take(count).for_each(|&value| kind.encode(value, &mut bytes)),
        Fill::Random => kind.random(count, count as u64, &mut bytes),
    }
    Ok(bytes)
}

/// Writes what is to be written; returns what is to be printed.
fn outputs(
    description: &Description,
    bound: &[(usize, Bound)],
    here: &Path,
) -> Result<serde_json::Map<String, serde_json::Value>, Failure> {
    let mut outputs = serde_json::Map::new();
    for (binding, (index, bound)) in description.arguments.iter().zip(bound) {
        let (Binding::Buffer(given), Bound::Buffer(buffer)) = (binding, bound) else { continue };
        let BufferBinding { kind, print, write, .. } = given;
        let bytes: Vec<u8> = buffer.to_vec();
        if let Some(path) = write {
            let path = here.join(path);
            std::fs::write(&path, &bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        if *print > 0 {
            let elements: Vec<_> =
                bytes.chunks_exact(kind.size()).take(*print).map(|bytes| kind.decode(bytes)).collect();
            outputs.insert(format!("buffer({index})"), elements.into());
        }
    }
    Ok(outputs)
}
