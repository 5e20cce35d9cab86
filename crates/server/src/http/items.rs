//! An answer as a list of items, for the APIs that word one so: what the model thought, said and called, in the order in which it did. Knows no
//! wording.

use super::brackets::Brackets;
use super::told_apart::{Shown, Telling, Told};
use crate::generation::Delta;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// What the model thinks.
    Reasoning(String),
    /// What it says.
    Text(String),
    /// What it calls.
    Call {
        /// Unique.
        id: String,
        /// The tool.
        name: String,
        /// As the model wrote them.
        arguments: String,
    },
}

impl Item {
    /// Whether nothing is missing as far as can be told.
    pub fn is_whole(&self) -> bool {
        match self {
            Self::Call { arguments, .. } => Brackets::of(arguments).are_closed(),
            Self::Reasoning(_) | Self::Text(_) => true,
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Reasoning(text) | Self::Text(text) | Self::Call { arguments: text, .. } => text,
        }
    }

    fn text_mut(&mut self) -> &mut String {
        match self {
            Self::Reasoning(text) | Self::Text(text) | Self::Call { arguments: text, .. } => text,
        }
    }
}

/// What happens to the item of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It begins, without text.
    Begin(usize),
    /// It goes on.
    More(usize, String),
    /// It is whole.
    End(usize),
}

/// Tokens of a request and its answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of the prompt.
    pub prompt: usize,
    /// Of these, from the prefix cache.
    pub cached: usize,
    /// Of the answer.
    pub output: usize,
    /// Of these, thought, with the tags around.
    pub reasoning: usize,
}

/// An answer on its way.
#[derive(Debug)]
pub struct Items {
    told: Told,
    list: Vec<Item>,
    /// Whether the last item goes on.
    is_open: bool,
    /// White space that begins an item if text follows.
    blank: String,
}

impl Items {
    /// None yet.
    pub fn new(telling: &Telling) -> Self {
        Self { told: Told::new(telling), list: Vec::new(), is_open: false, blank: String::new() }
    }

    /// All so far.
    pub fn list(&self) -> &[Item] {
        &self.list
    }

    /// Whether a call has begun.
    pub fn has_called(&self) -> bool {
        self.told.has_called()
    }

    /// Bytes of text.
    pub fn bytes(&self) -> usize {
        self.list.iter().map(|item| item.text().len()).sum::<usize>() + self.blank.len()
    }

    /// Tokens that were thought.
    pub fn reasoning_tokens(&self) -> usize {
        self.told.reasoning_tokens()
    }

    /// What the next delta does. An answer that is nothing is an empty text.
    pub fn push(&mut self, delta: Delta) -> Vec<Step> {
        let is_last = delta.finish.is_some();
        let mut steps = Vec::new();
        for shown in self.told.push(delta.text, delta.tokens.len(), is_last) {
            self.take(shown, &mut steps);
        }
        if is_last {
            if self.list.is_empty() {
                let blank = std::mem::take(&mut self.blank);
                self.begin(Item::Text(String::new()), &mut steps);
                self.more(blank, &mut steps);
            }
            self.end(&mut steps);
        }
        steps
    }

    fn take(&mut self, shown: Shown, steps: &mut Vec<Step>) {
        match shown {
            Shown::Reasoning(text) => self.text(text, Item::Reasoning(String::new()), steps),
            Shown::Content(text) => self.text(text, Item::Text(String::new()), steps),
            Shown::Call { id, name } => self.begin(Item::Call { id, name, arguments: String::new() }, steps),
            Shown::Arguments(text) => self.more(text, steps),
        }
    }

    /// More of an item of this kind. White space between items is none.
    fn text(&mut self, text: String, empty: Item, steps: &mut Vec<Step>) {
        let goes_on = self.is_open
            && self.list.last().is_some_and(|last| std::mem::discriminant(last) == std::mem::discriminant(&empty));
        if goes_on {
            return self.more(text, steps);
        }
        if text.trim().is_empty() {
            self.blank.push_str(&text);
            return;
        }
        let blank = std::mem::take(&mut self.blank);
        self.begin(empty, steps);
        self.more(blank + &text, steps);
    }

    fn begin(&mut self, item: Item, steps: &mut Vec<Step>) {
        self.end(steps);
        self.blank.clear();
        self.list.push(item);
        self.is_open = true;
        steps.push(Step::Begin(self.list.len() - 1));
    }

    fn more(&mut self, text: String, steps: &mut Vec<Step>) {
        if let Some(last) = self.list.last_mut().filter(|_| self.is_open && !text.is_empty()) {
            last.text_mut().push_str(&text);
            steps.push(Step::More(self.list.len() - 1, text));
        }
    }

    fn end(&mut self, steps: &mut Vec<Step>) {
        if std::mem::take(&mut self.is_open) {
            steps.push(Step::End(self.list.len() - 1));
        }
    }
}
