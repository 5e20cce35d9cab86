//! `msl-sim run`: runs a described dispatch. It knows how a description becomes a dispatch, and how its report is printed.

use std::path::{Path, PathBuf};

use msl_sim::{
    Argument, Buffer, Check, Config, Constant, Device, Dispatch, Finding, Instrument, Order, Pipeline, Report, Size,
    Source,
};
use serde_json::json;

use crate::description::{Binding, ConstantType, ConstantValue, Description, Fill, RunOrder};
use crate::element::Type;
use crate::{Failure, check, read};

/// Runs what the file describes and prints what came of it; whether nothing was found.
pub fn run(path: &Path, as_json: bool, checked: bool) -> Result<bool, Failure> {
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
    if as_json {
        let findings: Vec<_> = report.findings.iter().map(json_of).collect();
        let lints: Vec<_> = lints.iter().map(check::json_of).collect();
        let traffic = checked.then(|| json_of_traffic(&report));
        let all = json!({ "findings": findings, "lints": lints, "traffic": traffic, "outputs": outputs });
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        lints.iter().for_each(|lint| println!("{lint}"));
        print(&report, checked, &outputs);
    }
    Ok(report.findings.is_empty())
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
    let mut pipeline = Pipeline::new(&binary, &description.function, &constants)?;
    if let Some(threads) = description.max_threads {
        pipeline.set_max_total_threads_per_threadgroup(threads);
    }
    Ok((pipeline, binary.lints))
}

fn constant(given: &ConstantValue) -> Result<(u32, Constant), Failure> {
    let ConstantValue { index, kind, value } = given;
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
        &Binding::Buffer { buffer, kind, count, ref fill, read_only, .. } => {
            let bytes = content(kind, count, fill, here).map_err(|error| format!("buffer {buffer}: {error}"))?;
            let memory = Buffer::from_slice(&bytes)?;
            Ok((buffer, Bound::Buffer(if read_only { memory.read_only() } else { memory })))
        }
        Binding::Bytes { bytes, kind, values } => {
            let mut content = Vec::new();
            values.iter().for_each(|&value| kind.encode(value, &mut content));
            Ok((*bytes, Bound::Bytes(content)))
        }
        &Binding::Threadgroup { threadgroup, length } => Ok((threadgroup, Bound::Threadgroup(length))),
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
        let (Binding::Buffer { kind, print, write, .. }, Bound::Buffer(buffer)) = (binding, bound) else { continue };
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

fn print(report: &Report, checked: bool, outputs: &serde_json::Map<String, serde_json::Value>) {
    report.findings.iter().for_each(|finding| println!("{finding}"));
    let counts = &report.counts;
    println!(
        "{} threadgroups, {} threads, {} barriers, {} simdgroup operations, {} bytes of threadgroup memory",
        counts.threadgroups, counts.threads, counts.barriers, counts.simdgroup_operations, counts.threadgroup_memory
    );
    if counts.abandoned > 0 {
        println!("the dispatch was given up: going on would have harmed the host");
    }
    if checked {
        let traffic = &report.traffic;
        println!("instructions loaded {} bytes and stored {}", traffic.loaded, traffic.stored);
        println!("memory read {} bytes and wrote {}, past a cache", traffic.dram_read, traffic.dram_written);
    }
    for (name, elements) in outputs {
        let elements = elements.as_array().into_iter().flatten().filter_map(|element| element.as_str());
        println!("{name}: {}", elements.collect::<Vec<_>>().join(" "));
    }
    match report.findings.len() {
        0 if checked => println!("nothing found"),
        0 => {}
        count => println!("{count} found"),
    }
}

fn json_of(finding: &Finding) -> serde_json::Value {
    let thread = finding.thread.map(|thread| json!({ "threadgroup": thread.threadgroup, "index": thread.index }));
    json!({
        "message": finding.to_string(),
        "kernel": finding.kernel,
        "file": finding.location.as_ref().map(|at| &at.file),
        "line": finding.location.as_ref().map(|at| at.line),
        "thread": thread,
    })
}

fn json_of_traffic(report: &Report) -> serde_json::Value {
    let traffic = &report.traffic;
    json!({
        "loaded": traffic.loaded,
        "stored": traffic.stored,
        "dram_read": traffic.dram_read,
        "dram_written": traffic.dram_written,
    })
}
