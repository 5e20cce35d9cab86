//! What a report of a machine has besides the verdicts on the ops: system, speed of the bundled model, and whether its answers depend on how
//! they are computed. Nothing of it is private: no names of people, hosts or files.

use std::time::Instant;

use serde_json::{Value, json};

use super::CliError;
use super::args::EngineArgs;
use super::bench::{self, BenchArgs};
use super::{demo_model, invariance, tell};

/// How fast the bundled model is, and whether its answers depend on how they are computed. What fails is in it, too.
pub fn measure(engine: &EngineArgs) -> Value {
    tell("measuring the bundled model");
    let bench = timed(|| {
        let mut results = bench::results(BenchArgs::short(engine))?;
        // The path has the name of a person in it.
        results["model"] = json!(demo_model::NAME);
        Ok(results)
    });
    tell("comparing its answers");
    let invariance = timed(|| Ok(json!({ "different": invariance::check(engine, &demo_model::directory()?)? })));
    json!({ "bench": bench, "invariance": invariance })
}

/// What [`measure`] found wrong, in words.
pub fn problems(measured: &Value) -> Vec<String> {
    let failed = [("bench", "it cannot be measured"), ("invariance", "its answers cannot be compared")];
    let failed = failed.into_iter().filter_map(|(part, what)| {
        measured[part]["error"].as_str().map(|error| format!("the bundled model: {what}: {error}"))
    });
    let different = measured["invariance"]["different"].as_array().into_iter().flatten();
    let different = different.filter_map(|what| what.as_str().map(|what| format!("the bundled model: {what}")));
    failed.chain(different).collect()
}

/// The text without the path of the user's own directory, whose name is a person's: messages of errors may have it.
pub fn without_home(text: &str) -> String {
    // Where there is none, it may be `/`.
    let home = dirs::home_dir().filter(|home| home.components().count() > 1);
    home.map_or_else(|| text.to_owned(), |home| text.replace(&*home.to_string_lossy(), "~"))
}

/// This program.
pub fn program() -> Value {
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    json!({ "version": env!("CARGO_PKG_VERSION"), "target": target })
}

/// The result, or the error, with the seconds that it took.
fn timed(body: impl FnOnce() -> Result<Value, CliError>) -> Value {
    let start = Instant::now();
    let mut result = body().unwrap_or_else(|error| json!({ "error": error.to_string() }));
    result["seconds"] = json!(start.elapsed().as_secs_f64());
    result
}

/// The machine and its system.
pub fn system() -> Value {
    let only_processors = sysinfo::RefreshKind::nothing().with_cpu(sysinfo::CpuRefreshKind::nothing());
    let system = sysinfo::System::new_with_specifics(only_processors).ok();
    json!({
        "os": sysinfo::System::long_os_version().ok(),
        "kernel": sysinfo::System::kernel_version().ok(),
        "processor": system.and_then(|system| system.cpus().first().map(|cpu| cpu.brand().trim().to_owned())),
        "cores": std::thread::available_parallelism().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_errors_name_no_person() {
        let home = dirs::home_dir().unwrap();
        let text = format!("the bundled model cannot be unpacked: {}/x: no space", home.display());
        assert_eq!(without_home(&text), "the bundled model cannot be unpacked: ~/x: no space");
    }

    #[test]
    fn what_fails_or_differs_is_a_problem() {
        let measured =
            json!({ "bench": { "error": "no memory" }, "invariance": { "different": ["a prompt"], "seconds": 1.0 } });
        let found = problems(&measured);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("no memory") && found[1].contains("a prompt"), "{found:?}");
        let fine = json!({ "bench": { "results": [] }, "invariance": { "different": [] } });
        assert!(problems(&fine).is_empty());
    }
}
