//! `vllm-apple verify`: whether a model is computed as it should be on this machine's device, and how fast. It knows which sections there are
//! and where the report goes, not what they examine.

mod bars;
mod client;
mod concurrency;
mod facts;
mod html;
mod markdown;
mod prompts;
mod saved;
mod svg;
mod table;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use vllm_apple_verify::sections::{self, Entry};
use vllm_apple_verify::{HostOps, Report, Section, Settings, Subject};

use super::args::{GenerationConfigSource, LoadFormat, ModelArgs};
use super::{CliError, first_run, load, tell};
use crate::settings::word;
use bars::Bars;
use saved::Saved;

/// The section that compares with a file.
const REFERENCE_READER: &str = "equivalence";

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

    /// Refuses flags that none of the sections reads.
    fn refuse_unread(&self) -> Result<(), CliError> {
        let model = &self.model;
        let given = [
            ("--reference", self.reference.is_some(), REFERENCE_READER),
            ("--chat-template", model.chat_template.is_some(), concurrency::NAME),
            ("--generation-config", model.generation_config != GenerationConfigSource::Auto, concurrency::NAME),
            ("--speculative-config", model.speculative_config.is_some(), concurrency::NAME),
            ("--enable-prefix-caching", model.enable_prefix_caching, concurrency::NAME),
            ("--no-enable-prefix-caching", model.no_enable_prefix_caching, concurrency::NAME),
            ("--seed", model.seed != 0, concurrency::NAME),
        ];
        match given.into_iter().find(|&(_, is_given, section)| is_given && !self.wants(section)) {
            Some((flag, _, section)) => Err(CliError::Unread { flag, section }),
            None => Ok(()),
        }
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
        let (options, device) = (engine.load_options(), engine.device_options()?);
        Ok(Subject { checkpoint, options, device, prompts, host_ops: HostOps::default() })
    }
}

pub fn run(mut args: VerifyArgs) -> Result<(), CliError> {
    args.refuse_unread()?;
    // Before anything that takes time.
    let saved = args.report.clone().map(Saved::open).transpose()?;
    // Whole paths can be told apart from other words of a message.
    let absolute = |path: PathBuf| {
        std::path::absolute(&path).map_err(|source| CliError::Input { path: path.display().to_string(), source })
    };
    let directory = absolute(load::resolve(args.model.model.as_deref(), args.model.revision.as_deref())?)?;
    args.model.tokenizer = args.model.tokenizer.take().map(absolute).transpose()?;
    let (mut subject, settings) = (args.subject(&directory)?, args.settings());
    let device = subject.pin_device()?;
    // The server's, too.
    args.model.engine.device = subject.device.kind;
    let facts = facts::of(&args, &subject, device, &settings)?;
    // What was found once, on the hub, too.
    (args.model.model, args.model.revision) = (Some(directory.to_string_lossy().into_owned()), None);
    let mut places: Vec<(String, String)> = Vec::new();
    let mut place = |path: &Path, word: &str| places.push((path.to_string_lossy().into_owned(), word.to_owned()));
    // A longer path before one that it begins with.
    if let Some((path, name)) = args.reference.as_deref().and_then(|path| Some((path, path.file_name()?))) {
        place(path, &name.to_string_lossy());
    }
    args.model.tokenizer.iter().for_each(|path| place(path, "TOKENIZER"));
    place(&directory, "MODEL");
    // A template, or the path of one.
    if let Some(template) = args.model.chat_template.as_deref().filter(|template| !template.is_empty()) {
        place(Path::new(template), "TEMPLATE");
    }
    let facts = facts.into_iter().map(|(name, fact)| (name, without_places(&fact, &places))).collect();
    examine(&args, &subject, &settings, facts, &places, saved.as_ref())
}

