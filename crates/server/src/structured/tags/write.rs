//! Structural tags as a grammar of llguidance. What is regular becomes one terminal, in which nothing depends on how text is cut into
//! pieces: only between a terminal and what is not regular must be told where the one ends. Knows formats, no requests.

use super::text::{End, Text, any_of};
use super::{Dispatch, Format, Tag};
use crate::structured::{MAX_SOURCE, literal, regex, with_whitespace};

/// The grammar.
///
/// # Errors
/// Free text after which something must come of which nothing tells where it begins.
pub fn lark(format: &Format) -> Result<String, String> {
    let mut writer = Writer { lark: String::new(), count: 0, spent: 0 };
    let node = writer.node(format, &[])?;
    let (start, _) = writer.finish(node);
    writer.spend(writer.lark.len() + start.len())?;
    Ok(format!("%llguidance {{}}\nstart: {start}\nANY: /(.|\\n)*/\n{}", writer.lark))
}

/// A part of the grammar.
#[derive(Clone)]
enum Node {
    Text(Text),
    Rule(Rule),
    /// Free text with forms in it.
    Open {
        rule: Rule,
        tail: Text,
        or_else: Option<String>,
    },
}

/// A part that is not regular: a literal, and an expression behind it.
#[derive(Clone)]
struct Rule {
    lead: String,
    body: String,
    /// Whether it may go on with free text.
    is_open: bool,
}

struct Writer {
    lark: String,
    count: usize,
    /// Bytes of what was excluded somewhere: each of many texts may exclude much.
    spent: usize,
}

impl Writer {
    fn spend(&mut self, bytes: usize) -> Result<(), String> {
        self.spent += bytes;
        if self.spent <= MAX_SOURCE { Ok(()) } else { Err(format!("is a grammar of more than {MAX_SOURCE} bytes")) }
    }

