//! How many states it takes to follow a text through the rules of a grammar. Knows numbers of rules, no notation.

/// The size of a rule, of the parts that it has been told so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Size {
    /// Each so many times: states, or those of another rule.
    parts: Vec<(Part, usize)>,
    /// Where the last part begins, which may be a group.
    last: usize,
    /// Where the groups begin that are open.
    open: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    States(usize),
    Rule(usize),
}

impl Size {
    /// So many states.
    pub fn add(&mut self, states: usize) {
        self.push(Part::States(states));
    }

    /// Those of the rule with this number.
    pub fn add_rule(&mut self, rule: usize) {
        self.push(Part::Rule(rule));
    }

    fn push(&mut self, part: Part) {
        self.last = self.parts.len();
        self.parts.push((part, 1));
    }

    /// A group begins.
    pub fn open(&mut self) {
        self.open.push(self.parts.len());
    }

    /// A group ends.
    pub fn close(&mut self) {
        self.last = self.open.pop().unwrap_or_default();
    }

    /// The last part comes several times, by what stands between the braces.
    pub fn repeat(&mut self, times: &str) {
        let numbers = times.split(',').filter_map(|number| number.trim().parse().ok());
        let times: usize = numbers.max().unwrap_or(1);
        for (_, count) in &mut self.parts[self.last..] {
            *count = count.saturating_mul(times.max(1));
        }
    }
}

/// States of all rules, each with those that it names. `None`: some rule comes back to itself.
pub fn total(rules: &[&Size]) -> Option<usize> {
    // From the rules that name none to those that name them.
    let mut users = vec![Vec::new(); rules.len()];
    let mut waits_for = vec![0; rules.len()];
    for (at, rule) in rules.iter().enumerate() {
        for (part, _) in &rule.parts {
            if let Part::Rule(named) = part {
                users[*named].push(at);
                waits_for[at] += 1;
            }
        }
    }
    let mut ready: Vec<_> = (0..rules.len()).filter(|&at| waits_for[at] == 0).collect();
    let (mut states, mut known, mut total) = (vec![0usize; rules.len()], 0, 0usize);
    while let Some(at) = ready.pop() {
        known += 1;
        for (part, times) in &rules[at].parts {
            let each = match part {
                Part::States(states) => *states,
                Part::Rule(named) => states[*named],
            };
            states[at] = states[at].saturating_add(each.saturating_mul(*times));
        }
        total = total.max(states[at]);
        for &user in &users[at] {
            waits_for[user] -= 1;
            if waits_for[user] == 0 {
                ready.push(user);
            }
        }
    }
    (known == rules.len()).then_some(total)
}
