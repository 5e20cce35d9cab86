//! The report on the terminal.

use std::io::{self, Write};

use vllm_apple_verify::sections::human;
use vllm_apple_verify::{Outcome, Report, Section};

/// Every fact.
pub fn print_facts(report: &Report, out: &mut impl Write) -> io::Result<()> {
    report.facts.iter().try_for_each(|(name, fact)| writeln!(out, "{name}: {fact}"))
}

/// What the sections came to, the lines that fail once more, and how many lines there are of each outcome and could
/// have failed.
pub fn print_summary(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let width = report.sections.iter().map(|section| section.title.chars().count()).max().unwrap_or_default();
    writeln!(out)?;
    for section in &report.sections {
        let took = human(std::time::Duration::from_secs_f64(section.seconds));
        writeln!(out, "{:<width$}  {took:>8}  {}", section.title, counts([section].into_iter()))?;
    }
    for (section, line) in report.failures() {
        writeln!(out, "FAIL  {}: {}: {}", section.name, line.what, line.found)?;
    }
    writeln!(out, "\n{}; {} judged", counts(report.sections.iter()), report.judged())
}

/// Every line of a section.
pub fn print_section(section: &Section, out: &mut impl Write) -> io::Result<()> {
    let took = human(std::time::Duration::from_secs_f64(section.seconds));
    writeln!(out, "\n{} ({}, {took})", section.title, section.name)?;
    let width = section.lines.iter().map(|line| line.what.chars().count()).max().unwrap_or_default();
    for line in &section.lines {
        let expected = match line.outcome {
            Outcome::Fail => format!("; expected: {}", line.expected),
            _ => String::new(),
        };
        writeln!(out, "  {:<4}  {:<width$}  {}{expected}", word(line.outcome), line.what, line.found)?;
    }
    Ok(())
}

/// An outcome in a word.
pub fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "pass",
        Outcome::Fail => "FAIL",
        Outcome::Figure => "",
        Outcome::Skipped => "skip",
    }
}

/// How many lines of these sections have which outcome.
pub fn counts<'a>(sections: impl Iterator<Item = &'a Section>) -> String {
    let outcomes: Vec<Outcome> = sections.flat_map(|section| &section.lines).map(|line| line.outcome).collect();
    let count = |outcome| outcomes.iter().filter(|&&one| one == outcome).count();
    let figures = if count(Outcome::Figure) == 1 { "figure" } else { "figures" };
    let all =
        [(Outcome::Pass, "pass"), (Outcome::Fail, "fail"), (Outcome::Figure, figures), (Outcome::Skipped, "skipped")];
    let parts: Vec<String> = all
        .map(|(outcome, name)| (count(outcome), name))
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, name)| format!("{n} {name}"))
        .collect();
    if parts.is_empty() { "no lines".to_owned() } else { parts.join(", ") }
}
