//! `vllm-apple doctor`: every op on the device at hand against its reference, the bytes that it moves, and what the engine makes
//! of the device. It knows the ops' verdicts, no op.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};
use vllm_apple_model::LoadOptions;
use vllm_apple_ops::conformance::{self, Verdict};
use vllm_apple_ops::traffic::{self, Measured, Probe};
use vllm_apple_ops::{Backend, DType, DeviceInfo, Kind};

use super::args::EngineArgs;
use super::{CliError, first_run, tell};
use crate::settings::word;
use vllm_apple_device::{Device, Limits, with_backend};

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also measure the bundled model and compare its answers, and write all that was found to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What was found out about a device.
struct Report {
    device: DeviceInfo,
    choices: Vec<(String, String)>,
    /// What the device was measured to do at most.
    limits: Option<Limits>,
    ops: Vec<Summary>,
    /// Unless the device does not count.
    traffic: Option<Vec<Probe>>,
    /// What else went wrong, in words.
    problems: Vec<String>,
}

/// All cases of an op with one type.
struct Summary {
    op: &'static str,
    dtype: DType,
    cases: usize,
    /// The case that comes nearest to its tolerance, or leaves it furthest.
    worst: Verdict,
    failed: Vec<Verdict>,
}

pub fn run(args: DoctorArgs) -> Result<(), CliError> {
    let unwritable = |path: &Path, source| CliError::Output { path: path.display().to_string(), source };
    // Before anything that takes time.
    if let Some(path) = &args.report {
        check_writable(path).map_err(|source| unwritable(path, source))?;
    }
    let start = Instant::now();
    let mut report = examine(Device::open_checked(&args.engine.device_options()?)?, &args.engine.load_options());
    let examined = start.elapsed().as_secs_f64();
    let model = args.report.is_some().then(|| first_run::measure(&args.engine));
    report.problems.extend(model.iter().flat_map(first_run::problems));
    // Whoever reads the output may have read enough: the report and the verdict are there all the same.
    let printed = match args.json {
        true => writeln!(io::stdout(), "{}", report.json()),
        false => report.print(&mut io::stdout()),
    };
    if let Some(path) = &args.report {
        let mut all = report.json();
        all["program"] = first_run::program();
        all["system"] = first_run::system();
        all["seconds"] = json!(examined);
        all["model"] = json!(model);
        let text = first_run::without_home(&format!("{all:#}"));
        write_whole(path, &text).map_err(|source| unwritable(path, source))?;
        tell(format_args!("the report is in {}", path.display()));
    }
    report.conclusion()?;
    printed.map_err(CliError::Stdout)
}

/// Or leaves no file: what was there is gone, and a part of a report would be taken for one.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    let written = file.write_all(text.as_bytes());
    if written.is_err() && path.is_file() {
        let _ = fs::remove_file(path);
    }
    written
}

