//! Structural tags as a grammar of llguidance. What is regular becomes one terminal, in which nothing depends on how text is cut into
//! pieces: only between a terminal and what is not regular must be told where the one ends. Knows formats, no requests.

use super::text::{End, Text, any_of};
use super::{Format, Tag};
use crate::structured::compile::MAX_OF_PART;
use crate::structured::regex::CHARACTER_STATES;
use crate::structured::{MAX_SOURCE, literal, regex, with_whitespace};

/// What all grammars begin with: any text, any bytes, and any bytes but none. Of the latter llguidance sees at once that nothing is left
/// without them.
const HEAD: &str = "ANY: /(.|\\n)*/\nALL: ~/[a&&b]/\nMORE: ~\"\"\n";

/// The grammar.
///
/// # Errors
/// Free text after which something must come of which nothing tells where it begins; more than can be followed.
pub fn lark(format: &Format) -> Result<String, String> {
    let mut writer = Writer { lark: String::new(), count: 0, spent: 0 };
    let node = writer.node(format, &[])?;
    let start = writer.finish(node);
    writer.spend(writer.lark.len() + start.len())?;
    Ok(format!("%llguidance {{}}\nstart: {start}\n{HEAD}{}", writer.lark))
}

/// A part of the grammar.
#[derive(Clone)]
pub(super) enum Node {
    Text(Text),
    Rule(Rule),
    /// A part that is not regular, and text behind it that may go on with anything.
    Open {
        rule: Rule,
        tail: Text,
    },
    /// One of several parts that are no choices themselves. Some may go on with anything.
    Choice(Vec<Node>),
}

/// A part that is not regular: a literal, and an expression behind it.
#[derive(Clone)]
pub(super) struct Rule {
    lead: String,
    body: String,
}

pub(super) struct Writer {
    lark: String,
    count: usize,
    /// Bytes of what stands in several places.
    spent: usize,
}

impl Node {
    pub fn literal(text: &str) -> Self {
        Self::Text(Text::literal(text))
    }

    fn rule(body: String) -> Self {
        Self::Rule(Rule { lead: String::new(), body })
    }

    pub fn is_open(&self) -> bool {
        match self {
            Self::Text(text) => text.is_open(),
            Self::Rule(_) => false,
            Self::Open { .. } | Self::Choice(_) => true,
        }
    }

    /// As one text, if it is regular.
    pub fn as_text(&self) -> Option<Text> {
        let text = |node: &Self| if let Self::Text(text) = node { Some(text.clone()) } else { None };
        match self {
            Self::Choice(nodes) => Some(Text::any(&nodes.iter().map(text).collect::<Option<Vec<_>>>()?)),
            node => text(node),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.bytes(),
            Self::Rule(rule) => rule.lead.len() + rule.body.len(),
            Self::Open { rule, tail } => rule.lead.len() + rule.body.len() + tail.bytes(),
            Self::Choice(nodes) => nodes.iter().map(Self::bytes).sum(),
        }
    }
}

impl Writer {
    pub fn spend(&mut self, bytes: usize) -> Result<(), String> {
        self.spent += bytes;
        if self.spent <= MAX_SOURCE { Ok(()) } else { Err(format!("is a grammar of more than {MAX_SOURCE} bytes")) }
    }