    /// Text without these.
    fn free<'s>(&mut self, excludes: impl Iterator<Item = &'s String>) -> Result<Text, String> {
        let excludes: Vec<String> = excludes.filter(|text| !text.is_empty()).cloned().collect();
        if excludes.is_empty() {
            return Ok(Text::of("ANY".to_owned(), End::Free(excludes)));
        }
        self.spend(excludes.iter().map(String::len).sum())?;
        let name = self.named(Text::of(format!("ANY & ~(ANY {} ANY)", any_of(&excludes)), End::Closed));
        Ok(Text::of(name, End::Free(excludes)))
    }

    /// The node of a format, inside of a tag with these ends.
    fn node(&mut self, format: &Format, ends: &[String]) -> Result<Node, String> {
        Ok(match format {
            Format::ConstString(text) => Node::Text(Text::literal(text)),
            Format::Regex(pattern) => Node::Text(Text::of(regex::lark(pattern), End::Closed)),
            Format::AnyText { excludes, max_chars } => {
                let mut text = self.free(excludes.iter().chain(ends))?;
                if let Some(most) = max_chars {
                    text.expression = format!("({} & /(.|\\n){{0,{most}}}/)", text.expression);
                }
                Node::Text(text)
            }
            Format::JsonSchema(schema) => rule(format!("%json {}", with_whitespace(schema.clone(), None))),
            Format::Grammar(lark) => rule(format!("%lark {{\n{lark}}}")),
            Format::Sequence(formats) => {
                let mut nodes = formats.iter().map(|format| self.node(format, ends)).collect::<Result<Vec<_>, _>>()?;
                let mut all = nodes.pop().unwrap_or_else(|| Node::Text(Text::literal("")));
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
            Format::Tag(tag) => self.tag(tag, ends)?,
            Format::Separated { tags, separator, is_optional, is_alone } => {
                let tags = tags.iter().map(|tag| self.tag(tag, ends)).collect::<Result<Vec<_>, _>>()?;
                let one = self.one_of(tags);
                let one = self.shared(one);
                let more = self.then(Node::Text(Text::literal(separator)), one.clone())?;
                let more = self.repeated(more, 0, is_alone.then_some(0))?;
                let all = self.then(one, more)?;
                self.repeated(all, u32::from(!is_optional), Some(1))?
            }
            Format::Dispatch(dispatch) => self.dispatch(dispatch, ends)?,
        })
    }

    fn tag(&mut self, tag: &Tag, around: &[String]) -> Result<Node, String> {
        let behind = self.behind(tag, around)?;
        self.then(Node::Text(Text::literal(&tag.begin)), behind)
    }

    /// What stands behind the begin of a tag.
    fn behind(&mut self, Tag { content, ends, .. }: &Tag, around: &[String]) -> Result<Node, String> {
        if ends.is_empty() {
            return self.node(content, around);
        }
        let node = self.node(content, ends)?;
        self.then(node, Node::Text(Text { leads: ends.clone(), expression: String::new(), end: End::Closed }))
    }

    fn dispatch(&mut self, dispatch: &Dispatch, ends: &[String]) -> Result<Node, String> {
        let Dispatch { triggers, tags, excludes, at_least_one, stop_after_first } = dispatch;
        // They may stand in two places.
        let mut behind = Vec::new();
        for tag in tags {
            let node = self.behind(tag, ends)?;
            behind.push((tag.begin.as_str(), self.shared(node)));
        }
        let mut first = String::new();
        if *at_least_one {
            first = self.begun(behind.iter().cloned())?;
            if *stop_after_first {
                return Ok(rule(first));
            }
        }
        let free = self.free(triggers.iter().chain(excludes).chain(ends))?;
        // What is excluded may end within a trigger.
        let barred: Vec<String> = excludes.iter().chain(ends).filter(|text| !text.is_empty()).cloned().collect();
        let without =
            (!barred.is_empty()).then(|| self.named(Text::of(format!("~(ANY {} ANY)", any_of(&barred)), End::Closed)));
        let mut forms = Vec::new();
        for trigger in triggers {
            let mut begin = self.terminal(free.clone().then(Text::literal(trigger)));
            if let Some(without) = &without {
                begin = self.named(Text::of(format!("{begin} & {without}"), End::Closed));
            }
            let rest =
                behind.iter().filter_map(|(begin, node)| Some((begin.strip_prefix(trigger.as_str())?, node.clone())));
            forms.push(format!("{begin} {}", self.begun(rest)?));
        }
        let forms = format!("({})", forms.join(" | "));
        let rule = |body: String| Rule { lead: String::new(), body, is_open: true };
        Ok(match stop_after_first {
            true => Node::Open { rule: rule(String::new()), tail: free, or_else: Some(forms) },
            false => Node::Open { rule: rule(format!("{first} {forms}*")), tail: free, or_else: None },
        })
    }

    /// One of some parts behind what they begin with.
    fn begun<'t>(&mut self, parts: impl Iterator<Item = (&'t str, Node)>) -> Result<String, String> {
        let parts = parts.map(|(begin, node)| self.then(Node::Text(Text::literal(begin)), node));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let node = self.one_of(parts);
        self.closed(node)
    }

    /// One of them.
    fn one_of(&mut self, mut nodes: Vec<Node>) -> Node {
        if nodes.len() == 1 {
            return nodes.remove(0);
        }
        let texts: Option<Vec<&Text>> =
            nodes.iter().map(|node| if let Node::Text(text) = node { Some(text) } else { None }).collect();
        if let Some(texts) = texts {
            let is_closed = texts.iter().all(|text| matches!(text.end, End::Closed));
            let written: Vec<_> = texts.iter().map(|text| text.written()).collect();
            let end = if is_closed { End::Closed } else { End::Free(Vec::new()) };
            return Node::Text(Text::of(format!("({})", written.join(" | ")), end));
        }
        let (written, is_open): (Vec<_>, Vec<_>) = nodes.into_iter().map(|node| self.finish(node)).unzip();
        Node::Rule(Rule {
            lead: String::new(),
            body: format!("({})", written.join(" | ")),
            is_open: is_open.contains(&true),
        })
    }

    fn repeated(&mut self, node: Node, min: u32, max: Option<u32>) -> Result<Node, String> {
        let times = match (min, max) {
            (1, Some(1)) => return Ok(node),
            (0, Some(1)) => "?".to_owned(),
            (0, None) => "*".to_owned(),
            (1, None) => "+".to_owned(),
            (min, None) => format!("{{{min},}}"),
            (_, Some(0)) => return Ok(Node::Text(Text::literal(""))),
            (min, Some(max)) => format!("{{{min},{max}}}"),
        };
        Ok(match node {
            Node::Text(text) => {
                let end = if matches!(text.end, End::Closed) { End::Closed } else { End::Free(Vec::new()) };
                Node::Text(Text::of(format!("({}){times}", text.written()), end))
            }
            node if max == Some(1) => {
                let (written, is_open) = self.finish(node);
                Node::Rule(Rule { lead: String::new(), body: format!("({written}){times}"), is_open })
            }
            node => rule(format!("({}){times}", self.closed(node)?)),
        })
    }

    /// The one, and then the other.
    fn then(&mut self, first: Node, next: Node) -> Result<Node, String> {
        Ok(match (first, next) {
            (Node::Text(first), Node::Text(next)) => Node::Text(first.then(next)),
            (Node::Text(first), Node::Rule(next)) => Node::Rule(self.before(first, next)?),
            (Node::Text(first), Node::Open { rule, tail, or_else }) => {
                // What comes before stands before both ways to go on.
                let alone = Rule { lead: rule.lead.clone(), body: String::new(), is_open: false };
                let Rule { lead, body, .. } = self.before(first, alone)?;
                let rule = Rule { lead, body: format!("{body} {}", rule.body), is_open: true };
                Node::Open { rule, tail, or_else: or_else.map(|other| format!("{body} {other}")) }
            }
            (Node::Rule(first), _) if first.is_open => return Err(unclear()),
            (Node::Rule(first), Node::Text(next)) => {
                let is_open = matches!(next.end, End::Free(_));
                let next = self.terminal(next);
                Node::Rule(Rule { body: format!("{} {next}", first.body), is_open, ..first })
            }
            (Node::Rule(first), Node::Rule(next)) => {
                let body = format!("{} {} {}", first.body, quoted(&next.lead), next.body);
                Node::Rule(Rule { lead: first.lead, body, is_open: next.is_open })
            }
            (Node::Rule(first), Node::Open { rule, tail, or_else }) => {
                let mut before = format!("{} {}", first.body, quoted(&rule.lead));
                // It stands before both ways to go on, and each may be in another such part.
                if or_else.is_some() {
                    before = self.rule_of(&before);
                }
                let rule = Rule { lead: first.lead, body: format!("{before} {}", rule.body), is_open: true };
                Node::Open { rule, tail, or_else: or_else.map(|other| format!("{before} {other}")) }
            }
            (Node::Open { rule, tail, or_else }, next) => self.after(rule, tail, or_else, next)?,
        })
    }

    /// A text before a rule.
    fn before(&mut self, first: Text, next: Rule) -> Result<Rule, String> {
        let first = first.then(Text::literal(&next.lead));
        match first.end {
            End::Free(_) => Err(unclear()),
            End::Closed if first.is_literal() => Ok(Rule { lead: first.leads[0].clone(), ..next }),
            End::Closed => {
                let first = self.terminal(first);
                Ok(Rule { lead: String::new(), body: format!("{first} {}", next.body), is_open: next.is_open })
            }
        }
    }

    /// What follows free text with forms in it.
    fn after(&mut self, rule: Rule, tail: Text, or_else: Option<String>, next: Node) -> Result<Node, String> {
        let (lead, rest) = match &next {
            Node::Text(text) => (text.clone(), ""),
            Node::Rule(next) => (Text::literal(&next.lead), next.body.as_str()),
            Node::Open { .. } => return Err(unclear()),
        };
        let (tail, lead) = (tail.then(lead.clone()), lead);
        let is_open = matches!(tail.end, End::Free(_));
        if is_open && !rest.is_empty() {
            return Err(unclear());
        }
        let is_open = is_open || matches!(&next, Node::Rule(next) if next.is_open);
        let tail = self.terminal(tail);
        let mut ways = vec![format!("{} {tail}", rule.body)];
        if let Some(other) = or_else {
            ways.push(format!("{other} {}", self.terminal(lead)));
        }
        Ok(Node::Rule(Rule { lead: rule.lead, body: format!("({}) {rest}", ways.join(" | ")), is_open }))
    }

    /// The expression of a node behind which nothing comes, and whether it could go on with free text.
    fn finish(&mut self, node: Node) -> (String, bool) {
        match node {
            Node::Text(text) => {
                let is_open = matches!(text.end, End::Free(_));
                (self.terminal(text), is_open)
            }
            Node::Rule(Rule { lead, body, is_open }) => (format!("{} {body}", quoted(&lead)), is_open),
            Node::Open { rule, tail, or_else } => {
                let lead = quoted(&rule.lead);
                let mut ways = vec![format!("{lead} {} {}", rule.body, self.terminal(tail))];
                ways.extend(or_else.map(|other| format!("{lead} {other}")));
                (format!("({})", ways.join(" | ")), true)
            }
        }
    }

    /// The expression of a node behind which something comes.
    fn closed(&mut self, node: Node) -> Result<String, String> {
        match self.finish(node) {
            (written, false) => Ok(written),
            (_, true) => Err(unclear()),
        }
    }

    /// The text as what may stand in a rule.
    fn terminal(&mut self, text: Text) -> String {
        if text.is_literal() { text.written() } else { self.named(text) }
    }

    /// The name of a new terminal.
    fn named(&mut self, text: Text) -> String {
        let name = format!("T{}", self.count);
        self.count += 1;
        self.lark.push_str(&format!("{name}: {}\n", text.written()));
        name
    }

    /// The node by a name, so that it can stand in several places.
    fn shared(&mut self, node: Node) -> Node {
        if let Node::Text(text) = node {
            let end = text.end.clone();
            return Node::Text(Text::of(self.named(text), end));
        }
        let (body, is_open) = self.finish(node);
        Node::Rule(Rule { lead: String::new(), body: self.rule_of(&body), is_open })
    }

    /// The name of a new rule.
    fn rule_of(&mut self, body: &str) -> String {
        let name = format!("r{}", self.count);
        self.count += 1;
        self.lark.push_str(&format!("{name}: {body}\n"));
        name
    }
}

fn rule(body: String) -> Node {
    Node::Rule(Rule { lead: String::new(), body, is_open: false })
}

/// Why free text cannot be followed.
fn unclear() -> String {
    "nothing tells where its free text ends: what follows must begin with one of the strings that the text `excludes`, or be the `end` of its tag"
        .to_owned()
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { literal(text) }
}
