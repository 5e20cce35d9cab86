//! What a report of a machine has besides the verdicts on the ops: system, speed of the bundled model, and whether its answers depend on how
//! they are computed. Nothing of it is private: no names of people, hosts or files.

use std::time::Instant;

use serde_json::{Value, json};

use super::CliError;
use super::args::EngineArgs;
use super::bench::{self, BenchArgs};
use super::{demo_model, invariance};

/// Adds it. What fails is in the report, too: the rest is still worth knowing.
pub fn add(report: &mut Value, engine: &EngineArgs) {
    report["program"] = json!({ "version": env!("CARGO_PKG_VERSION"), "target": target() });
    report["system"] = system();
    eprintln!("measuring the bundled model");
    report["bench"] = timed(|| {
        let mut results = bench::results(BenchArgs::short(engine))?;
        // The path has the name of a person in it.
        results["model"] = json!(demo_model::NAME);
        Ok(results)
    });
    eprintln!("comparing its answers");
    report["invariance"] = timed(|| {
        let different = invariance::check(engine, &demo_model::directory()?)?;
        Ok(json!({ "pass": different.is_empty(), "different": different }))
    });
}

/// The result, or the error, with the seconds that it took.
fn timed(body: impl FnOnce() -> Result<Value, CliError>) -> Value {
    let start = Instant::now();
    let mut result = body().unwrap_or_else(|error| json!({ "error": error.to_string() }));
    result["seconds"] = json!(start.elapsed().as_secs_f64());
    result
}

fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

fn system() -> Value {
    let only_processors = sysinfo::RefreshKind::nothing().with_cpu(sysinfo::CpuRefreshKind::nothing());
    let system = sysinfo::System::new_with_specifics(only_processors).ok();
    json!({
        "os": sysinfo::System::long_os_version().ok(),
        "kernel": sysinfo::System::kernel_version().ok(),
        "processor": system.and_then(|system| system.cpus().first().map(|cpu| cpu.brand().trim().to_owned())),
        "cores": std::thread::available_parallelism().ok(),
    })
}
