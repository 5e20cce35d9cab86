//! `vllm-apple verify`: whether a model is computed as it should be on this machine's device, and how fast. It knows which sections there are
//! and where the report goes, not what they examine.

mod bars;
mod client;
mod concurrency;
mod facts;
mod html;
mod markdown;
mod prompts;
mod svg;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use vllm_apple_verify::sections::{self, Entry};
use vllm_apple_verify::{Report, Settings, Subject};

use super::args::{LoadFormat, ModelArgs};
use super::{CliError, first_run, load};
use crate::settings::word;
use bars::Bars;

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Examine everything, however long it takes
    #[arg(long)]
    full: bool,
    /// What fits into some minutes; the default
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Examine these sections alone [default: all]
    #[arg(long, value_name = "SECTION,…", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// Compare with the logits in this file, which tools/reference.py has made
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// How long 1 request and 8 requests are repeated, such as 30s or 60m [default: 5s, with --full 30m]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    soak: Option<Duration>,
    /// Write report.md, report.json and report.html to this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// `dummy`: random weights; MODEL needs only a config.json
    #[arg(long, value_enum, default_value_t)]
    load_format: LoadFormat,
    #[command(flatten)]
    model: ModelArgs,
}

/// The sections' names in their order; the one that needs the server is the last.
fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = sections::ALL.iter().map(|entry| entry.name).collect();
    names.push(concurrency::NAME);
    names
}

impl VerifyArgs {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    fn settings(&self) -> Settings {
        let soak = if self.full { Duration::from_secs(30 * 60) } else { Duration::from_secs(5) };
        Settings { full: self.full, soak: self.soak.unwrap_or(soak), reference: self.reference.clone() }
    }

    fn subject(&self, directory: &Path) -> Result<Subject, CliError> {
        let checkpoint = self.load_format.open(directory)?;
        let tokenizer = self.model.tokenizer.as_deref().unwrap_or(directory);
        let prompts = match self.load_format {
            LoadFormat::Auto => prompts::of_texts(tokenizer)?,
            LoadFormat::Dummy => prompts::of_numbers(checkpoint.config().vocab_size),
        };
        let engine = &self.model.engine;
        Ok(Subject { checkpoint, options: engine.load_options(), device: engine.device_options()?, prompts })
    }
}

pub fn run(args: VerifyArgs) -> Result<(), CliError> {
    // Before anything that takes time.
    if let Some(directory) = &args.report {
        std::fs::create_dir_all(directory).map_err(|source| output(directory, source))?;
    }
    let directory = load::resolve(args.model.model.as_deref(), args.model.revision.as_deref())?;
    let (subject, settings) = (args.subject(&directory)?, args.settings());
    let mut report = Report { facts: facts::of(&args, &subject, &settings)?, sections: Vec::new() };
    let wanted: Vec<&Entry> = sections::ALL.iter().filter(|entry| args.wants(entry.name)).collect();
    let with_server = args.wants(concurrency::NAME);
    let total = wanted.len() + usize::from(with_server);
    for (at, entry) in wanted.into_iter().enumerate() {
        let mut bars = Bars::new(at, total, entry.title);
        report.sections.push(entry.examine(&subject, &settings, &mut bars));
    }
    if with_server {
        let mut bars = Bars::new(total - 1, total, concurrency::TITLE);
        report.sections.push(concurrency::examine(&args, &subject, &mut bars));
    }
    let clean = |text: &str| without_places(text, &directory);
    reword(&mut report, clean);
    table::print(&report, &mut io::stdout())?;
    if let Some(directory) = &args.report {
        write(&report, directory)?;
        eprintln!("the report is in {}", directory.display());
    }
    conclusion(&report)
}

/// Fails if a line does.
fn conclusion(report: &Report) -> Result<(), CliError> {
    let failed = report.failures().count();
    let total = report.sections.iter().map(|section| section.lines.len()).sum();
    if failed == 0 { Ok(()) } else { Err(CliError::Verify { failed, total }) }
}

/// The three forms of the report.
fn write(report: &Report, directory: &Path) -> Result<(), CliError> {
    let facts: serde_json::Map<_, _> = report.facts.iter().map(|(name, fact)| (name.clone(), json!(fact))).collect();
    let failures = report.failures().count();
    let whole = json!({ "pass": failures == 0, "failures": failures, "facts": facts, "sections": report.sections });
    let json = serde_json::to_string_pretty(&whole).map_err(io::Error::from)?;
    for (name, text) in [("report.json", json), ("report.md", markdown::of(report)), ("report.html", html::of(report))]
    {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(|source| output(&path, source))?;
    }
    Ok(())
}

fn output(path: &Path, source: io::Error) -> CliError {
    CliError::Output { path: path.display().to_string(), source }
}

/// Messages name settings as this program's user writes them, and no place of this machine.
fn reword(report: &mut Report, clean: impl Fn(&str) -> String) {
    let change = |text: &mut String| *text = clean(&word(text));
    for section in &mut report.sections {
        change(&mut section.about);
        for line in &mut section.lines {
            change(&mut line.what);
            change(&mut line.found);
            change(&mut line.expected);
        }
    }
    report.facts.iter_mut().for_each(|(_, fact)| change(fact));
}

/// The text without the model's directory and the user's own, whose names are nobody's business.
fn without_places(text: &str, model: &Path) -> String {
    first_run::without_home(&text.replace(&*model.to_string_lossy(), "MODEL"))
}

/// A number of seconds, minutes or hours with its unit.
fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("expected a time such as 30s, 60m or 2h".to_owned()),
    };
    let seconds = number.parse::<f64>().ok().map(|number| number * scale).filter(|seconds| *seconds > 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "expected a time above 0, such as 30s".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_verify::{Line, Section};

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_time("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_time("60m"), Ok(Duration::from_secs(3600)));
        for bad in ["", "60", "m", "0s", "-1s", "1.2.3s", "1e400h", "9999999999999999999999999h"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    fn report(line: Line) -> Report {
        let section = Section { name: "a".into(), title: "A".into(), lines: vec![line], ..Section::default() };
        Report { facts: vec![("model".into(), "demo".into())], sections: vec![section] }
    }

    #[test]
    fn a_line_that_fails_fails_the_command() {
        assert!(conclusion(&report(Line::judged("a", "1", "1", true))).is_ok());
        assert!(conclusion(&report(Line::skipped("a", "no time"))).is_ok());
        let error = conclusion(&report(Line::judged("a", "2", "1", false))).unwrap_err();
        assert_eq!(error.to_string(), "1 of 1 lines fail");
    }

    #[test]
    fn a_report_names_flags_and_no_places() {
        let home = dirs::home_dir().unwrap();
        let text = format!("{}/x: see `max_model_len`; /models/y/config.json", home.display());
        let mut report = report(Line::figure("a", text));
        reword(&mut report, |text| without_places(text, Path::new("/models/y")));
        assert_eq!(report.sections[0].lines[0].found, "~/x: see --max-model-len; MODEL/config.json");
    }

    #[test]
    fn a_report_has_three_forms() {
        let directory = tempfile::tempdir().unwrap();
        write(&report(Line::judged("what <is>", "a | b", "c", false)), directory.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
        assert_eq!((&json["pass"], &json["facts"]["model"]), (&json!(false), &json!("demo")));
        assert_eq!(json["sections"][0]["lines"][0]["outcome"], "fail");
        assert!(read("report.md").contains("a \\| b"), "{}", read("report.md"));
        assert!(read("report.html").contains("what &lt;is&gt;"), "{}", read("report.html"));
    }
}