/// Leaves no file: one without a report, because the device turns out to be none, would be taken for one.
fn check_writable(path: &Path) -> io::Result<()> {
    let is_new = !path.exists();
    OpenOptions::new().create(true).append(true).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

/// Whatever fails, the ops are judged.
fn examine(mut device: Device, options: &LoadOptions) -> Report {
    let mut problems = Vec::new();
    if let Err(error) = device.self_test(None) {
        problems.push(format!("the engine would not start: {error}"));
    }
    let (info, of_backend) = with_backend!(&device, backend => (backend.device(), backend.choices()));
    let mut choices =
        with_backend!(&device, backend => vllm_apple_model::choices(options, backend)).unwrap_or_else(|error| {
            problems.push(format!("the engine would not start: {error}"));
            Vec::new()
        });
    choices.extend(of_backend);
    for (_, choice) in &mut choices {
        *choice = word(choice).into_owned();
    }
    let limits = device.limits().unwrap_or_else(|error| {
        problems.push(format!("the device's limits cannot be measured: {error}"));
        None
    });
    device.make_strict();
    let verdicts = with_backend!(&mut device, backend => conformance::run(backend));
    let measured = match device.counting() {
        Ok(mut device) => with_backend!(&mut device, backend => traffic::run(backend)),
        Err(error) => Some(Measured { probes: Vec::new(), failures: vec![error.to_string()] }),
    };
    let traffic = measured.map(|Measured { probes, failures }| {
        problems.extend(failures.iter().map(|failure| format!("memory traffic was not counted: {failure}")));
        probes
    });
    for problem in &mut problems {
        *problem = word(problem).into_owned();
    }
    Report { device: info, choices, limits, ops: summarise(verdicts), traffic, problems }
}

/// Verdicts by op and type, in the order in which they came.
fn summarise(verdicts: Vec<Verdict>) -> Vec<Summary> {
    let mut summaries: Vec<Summary> = Vec::new();
    for verdict in verdicts {
        let Kind { op, dtype, .. } = verdict.kind;
        let at = summaries.iter().position(|s| (s.op, s.dtype) == (op, dtype)).unwrap_or_else(|| {
            let worst = verdict.clone();
            summaries.push(Summary { op, dtype, cases: 0, worst, failed: Vec::new() });
            summaries.len() - 1
        });
        let summary = &mut summaries[at];
        summary.cases += 1;
        if closeness(&verdict) > closeness(&summary.worst) {
            summary.worst = verdict.clone();
        }
        if !verdict.pass() {
            summary.failed.push(verdict);
        }
    }
    summaries
}

/// The error as a share of what is allowed: above 1, the case fails.
fn closeness(verdict: &Verdict) -> f64 {
    match (verdict.error, verdict.tolerance) {
        (0.0, _) => 0.0,
        (error, tolerance) => error / tolerance,
    }
}

impl Report {
    fn num_failed(&self) -> usize {
        self.ops.iter().filter(|summary| !summary.failed.is_empty()).count()
    }

    /// The largest ratio of an op's bytes moved to the fewest possible, if they were counted for this type.
    fn moved_to_minimum(&self, ops: &Summary) -> Option<f64> {
        let probes = self.traffic.iter().flatten();
        probes.filter(|probe| (probe.op, probe.dtype) == (ops.op, ops.dtype)).map(Probe::ratio).max_by(f64::total_cmp)
    }

    fn conclusion(&self) -> Result<(), CliError> {
        match (self.num_failed(), self.problems.len()) {
            (0, 0) => Ok(()),
            (0, problems) => Err(CliError::DoctorProblems { problems }),
            (failed, _) => Err(CliError::Doctor { failed, total: self.ops.len() }),
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}\n", self.device)?;
        writeln!(out, "op                 dtype     cases  worst error  tolerance  moved/minimum  verdict")?;
        for summary in &self.ops {
            let Summary { op, dtype, cases, worst, failed } = summary;
            let verdict = if failed.is_empty() { "pass" } else { "FAIL" };
            let (error, tolerance) = (worst.error, worst.tolerance);
            let (dtype, ratio) = (dtype.to_string(), self.moved_to_minimum(summary));
            let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
            writeln!(out, "{op:<18} {dtype:<9} {cases:>5}  {error:>11.2e}  {tolerance:>9.2e}  {ratio:>13}  {verdict}")?;
        }
        for verdict in self.ops.iter().flat_map(|summary| &summary.failed) {
            writeln!(out, "{verdict}")?;
        }
        self.print_traffic(out)?;
        for (title, rows) in [("device", &self.device.facts), ("choices", &self.choices)] {
            if !rows.is_empty() {
                writeln!(out, "\n{title}")?;
            }
            for (name, value) in rows {
                writeln!(out, "  {name}: {value}")?;
            }
        }
        if let Some(Limits { read_bandwidth, peak_flops }) = self.limits {
            writeln!(
                out,
                "\nlimits, measured\n  reads {:.0} GB/s\n  computes {:.2} TFLOPS",
                read_bandwidth / 1e9,
                peak_flops / 1e12
            )?;
        }
        if !self.problems.is_empty() {
            writeln!(out, "\nproblems")?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(out, "  {problem}"))
    }

    fn print_traffic(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(probes) = &self.traffic else {
            return writeln!(out, "\nmemory traffic: this device does not count it");
        };
        writeln!(out, "\nmemory traffic of a decode step    bytes moved      minimum  ratio  loads issued")?;
        for probe in probes {
            let Probe { op, dtype, case, minimum, traffic } = probe;
            let (moved, loaded, ratio) = (traffic.moved(), traffic.loaded + traffic.stored, probe.ratio());
            writeln!(out, "{op} {dtype}: {case}")?;
            writeln!(out, "{moved:>46} {minimum:>12} {ratio:>6.3} {loaded:>13}")?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let pairs = |rows: &[(String, String)]| -> Value {
            rows.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<serde_json::Map<_, _>>().into()
        };
        let ops = self.ops.iter().map(|summary| {
            let Summary { op, dtype, cases, worst, failed } = summary;
            let failures: Vec<String> = failed.iter().map(ToString::to_string).collect();
            json!({
                "op": op,
                "dtype": dtype.to_string(),
                "cases": cases,
                // JSON has no infinity.
                "error": worst.error.is_finite().then_some(worst.error),
                "tolerance": worst.tolerance,
                "moved_to_minimum": self.moved_to_minimum(summary),
                "pass": failed.is_empty(),
                "failures": failures,
            })
        });
        let traffic = self.traffic.iter().flatten().map(|probe| {
            json!({
                "op": probe.op,
                "dtype": probe.dtype.to_string(),
                "case": probe.case,
                "minimum_bytes": probe.minimum,
                "moved_bytes": probe.traffic.moved(),
                "ratio": probe.ratio(),
                "loaded_bytes": probe.traffic.loaded,
                "stored_bytes": probe.traffic.stored,
            })
        });
        json!({
            "device": { "backend": self.device.backend, "description": self.device.description, "facts": pairs(&self.device.facts) },
            "choices": pairs(&self.choices),
            "limits": self.limits.map(|limits| json!({
                "read_bandwidth_gb_per_s": limits.read_bandwidth / 1e9,
                "peak_gflop_per_s": limits.peak_flops / 1e9,
            })),
            "ops": ops.collect::<Value>(),
            "traffic": traffic.collect::<Value>(),
            "problems": self.problems,
            "pass": self.num_failed() == 0 && self.problems.is_empty(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(op: &'static str, error: f64, tolerance: f64) -> Verdict {
        Verdict { kind: Kind::new(op, DType::F32), case: "case".into(), error, tolerance, failure: None }
    }

    #[test]
    fn the_worst_case_is_the_one_nearest_to_its_tolerance() {
        let verdicts =
            vec![verdict("a", 1.0, 10.0), verdict("b", 0.0, 0.0), verdict("a", 0.5, 1.0), verdict("a", 0.0, 0.0)];
        let summaries = summarise(verdicts);
        assert_eq!(summaries.iter().map(|s| (s.op, s.cases)).collect::<Vec<_>>(), [("a", 3), ("b", 1)]);
        assert_eq!(summaries[0].worst.error, 0.5);
        assert!(summaries.iter().all(|s| s.failed.is_empty()));
    }

    #[test]
    fn any_error_where_none_is_allowed_fails() {
        let summaries =
            summarise(vec![verdict("a", 0.0, 0.0), verdict("a", 1e-9, 0.0), verdict("a", f64::INFINITY, 1.0)]);
        assert_eq!(summaries[0].failed.len(), 2);
        assert!(summaries[0].worst.error > 0.0);
    }

    #[test]
    fn problems_fail_the_examination_after_the_verdicts() {
        let device = DeviceInfo { backend: "cpu", description: "none".into(), facts: Vec::new() };
        let (ops, problems) = (summarise(vec![verdict("a", 0.0, 0.0)]), vec!["no bytes".to_owned()]);
        let limits = Some(Limits { read_bandwidth: 68e9, peak_flops: 2.6e12 });
        let mut report = Report { device, choices: Vec::new(), limits, ops, traffic: None, problems };
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("pass") && text.ends_with("problems\n  no bytes\n"), "{text}");
        assert!(matches!(report.conclusion(), Err(CliError::DoctorProblems { problems: 1 })));
        assert!(text.contains("reads 68 GB/s") && text.contains("computes 2.60 TFLOPS"), "{text}");
        assert_eq!(report.json()["limits"]["peak_gflop_per_s"], 2600.0);
        assert_eq!(report.json()["pass"], false);
        report.problems.clear();
        assert!(report.conclusion().is_ok());
        assert_eq!(report.json()["pass"], true);
    }
}