    /// Text without these.
    fn free<'s>(&mut self, excludes: impl Iterator<Item = &'s String>) -> Result<Text, String> {
        let excludes: Vec<String> = excludes.filter(|text| !text.is_empty()).cloned().collect();
        let bytes = excludes.iter().map(String::len).sum::<usize>();
        self.spend(bytes)?;
        let name = match bytes {
            0 => "ANY".to_owned(),
            _ => self.named(format!("ANY & ~(ALL {} ALL)", any_of(&excludes))),
        };
        Ok(Text::of(name, End::Free(excludes), CHARACTER_STATES + bytes))
    }

    /// The node of a format, inside of a tag with these ends.
    pub fn node(&mut self, format: &Format, ends: &[String]) -> Result<Node, String> {
        Ok(match format {
            Format::ConstString(text) => Node::literal(text),
            Format::Regex { pattern, states } => Node::Text(Text::of(regex::lark(pattern), End::Closed, *states)),
            Format::AnyText { excludes, max_chars } => {
                let mut text = self.free(excludes.iter().chain(ends))?;
                if let Some(most) = max_chars {
                    text.states = followed(text.states, *most, "`max_chars`")?;
                    text.expression = format!("({} & /(.|\\n){{0,{most}}}/)", text.expression);
                }
                Node::Text(text)
            }
            Format::JsonSchema(schema) => Node::rule(format!("%json {}", with_whitespace(schema.clone(), None))),
            Format::Grammar(grammar) => match grammar.states {
                Some(states) => {
                    let (name, rules) = grammar.written(&format!("G{}R", self.count));
                    self.count += 1;
                    self.lark.push_str(&rules);
                    Node::Text(Text::of(name, End::Closed, states))
                }
                None => Node::rule(format!("%lark {{\n{}}}", grammar.lark())),
            },
            Format::Sequence(formats) => {
                let mut nodes = formats.iter().map(|format| self.node(format, ends)).collect::<Result<Vec<_>, _>>()?;
                let mut all = nodes.pop().unwrap_or_else(|| Node::literal(""));
                while let Some(first) = nodes.pop() {
                    all = self.then(first, all)?;
                }
                all
            }
            Format::Or(formats) => {
                let nodes = formats.iter().map(|format| self.node(format, ends)).collect::<Result<Vec<_>, _>>()?;
                self.one_of(nodes)
            }
            Format::Repeat { content, min, max } => {
                let node = self.node(content, ends)?;
                self.repeated(node, *min, *max)?
            }
            Format::Tag(tag) => {
                let behind = self.behind(tag, ends)?;
                self.then(Node::literal(&tag.begin), behind)?
            }
            Format::Separated { tags, separator, is_optional, is_alone } => {
                let mut ways = Vec::new();
                for tag in tags {
                    let behind = self.behind(tag, ends)?;
                    ways.push(self.then(Node::literal(&tag.begin), behind)?);
                }
                let mut all = self.one_of(ways);
                if !is_alone {
                    all = self.shared(all);
                    let more = self.then(Node::literal(separator), all.clone())?;
                    let more = self.repeated(more, 0, None)?;
                    all = self.then(all, more)?;
                }
                self.repeated(all, u32::from(!is_optional), Some(1))?
            }
            Format::Dispatch(dispatch) => self.dispatch(dispatch, ends)?,
        })
    }

    /// What stands behind the begin of a tag.
    pub fn behind(&mut self, Tag { content, ends, .. }: &Tag, around: &[String]) -> Result<Node, String> {
        if ends.is_empty() {
            return self.node(content, around);
        }
        let node = self.node(content, ends)?;
        self.then(node, Node::Text(Text::one_of(ends.clone())))
    }

    /// One of them.
    pub fn one_of(&mut self, nodes: Vec<Node>) -> Node {
        let flat = nodes.into_iter().flat_map(|node| if let Node::Choice(nodes) = node { nodes } else { vec![node] });
        let mut nodes: Vec<_> = flat.collect();
        if nodes.len() == 1 {
            return nodes.remove(0);
        }
        let choice = Node::Choice(nodes);
        match (&choice, choice.as_text()) {
            (Node::Choice(nodes), _) if nodes.iter().any(Node::is_open) => choice,
            (_, Some(text)) => Node::Text(text),
            _ => Node::rule(self.finish(choice)),
        }
    }

    pub fn repeated(&mut self, node: Node, min: u32, max: Option<u32>) -> Result<Node, String> {
        let times = match (min, max) {
            (1, Some(1)) => return Ok(node),
            (0, Some(1)) if node.is_open() => return Ok(self.one_of(vec![node, Node::literal("")])),
            (0, Some(1)) => "?".to_owned(),
            (0, None) => "*".to_owned(),
            (1, None) => "+".to_owned(),
            (min, None) => format!("{{{min},}}"),
            (_, Some(0)) => return Ok(Node::literal("")),
            (min, Some(max)) => format!("{{{min},{max}}}"),
        };
        if let Some(text) = node.as_text() {
            let end = if text.is_open() { End::Free(Vec::new()) } else { End::Closed };
            let states = followed(text.states, u64::from(max.unwrap_or(min.max(1))), "`repeat` of this content")?;
            return Ok(Node::Text(Text::of(format!("({}){times}", text.written()), end, states)));
        }
        Ok(Node::rule(format!("({}){times}", self.closed(node)?)))
    }

    /// The one, and then the other.
    pub fn then(&mut self, first: Node, next: Node) -> Result<Node, String> {
        Ok(match (first, next) {
            (first @ Node::Choice(_), next @ Node::Choice(_))
                if let (Some(first), Some(next)) = (first.as_text(), next.as_text()) =>
            {
                Node::Text(first.then(next))
            }
            (Node::Choice(ways), next) => {
                let next = self.shared(next);
                self.spend(ways.len() * next.bytes())?;
                let ways = ways.into_iter().map(|first| self.then(first, next.clone())).collect::<Result<_, _>>()?;
                self.one_of(ways)
            }
            (first, Node::Choice(ways)) => {
                let first = self.shared(first);
                self.spend(ways.len() * first.bytes())?;
                let ways = ways.into_iter().map(|next| self.then(first.clone(), next)).collect::<Result<_, _>>()?;
                self.one_of(ways)
            }
            (Node::Text(first), Node::Text(next)) => Node::Text(first.then(next)),
            (Node::Text(first), Node::Rule(next)) => Node::Rule(self.before(first, next)?),
            (Node::Text(first), Node::Open { rule, tail }) => Node::Open { rule: self.before(first, rule)?, tail },
            (Node::Rule(rule), Node::Text(tail)) if tail.is_open() => Node::Open { rule, tail },
            (Node::Rule(first), Node::Text(next)) => {
                let next = self.terminal(next);
                Node::Rule(Rule { lead: first.lead, body: format!("{} {next}", first.body) })
            }
            (Node::Rule(first), Node::Rule(next)) => Node::Rule(first.then(&next)),
            (Node::Rule(first), Node::Open { rule, tail }) => Node::Open { rule: first.then(&rule), tail },
            (Node::Open { rule, tail }, Node::Text(next)) => {
                let tail = tail.then(next);
                self.then(Node::Rule(rule), Node::Text(tail))?
            }
            (Node::Open { rule, tail }, Node::Rule(next)) => {
                let next = self.before(tail, next)?;
                Node::Rule(rule.then(&next))
            }
            (Node::Open { rule, tail }, Node::Open { rule: next, tail: last }) => {
                let next = self.before(tail, next)?;
                Node::Open { rule: rule.then(&next), tail: last }
            }
        })
    }

    /// A text before a rule.
    fn before(&mut self, first: Text, next: Rule) -> Result<Rule, String> {
        let first = first.then(Text::literal(&next.lead));
        if first.is_open() {
            return Err(unclear());
        }
        if first.is_literal() {
            return Ok(Rule { lead: first.leads[0].clone(), ..next });
        }
        let first = self.terminal(first);
        Ok(Rule { lead: String::new(), body: format!("{first} {}", next.body) })
    }

    /// The expression of a node behind which nothing comes.
    fn finish(&mut self, node: Node) -> String {
        if let Some(text) = node.as_text() {
            return self.terminal(text);
        }
        match node {
            Node::Text(text) => self.terminal(text),
            Node::Rule(rule) => rule.written(),
            Node::Open { rule, tail } => format!("{} {}", rule.written(), self.terminal(tail)),
            Node::Choice(nodes) => {
                let ways: Vec<_> = nodes.into_iter().map(|node| self.finish(node)).collect();
                format!("({})", ways.join(" | "))
            }
        }
    }

    /// The expression of a node behind which something comes.
    fn closed(&mut self, node: Node) -> Result<String, String> {
        if node.is_open() { Err(unclear()) } else { Ok(self.finish(node)) }
    }

    /// The text as what may stand in a rule.
    fn terminal(&mut self, text: Text) -> String {
        if text.is_literal() { text.written() } else { self.named(text.written()) }
    }

    /// The name of a new terminal.
    pub fn named(&mut self, expression: String) -> String {
        let name = format!("T{}", self.count);
        self.count += 1;
        self.lark.push_str(&format!("{name}: {expression}\n"));
        name
    }

    /// The node by a name, so that it can stand in several places.
    pub fn shared(&mut self, node: Node) -> Node {
        match node {
            Node::Text(text) => Node::Text(self.shared_text(text)),
            Node::Rule(rule) => Node::Rule(self.shared_rule(rule)),
            Node::Open { rule, tail } => Node::Open { rule: self.shared_rule(rule), tail: self.shared_text(tail) },
            Node::Choice(nodes) => Node::Choice(nodes.into_iter().map(|node| self.shared(node)).collect()),
        }
    }

    fn shared_text(&mut self, text: Text) -> Text {
        if text.expression.is_empty() {
            return text;
        }
        Text { expression: self.named(text.expression), ..text }
    }

    fn shared_rule(&mut self, Rule { lead, body }: Rule) -> Rule {
        let name = format!("r{}", self.count);
        self.count += 1;
        self.lark.push_str(&format!("{name}: {body}\n"));
        Rule { lead, body: name }
    }
}

impl Rule {
    fn then(self, next: &Self) -> Self {
        Self { lead: self.lead, body: format!("{} {} {}", self.body, quoted(&next.lead), next.body) }
    }

    fn written(&self) -> String {
        format!("{} {}", quoted(&self.lead), self.body)
    }
}

/// States of so many parts with so many each.
fn followed(states: usize, times: u64, name: &str) -> Result<usize, String> {
    let most = MAX_OF_PART / states.max(1);
    match usize::try_from(times) {
        Ok(times) if times <= most => Ok(times * states),
        _ => Err(format!("has more than can be followed: {name} may be at most {most} here, or without a bound")),
    }
}

/// Why free text cannot be followed.
fn unclear() -> String {
    "nothing tells where its free text ends: what follows must begin with one of the strings that the text `excludes`, or be the `end` of its tag"
        .to_owned()
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { literal(text) }
}
