//! Which ops the host computes in a device's place. It does so by the ops' own formulas, beside which they are right whatever the device does:
//! an examination of such ops says nothing of the device.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::report::{Line, Outcome, Section};

/// How a backend begins to say that the host computes an op, see [`Backend::choices`](vllm_apple_ops::Backend::choices).
const ON_THE_HOST: &str = "on the host: ";
/// What the user can have there: the settings say so.
const WISHES: [&str; 2] = ["attention", "prefill"];

/// Ops that the host computes though nobody has asked for it, each with the reason: all that were known since the beginning.
#[derive(Debug, Default)]
pub struct HostOps(RefCell<Option<BTreeMap<String, String>>>);

impl HostOps {
    /// Takes in what a backend says of itself. One that is the host has nothing to say.
    pub(crate) fn note(&self, choices: &[(String, String)]) {
        if choices.is_empty() {
            return;
        }
        let mut known = self.0.borrow_mut();
        let known = known.get_or_insert_default();
        for (what, how) in choices.iter().filter(|(what, _)| !WISHES.contains(&what.as_str())) {
            if let Some(reason) = how.strip_prefix(ON_THE_HOST) {
                known.entry(what.clone()).or_insert_with(|| reason.to_owned());
            }
        }
    }

    /// Adds a line about them to a section that has examined something on a device.
    pub fn judge(&self, section: &mut Section) {
        let says_anything = section.lines.iter().any(|line| line.outcome != Outcome::Skipped);
        section.lines.extend(self.line().filter(|_| says_anything));
    }

    fn line(&self) -> Option<Line> {
        let known = self.0.borrow();
        let known = known.as_ref()?;
        let names: Vec<String> = known.iter().map(|(op, reason)| format!("{op} ({reason})")).collect();
        let found = if names.is_empty() { "none".to_owned() } else { names.join("; ") };
        Some(Line::judged("ops that the host computes in the device's place", found, "none", names.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: Vec<Line>, choices: &[(&str, &str)]) -> Vec<Line> {
        let ops = HostOps::default();
        ops.note(&choices.iter().map(|(what, how)| ((*what).to_owned(), (*how).to_owned())).collect::<Vec<_>>());
        let mut section = Section { lines, ..Section::default() };
        ops.judge(&mut section);
        section.lines
    }

    const OWN: [(&str, &str); 3] = [
        ("most tokens in a step", "2048 (`metal_max_batch_size`)"),
        ("attention", "on the host: `metal_attention`=0"),
        ("gated_matmul float32", "in two steps: it is wrong at the model's own sizes"),
    ];

    #[test]
    fn an_op_that_the_device_gets_wrong_fails_every_section_that_ran() {
        let ran = || vec![Line::figure("speed", "1")];
        let right = judged(ran(), &OWN);
        assert_eq!((right.len(), right[1].outcome, right[1].found.as_str()), (2, Outcome::Pass, "none"));
        let wrong =
            judged(ran(), &[&OWN[..], &[("rms_norm float16", "on the host: the self-test failed: 3 > 1")]].concat());
        assert_eq!(wrong[1].outcome, Outcome::Fail);
        assert_eq!(wrong[1].found, "rms_norm float16 (the self-test failed: 3 > 1)");
    }

    #[test]
    fn a_cpu_and_a_section_that_examined_nothing_have_no_such_line() {
        assert_eq!(judged(vec![Line::figure("speed", "1")], &[]).len(), 1);
        assert_eq!(judged(vec![Line::skipped("all", "too short")], &OWN).len(), 1);
        assert!(judged(Vec::new(), &OWN).is_empty());
    }
}
