//! Free text with forms in it, as a part of a grammar of llguidance. Knows where forms begin, not what they are.

use super::Dispatch;
use super::found::Strings;
use super::text::{End, Text, any_of};
use super::write::{Node, Writer};
use crate::structured::regex::CHARACTER_STATES;

impl Writer {
    /// The node, inside of a tag with these ends.
    pub(super) fn dispatch(&mut self, dispatch: &Dispatch, ends: &[String]) -> Result<Node, String> {
        let Dispatch { triggers, tags, excludes, at_least_one, stop_after_first } = dispatch;
        // What stands in the text before its last part ends where that says.
        let around = if *stop_after_first { ends } else { &[] };
        let mut behind = Vec::new();
        for tag in tags {
            let node = self.behind(tag, around)?;
            behind.push((tag.begin.as_str(), if *at_least_one { self.shared(node) } else { node }));
        }
        let mut first = None;
        if *at_least_one {
            let ways = behind.iter().map(|(begin, node)| self.then(Node::literal(begin), node.clone()));
            let ways = ways.collect::<Result<_, _>>()?;
            let one = self.one_of(ways);
            if *stop_after_first {
                return Ok(one);
            }
            first = Some(one);
        }
        let barred: Vec<String> = excludes.iter().chain(ends).filter(|text| !text.is_empty()).cloned().collect();
        let found = Strings::new(triggers, &barred)?;
        let all = found.ends();
        self.spend(all.len() + barred.iter().map(String::len).sum::<usize>())?;
        let all = self.named(all);
        let mut free = format!("ANY & ~({all} ALL)");
        let mut begun = format!("ANY & ~({all} MORE)");
        if !barred.is_empty() {
            // What is excluded may end within a trigger.
            let without = self.named(format!("~(ALL {} ALL)", any_of(&barred)));
            free = format!("{free} & {without}");
            begun = format!("{begun} & {without}");
        }
        let states = CHARACTER_STATES + triggers.iter().chain(&barred).map(String::len).sum::<usize>();
        let tail = Text::of(self.named(free), End::Free(barred.clone()), states);
        let begun = self.named(begun);

        // What may follow each trigger: the rest of a tag, or that of a longer trigger.
        let mut follows: Vec<Vec<Node>> = vec![Vec::new(); triggers.len()];
        for (begin, node) in behind {
            // `checked` saw that there is one.
            let Some(at) = trigger_of(dispatch, begin) else { continue };
            follows[at].push(self.then(Node::literal(&begin[triggers[at].len()..]), node)?);
        }
        let mut longest_first: Vec<_> = (0..triggers.len()).collect();
        longest_first.sort_by_key(|&at| std::cmp::Reverse(triggers[at].len()));
        let mut forms = Vec::new();
        for at in longest_first {
            let follow = self.one_of(std::mem::take(&mut follows[at]));
            let beginning = found.beginning_of(at);
            let follow = if beginning.is_some() { self.shared(follow) } else { follow };
            if let Some(beginning) = beginning {
                let (trigger, known) = (triggers[at].as_str(), triggers[beginning].len());
                if let Some(barred) = barred.iter().find(|barred| straddles(barred, trigger, known)) {
                    return Err(format!(
                        "has {trigger:?} and {barred:?}, which overlap in more than {:?}",
                        &trigger[..known]
                    ));
                }
                if !barred.iter().any(|barred| trigger.contains(barred.as_str())) {
                    let rest = Node::literal(&trigger[known..]);
                    follows[beginning].push(self.then(rest, follow.clone())?);
                }
            }
            if found.is_found_alone(at) {
                let ends_with = found.ends_with(at);
                self.spend(ends_with.len())?;
                let begin = Text::of(self.named(format!("{ends_with} & {begun}")), End::Closed, states);
                forms.push(self.then(Node::Text(begin), follow)?);
            }
        }
        let form = self.one_of(forms);
        let all = if *stop_after_first {
            self.one_of(vec![Node::Text(tail), form])
        } else if let Some(form) = form.as_text() {
            // What goes on with anything hides what the text excludes.
            let end = if form.is_open() { End::Free(Vec::new()) } else { tail.end.clone() };
            let states = form.states.saturating_add(tail.states);
            Node::Text(Text::of(format!("({})* {}", form.written(), tail.expression), end, states))
        } else {
            let forms = self.repeated(form, 0, None)?;
            self.then(forms, Node::Text(tail))?
        };
        match first {
            Some(first) => self.then(first, all),
            None => Ok(all),
        }
    }
}

/// Whether a string may begin before a trigger and end in it, behind what is known of it.
fn straddles(barred: &str, trigger: &str, known: usize) -> bool {
    let mut ends = (known + 1..=trigger.len()).filter(|&end| end < barred.len());
    ends.any(|end| barred.as_bytes().ends_with(&trigger.as_bytes()[..end]))
}

/// The number of the trigger of the tag that begins so: in rules it is the whole.
fn trigger_of(dispatch: &Dispatch, begin: &str) -> Option<usize> {
    let triggers = &dispatch.triggers;
    triggers
        .iter()
        .position(|trigger| trigger == begin)
        .or_else(|| triggers.iter().position(|trigger| begin.starts_with(trigger.as_str())))
}
