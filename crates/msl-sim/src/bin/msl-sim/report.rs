//! What a dispatch did, as text and as JSON. It knows findings and counts, and not how they came about.

use std::fmt::Write;

use msl_sim::{Finding, FindingKind, Lint, Location, Place, Report, ThreadId};
use serde_json::{Map, Value, json};

use crate::{Failure, check};

/// The report for people.
pub fn text(report: &Report, checked: bool, lints: &[Lint], outputs: &Map<String, Value>) -> String {
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string");
    lints.iter().for_each(|lint| line(lint.to_string()));
    report.findings.iter().for_each(|finding| line(finding.to_string()));
    let counts = &report.counts;
    line(format!(
        "{} threadgroups, {} threads, {} barriers, {} simdgroup operations, {} bytes of threadgroup memory",
        counts.threadgroups, counts.threads, counts.barriers, counts.simdgroup_operations, counts.threadgroup_memory
    ));
    if counts.matrix_products > 0 {
        line(format!("{} products of 8x8 matrices", counts.matrix_products));
    }
    if counts.abandoned > 0 {
        line("the dispatch was given up: going on would have harmed the host".to_owned());
    }
    if checked {
        let traffic = &report.traffic;
        line(format!("instructions loaded {} bytes and stored {}", traffic.loaded, traffic.stored));
        if traffic.threadgroup_loaded + traffic.threadgroup_stored > 0 {
            let (loaded, stored) = (traffic.threadgroup_loaded, traffic.threadgroup_stored);
            line(format!("of threadgroup memory, {loaded} bytes loaded and {stored} stored"));
        }
        line(format!("memory read {} bytes and wrote {}, past a cache", traffic.dram_read, traffic.dram_written));
    }
    for (name, elements) in outputs {
        let elements = elements.as_array().into_iter().flatten().filter_map(|element| element.as_str());
        line(format!("{name}: {}", elements.collect::<Vec<_>>().join(" ")));
    }
    match report.findings.len() {
        0 if checked => line("nothing found".to_owned()),
        0 => {}
        count => line(format!("{count} found")),
    }
    out
}

/// The report for programs.
pub fn json(report: &Report, checked: bool, lints: &[Lint], outputs: &Map<String, Value>) -> Result<String, Failure> {
    let findings: Vec<_> = report.findings.iter().map(finding).collect();
    let lints: Vec<_> = lints.iter().map(check::json_of).collect();
    let traffic = checked.then(|| {
        let traffic = &report.traffic;
        json!({
            "loaded": traffic.loaded,
            "stored": traffic.stored,
            "dram_read": traffic.dram_read,
            "dram_written": traffic.dram_written,
            "threadgroup_loaded": traffic.threadgroup_loaded,
            "threadgroup_stored": traffic.threadgroup_stored,
        })
    });
    let all = json!({
        "findings": findings,
        "lints": lints,
        "given_up": report.counts.abandoned > 0,
        "traffic": traffic,
        "outputs": outputs,
    });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// A finding: what all have, and below it what this kind has besides.
fn finding(finding: &Finding) -> Value {
    let mut all = json!({
        "message": finding.to_string(),
        "kernel": finding.kernel,
        "file": finding.location.as_ref().map(|at| &at.file),
        "line": finding.location.as_ref().map(|at| at.line),
        "thread": finding.thread.as_ref().map(thread),
    });
    let (kind, more) = details(&finding.kind);
    all["kind"] = kind.into();
    for (key, value) in more.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    all
}

/// The name of a kind, and its fields.
fn details(kind: &FindingKind) -> (&'static str, Value) {
    let access = |access: &msl_sim::Access| access.to_string();
    match kind {
        FindingKind::PartialSimdgroup { mask, launched, returned, simdgroup } => (
            "partial_simdgroup",
            json!({ "mask": mask, "launched": launched, "returned": returned, "simdgroup": simdgroup }),
        ),
        FindingKind::DivergentBarrier { other, at } => {
            ("divergent_barrier", json!({ "other": { "thread": thread(other), "file": at.file, "line": at.line } }))
        }
        FindingKind::BarrierAfterReturn { waiting, returned } => {
            ("barrier_after_return", json!({ "waiting": waiting, "returned": returned }))
        }
        FindingKind::ThreadgroupMemory { used, limit } => {
            ("threadgroup_memory", json!({ "used": used, "limit": limit }))
        }
        FindingKind::Race { kind, access: done, other, place: at } => {
            let side = json!({
                "kernel": other.kernel,
                "thread": thread(&other.thread),
                "access": access(&other.access),
                "file": other.location.as_ref().map(|at: &Location| &at.file),
                "line": other.location.as_ref().map(|at: &Location| at.line),
            });
            let order = kind.to_string();
            ("race", json!({ "order": order, "access": access(done), "place": place(at), "other": side }))
        }
        FindingKind::OutOfBounds { access: done, size, place: at } => {
            ("out_of_bounds", json!({ "access": access(done), "size": size, "place": place(at) }))
        }
        FindingKind::Uninitialised { size, place: at } => {
            ("uninitialised", json!({ "size": size, "place": place(at) }))
        }
        FindingKind::ReadOnly { size, place: at } => ("read_only", json!({ "size": size, "place": place(at) })),
        FindingKind::Misaligned { access: done, size, place: at } => {
            ("misaligned", json!({ "access": access(done), "size": size, "place": place(at) }))
        }
        FindingKind::DivisionByZero => ("division_by_zero", json!({})),
        FindingKind::IndexOutOfRange { index, array } => {
            ("index_out_of_range", json!({ "index": index, "array": array }))
        }
        // A kind that is newer than this program.
        _ => ("other", json!({})),
    }
}

fn thread(thread: &ThreadId) -> Value {
    json!({ "threadgroup": thread.threadgroup, "position": thread.position, "index": thread.index })
}

/// A place in memory: of a buffer, its index; of threadgroup memory, that it is; of both, name, offset and length in bytes.
fn place(place: &Option<Place>) -> Value {
    match place {
        None => Value::Null,
        Some(Place::Buffer { index, name, offset, len }) => {
            json!({ "buffer": index, "name": name, "offset": offset, "length": len })
        }
        Some(Place::Threadgroup { name, offset, len }) => {
            json!({ "threadgroup": true, "name": name, "offset": offset, "length": len })
        }
    }
}