/// Every section that is wanted. The report is there from the beginning and grows with each: a run that is ended has said what it found.
fn examine(
    args: &VerifyArgs,
    subject: &Subject,
    settings: &Settings,
    facts: Vec<(String, String)>,
    places: &[(String, String)],
    saved: Option<&Saved>,
) -> Result<(), CliError> {
    let wanted: Vec<&Entry> = sections::ALL.iter().filter(|entry| args.wants(entry.name)).collect();
    let mut report = Report { facts, sections: wanted.iter().map(|entry| entry.to_come()).collect() };
    if args.wants(concurrency::NAME) {
        report.sections.push(sections::to_come(concurrency::NAME, concurrency::TITLE));
    }
    let save = |report: &Report| saved.map_or(Ok(()), |saved| saved.write(report));
    save(&report)?;
    // Whoever reads the output may have read enough: that is no reason to examine no more.
    let mut printed = table::print_facts(&report, &mut io::stdout());
    let total = report.sections.len();
    for at in 0..total {
        let mut bars = Bars::new(at, total, &report.sections[at].title);
        let mut section = match wanted.get(at) {
            Some(entry) => entry.examine(subject, settings, &mut bars),
            None => concurrency::examine(args, subject, &mut bars),
        };
        drop(bars);
        reword(&mut section, |text| without_places(text, places));
        printed = printed.and_then(|()| table::print_section(&section, &mut io::stdout()));
        report.sections[at] = section;
        // A disk may have room again at the end.
        if let (Err(error), true) = (save(&report), at + 1 < total) {
            tracing::error!("{error}");
        }
    }
    printed = printed.and_then(|()| table::print_summary(&report, &mut io::stdout()));
    save(&report)?;
    if let Some(directory) = &args.report {
        tell(format_args!("the report is in {}", directory.display()));
    }
    conclusion(&report)?;
    printed.map_err(CliError::Stdout)
}

/// Fails if a line does, or if there is none that could.
fn conclusion(report: &Report) -> Result<(), CliError> {
    let failed = report.failures().count();
    let total = report.sections.iter().map(|section| section.lines.len()).sum();
    match failed {
        0 if report.says_anything() => Ok(()),
        0 => Err(CliError::NothingExamined),
        _ => Err(CliError::Verify { failed, total }),
    }
}

/// Messages name settings as this program's user writes them, and no place of this machine.
fn reword(section: &mut Section, clean: impl Fn(&str) -> String) {
    let change = |text: &mut String| *text = clean(&word(text));
    change(&mut section.about);
    for line in &mut section.lines {
        change(&mut line.what);
        change(&mut line.found);
        change(&mut line.expected);
    }
}

/// The text with words for places, and without the name of the user's own directory, which is nobody's business.
fn without_places(text: &str, places: &[(String, String)]) -> String {
    let text = places.iter().fold(text.to_owned(), |text, (place, word)| text.replace(place, word));
    first_run::without_home(&text)
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
    use vllm_apple_verify::Line;

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
        assert!(conclusion(&report(Line::figure("a", "1"))).is_ok());
        let error = conclusion(&report(Line::skipped("a", "no time"))).unwrap_err();
        assert_eq!(error.to_string(), "nothing was examined: every line says why");
        let error = conclusion(&report(Line::judged("a", "2", "1", false))).unwrap_err();
        assert_eq!(error.to_string(), "1 of 1 lines fail");
    }

    #[test]
    fn a_report_names_flags_and_no_places() {
        let home = dirs::home_dir().unwrap();
        let text = format!("{}/x: see `max_model_len`; /models/y/config.json; /models/y/ref", home.display());
        let mut section = Section { lines: vec![Line::figure("a", text)], ..Section::default() };
        let places = [("/models/y/ref", "ref"), ("/models/y", "MODEL")];
        let places = places.map(|(place, word)| (place.to_owned(), word.to_owned()));
        reword(&mut section, |text| without_places(text, &places));
        assert_eq!(section.lines[0].found, "~/x: see --max-model-len; MODEL/config.json; ref");
    }
}
