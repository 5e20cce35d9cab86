//! The report as Markdown.

use std::fmt::Write;

use vllm_apple_verify::sections::human;
use vllm_apple_verify::{Report, Section};

use super::table::{counts, word};

/// All of it.
pub fn of(report: &Report) -> String {
    let mut text = String::from("# Validation report\n\n| | |\n|---|---|\n");
    for (name, fact) in &report.facts {
        let _ = writeln!(text, "| {} | {} |", cell(name), cell(fact));
    }
    let _ = writeln!(text, "\n**{}**\n\n| section | lines | time |\n|---|---|---|", counts(report.sections.iter()));
    for section in &report.sections {
        let _ = writeln!(text, "| {} | {} | {} |", cell(&section.title), counts([section].into_iter()), time(section));
    }
    for section in &report.sections {
        let _ = writeln!(
            text,
            "\n## {}\n\n{}\n\n| | what | found | expected |\n|---|---|---|---|",
            section.title, section.about
        );
        for line in &section.lines {
            let (what, found, expected) = (cell(&line.what), cell(&line.found), cell(&line.expected));
            let _ = writeln!(text, "| {} | {what} | {found} | {expected} |", word(line.outcome));
        }
    }
    text
}

fn time(section: &Section) -> String {
    human(std::time::Duration::from_secs_f64(section.seconds))
}

/// A text within a table.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace(['\n', '\r'], " ")
}
