//! What a report says, as data.

use serde::Serialize;

/// Everything that was found out about a model on a machine.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Machine, program, model and settings, by name.
    pub facts: Vec<(String, String)>,
    /// What was examined, in its order.
    pub sections: Vec<Section>,
}

impl Report {
    /// Lines that fail.
    pub fn failures(&self) -> impl Iterator<Item = (&Section, &Line)> {
        let lines = self.sections.iter().flat_map(|section| section.lines.iter().map(move |line| (section, line)));
        lines.filter(|(_, line)| line.outcome == Outcome::Fail)
    }

    /// How many lines pass or fail: where none does, nothing is said to be right.
    pub fn judged(&self) -> usize {
        let lines = self.sections.iter().flat_map(|section| &section.lines);
        lines.filter(|line| matches!(line.outcome, Outcome::Pass | Outcome::Fail)).count()
    }

    /// Whether anything was examined: a report of what was skipped alone says nothing.
    pub fn says_anything(&self) -> bool {
        self.sections.iter().flat_map(|section| &section.lines).any(|line| line.outcome != Outcome::Skipped)
    }
}

/// One examination.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Section {
    /// As `--only` names it.
    pub name: String,
    /// For people.
    pub title: String,
    /// What is examined and how, in a sentence or two.
    pub about: String,
    /// What was found.
    pub lines: Vec<Line>,
    /// The same as pictures.
    pub plots: Vec<Plot>,
    /// How long it took.
    pub seconds: f64,
}

/// One thing that was examined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// What.
    pub what: String,
    /// What was found, with its unit.
    pub found: String,
    /// What it must be; empty if it is for information.
    pub expected: String,
    /// Whether it is.
    pub outcome: Outcome,
}

/// How a line went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As expected.
    Pass,
    /// Not as expected.
    Fail,
    /// Nothing was expected: a figure.
    Figure,
    /// Not examined, and `found` says why.
    Skipped,
}

impl Line {
    /// A line that passes or fails.
    pub fn judged(
        what: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
        passes: bool,
    ) -> Self {
        let outcome = if passes { Outcome::Pass } else { Outcome::Fail };
        Self { what: what.into(), found: found.into(), expected: expected.into(), outcome }
    }

    /// A line for information.
    pub fn figure(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { what: what.into(), found: found.into(), expected: String::new(), outcome: Outcome::Figure }
    }

    /// A line that was not examined.
    pub fn skipped(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), found: why.into(), expected: String::new(), outcome: Outcome::Skipped }
    }
}

/// Lines in a coordinate system.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// With its unit.
    pub x: String,
    /// With its unit.
    pub y: String,
    /// Whether the axis is logarithmic.
    pub log_x: bool,
    /// Whether the axis is logarithmic.
    pub log_y: bool,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// Points that belong together.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// In ascending order of x.
    pub points: Vec<(f64, f64)>,
}
