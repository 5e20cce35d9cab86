//! Regular parts of structural tags: what becomes one terminal. Knows what text may follow another, no formats.

use crate::structured::literal;

/// A regular part: one of several literals, and an expression behind it.
#[derive(Clone)]
pub struct Text {
    pub leads: Vec<String>,
    pub expression: String,
    pub end: End,
    /// About how many states it takes to follow it.
    pub states: usize,
}

/// Whether what follows can be told from a text.
#[derive(Clone)]
pub enum End {
    /// It cannot go on.
    Closed,
    /// It may go on with anything but these.
    Free(Vec<String>),
}

impl Text {
    pub fn literal(text: &str) -> Self {
        Self::one_of(vec![text.to_owned()])
    }

    pub fn one_of(leads: Vec<String>) -> Self {
        let states = leads.iter().map(String::len).sum();
        Self { leads, expression: String::new(), end: End::Closed, states }
    }

    pub fn of(expression: String, end: End, states: usize) -> Self {
        Self { leads: vec![String::new()], expression, end, states }
    }

    pub fn is_literal(&self) -> bool {
        self.expression.is_empty() && self.leads.len() == 1
    }

    pub fn is_open(&self) -> bool {
        matches!(self.end, End::Free(_))
    }

    /// Bytes of it in a grammar.
    pub fn bytes(&self) -> usize {
        self.leads.iter().map(String::len).sum::<usize>() + self.expression.len()
    }

    pub fn written(&self) -> String {
        match self.leads.iter().all(String::is_empty) {
            true if self.expression.is_empty() => "\"\"".to_owned(),
            true => self.expression.clone(),
            false => format!("{} {}", any_of(&self.leads), self.expression),
        }
    }

    /// This, and then that.
    pub fn then(mut self, next: Self) -> Self {
        let ends =
            |excludes: &[String], text: &String| excludes.iter().any(|excluded| text.contains(excluded.as_str()));
        let end = match &self.end {
            End::Closed => next.end.clone(),
            End::Free(excludes) if next.leads.iter().all(|lead| ends(excludes, lead)) => next.end.clone(),
            End::Free(excludes) if next.written() == "\"\"" => End::Free(excludes.clone()),
            End::Free(_) => End::Free(Vec::new()),
        };
        let states = self.states.saturating_add(next.states);
        if self.is_literal() && next.leads.len() == 1 {
            self.leads[0].push_str(&next.leads[0]);
            return Self { leads: self.leads, expression: next.expression, end, states };
        }
        let expression = format!("{} {}", self.expression, next.written());
        Self { leads: self.leads, expression, end, states }
    }

    /// One of them, of which is forgotten how they begin and what they may go on with.
    pub fn any(texts: &[Self]) -> Self {
        let end = if texts.iter().any(Self::is_open) { End::Free(Vec::new()) } else { End::Closed };
        let written: Vec<_> = texts.iter().map(Self::written).collect();
        let states = texts.iter().map(|text| text.states).fold(0, usize::saturating_add);
        Self::of(format!("({})", written.join(" | ")), end, states)
    }
}

pub fn any_of(texts: &[String]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| literal(text)).collect();
    if texts.len() == 1 { texts[0].clone() } else { format!("({})", texts.join(" | ")) }
}
