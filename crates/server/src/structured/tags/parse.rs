//! Structural tags as requests spell them. Knows their fields, no grammar.

use serde_json::{Map, Value};

use super::{Dispatch, Format, Tag};
use crate::structured::{ebnf, regex};

/// What cannot be read, or not be held to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Where it stands.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// Reads xgrammar's `format`, which stands at `path`.
///
/// # Errors
/// What of it is not known, or not done here.
pub fn format(path: &str, value: Value) -> Result<Format, Refusal> {
    let mut object = Object::new(path, value)?;
    let kind = object.string("type")?;
    let format = match kind.as_str() {
        "const_string" => Format::ConstString(object.string("value")?),
        "json_schema" => {
            let style = object.optional("style").unwrap_or_else(|| "json".into());
            if style != "json" {
                return Err(
                    object.refuse("style", "must be \"json\": parameters in XML are not written by this server")
                );
            }
            object.neutral("any_order", &[Value::Bool(false)], "properties come in the schema's order")?;
            object.neutral("max_whitespace_cnt", &[], "white space is bounded by this server")?;
            object.neutral("excludes", &[Value::Array(Vec::new())], "use `pattern` in the schema")?;
            object.schema("json_schema")?
        }
        "grammar" => {
            let grammar = object.string("grammar")?;
            if !ebnf::is_ebnf(&grammar) {
                return Err(object.refuse("grammar", "must be EBNF: `root ::= …`"));
            }
            let read = ebnf::Grammar::read(&grammar);
            Format::Grammar(read.map_err(|reason| object.refuse("grammar", &format!("cannot be read: {reason}")))?)
        }
        "regex" => {
            let pattern = object.string("pattern")?;
            let read = regex::read(&pattern);
            let read = read.map_err(|reason| object.refuse("pattern", &format!("cannot be read: {reason}")))?;
            Format::Regex { states: regex::states(&read), pattern }
        }
        "any_text" => {
            object.neutral("max_tokens", &[], "use `max_chars`")?;
            Format::AnyText { excludes: object.strings("excludes")?, max_chars: object.count("max_chars")? }
        }
        "sequence" => Format::Sequence(object.formats("elements")?),
        "or" => Format::Or(object.formats("elements")?),
        "optional" => object.repeated(0, Some(1))?,
        "star" => object.repeated(0, None)?,
        "plus" => object.repeated(1, None)?,
        "repeat" => {
            let (min, max) = object.range()?;
            object.repeated(min, max)?
        }
        "tag" => Format::Tag(object.tag()?),
        "triggered_tags" => Format::Dispatch(object.triggered()?),
        "dispatch" => Format::Dispatch(object.dispatch()?),
        "tags_with_separator" => object.separated()?,
        _ => {
            let known = "const_string, json_schema, grammar, regex, any_text, sequence, or, optional, star, plus, repeat, tag, triggered_tags, \
                         dispatch and tags_with_separator";
            return Err(object.refuse("type", &format!("is {kind:?}, but this server takes {known}")));
        }
    };
    object.finish()?;
    Ok(format)
}

/// Reads vLLM's older form: `structures`, each with `begin`, `schema` and `end`, and the `triggers` that start them.
///
/// # Errors
/// What of it is missing or not known.
pub fn structures(path: &str, fields: Map<String, Value>) -> Result<Format, Refusal> {
    let mut object = Object { path: path.to_owned(), fields };
    let triggers = object.strings("triggers")?;
    let mut tags = Vec::new();
    for (at, structure) in object.list("structures")?.into_iter().enumerate() {
        let mut structure = Object::new(&format!("{}.structures[{at}]", object.path), structure)?;
        let (begin, end) = (structure.string("begin")?, structure.string("end")?);
        let content = Box::new(structure.schema("schema")?);
        structure.finish()?;
        tags.push(Tag { begin, content, ends: vec![end] });
    }
    object.finish()?;
    let free = Dispatch { triggers, tags, excludes: Vec::new(), at_least_one: false, stop_after_first: false };
    Ok(Format::Dispatch(checked(&object, free)?))
}

/// An object whose fields are taken one by one.
struct Object {
    path: String,
    fields: Map<String, Value>,
}

impl Object {
    fn new(path: &str, value: Value) -> Result<Self, Refusal> {
        match value {
            Value::Object(fields) => Ok(Self { path: path.to_owned(), fields }),
            _ => Err(Refusal { path: path.to_owned(), reason: "must be an object".to_owned() }),
        }
    }

    fn refuse(&self, name: &str, reason: &str) -> Refusal {
        Refusal { path: format!("{}.{name}", self.path), reason: reason.to_owned() }
    }

    fn optional(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    fn required(&mut self, name: &str) -> Result<Value, Refusal> {
        self.optional(name).ok_or_else(|| self.refuse(name, "is required"))
    }

    fn string(&mut self, name: &str) -> Result<String, Refusal> {
        match self.required(name)? {
            Value::String(text) => Ok(text),
            _ => Err(self.refuse(name, "must be a string")),
        }
    }

    fn list(&mut self, name: &str) -> Result<Vec<Value>, Refusal> {
        match self.required(name)? {
            Value::Array(list) if !list.is_empty() => Ok(list),
            _ => Err(self.refuse(name, "must be a list that is not empty")),
        }
    }

    /// Strings that are not empty, or none.
    fn strings(&mut self, name: &str) -> Result<Vec<String>, Refusal> {
        let list = match self.optional(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(self.refuse(name, "must be a list of strings")),
        };
        let text = |value: Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let list: Option<Vec<String>> = list.into_iter().map(text).collect();
        list.ok_or_else(|| self.refuse(name, "must be a list of strings that are not empty"))
    }

    fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        match self.optional(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.refuse(name, "must be true or false")),
        }
    }

    fn count(&mut self, name: &str) -> Result<Option<u64>, Refusal> {
        match self.optional(name) {
            None => Ok(None),
            Some(value) => {
                let count = whole(&value).and_then(|count| u64::try_from(count).ok());
                count.map(Some).ok_or_else(|| self.refuse(name, "must be a whole number of at least 0"))
            }
        }
    }

    /// A field that may hold nothing but what asks for nothing.
    fn neutral(&mut self, name: &str, neutral: &[Value], advice: &str) -> Result<(), Refusal> {
        match self.optional(name) {
            Some(value) if !neutral.contains(&value) => {
                Err(self.refuse(name, &format!("is not done by this server: {advice}")))
            }
            _ => Ok(()),
        }
    }

    fn schema(&mut self, name: &str) -> Result<Format, Refusal> {
        match self.required(name)? {
            schema @ (Value::Object(_) | Value::Bool(_)) => Ok(Format::JsonSchema(schema)),
            _ => Err(self.refuse(name, "must be a JSON schema: an object or a boolean")),
        }
    }

    fn format(&mut self, name: &str) -> Result<Format, Refusal> {
        let value = self.required(name)?;
        format(&format!("{}.{name}", self.path), value)
    }

    fn formats(&mut self, name: &str) -> Result<Vec<Format>, Refusal> {
        let list = self.list(name)?;
        list.into_iter().enumerate().map(|(at, value)| format(&format!("{}.{name}[{at}]", self.path), value)).collect()
    }

    fn repeated(&mut self, min: u32, max: Option<u32>) -> Result<Format, Refusal> {
        Ok(Format::Repeat { content: Box::new(self.format("content")?), min, max })
    }

    /// `min` and `max`, of which -1 is no bound.
    fn range(&mut self) -> Result<(u32, Option<u32>), Refusal> {
        let (min, max) = (self.required("min")?, self.required("max")?);
        let min = whole(&min).and_then(|min| u32::try_from(min).ok());
        let min = min.ok_or_else(|| self.refuse("min", "must be a whole number of at least 0"))?;
        let max = match whole(&max) {
            Some(-1) => None,
            Some(max) if max >= i128::from(min) && max <= i128::from(i32::MAX) => u32::try_from(max).ok(),
            _ => return Err(self.refuse("max", "must be -1 or a whole number that is not below `min`")),
        };
        Ok((min, max))
    }

    fn tag(&mut self) -> Result<Tag, Refusal> {
        let token = "must be a string: single tokens are not matched by this server";
        let begin = match self.required("begin")? {
            Value::String(begin) => begin,
            _ => return Err(self.refuse("begin", token)),
        };
        let ends = match self.required("end")? {
            Value::String(end) => vec![end],
            Value::Array(ends) if !ends.is_empty() => {
                let ends: Option<Vec<_>> = ends.iter().map(|end| end.as_str().map(str::to_owned)).collect();
                ends.ok_or_else(|| self.refuse("end", token))?
            }
            _ => return Err(self.refuse("end", token)),
        };
        Ok(Tag { begin, content: Box::new(self.format("content")?), ends })
    }

    fn tags(&mut self) -> Result<Vec<Tag>, Refusal> {
        let mut tags = Vec::new();
        for (at, value) in self.list("tags")?.into_iter().enumerate() {
            let mut tag = Self::new(&format!("{}.tags[{at}]", self.path), value)?;
            if let Some(kind) = tag.optional("type").filter(|kind| kind != "tag") {
                return Err(tag.refuse("type", &format!("must be \"tag\", got {kind}")));
            }
            tags.push(tag.tag()?);
            tag.finish()?;
        }
        Ok(tags)
    }

    fn triggered(&mut self) -> Result<Dispatch, Refusal> {
        let triggered = Dispatch {
            triggers: self.strings("triggers")?,
            tags: self.tags()?,
            excludes: self.strings("excludes")?,
            at_least_one: self.flag("at_least_one")?,
            stop_after_first: self.flag("stop_after_first")?,
        };
        checked(self, triggered)
    }

    /// Patterns, each with what follows it.
    fn dispatch(&mut self) -> Result<Dispatch, Refusal> {
        let (mut triggers, mut tags) = (Vec::new(), Vec::new());
        for (at, rule) in self.list("rules")?.into_iter().enumerate() {
            let Value::Array(rule) = rule else { return Err(self.refuse("rules", "must be a list of pairs")) };
            let Ok([Value::String(begin), content]) = <[Value; 2]>::try_from(rule) else {
                return Err(self.refuse("rules", "must be a list of pairs of a string and a format"));
            };
            if begin.is_empty() {
                return Err(self.refuse("rules", "must be a list of pairs of a string that is not empty and a format"));
            }
            let content = Box::new(format(&format!("{}.rules[{at}][1]", self.path), content)?);
            if !triggers.contains(&begin) {
                triggers.push(begin.clone());
            }
            tags.push(Tag { begin, content, ends: Vec::new() });
        }
        let stop_after_first = match self.optional("loop") {
            None | Some(Value::Bool(true)) => false,
            Some(Value::Bool(false)) => true,
            Some(_) => return Err(self.refuse("loop", "must be true or false")),
        };
        let excludes = self.strings("excludes")?;
        Ok(Dispatch { triggers, tags, excludes, at_least_one: false, stop_after_first })
    }

    fn separated(&mut self) -> Result<Format, Refusal> {
        Ok(Format::Separated {
            tags: self.tags()?,
            separator: self.string("separator")?,
            is_optional: !self.flag("at_least_one")?,
            is_alone: self.flag("stop_after_first")?,
        })
    }

    fn finish(&self) -> Result<(), Refusal> {
        match self.fields.iter().find(|(_, value)| !value.is_null()) {
            Some((name, _)) => Err(self.refuse(name, "is not known to this server: leave it out")),
            None => Ok(()),
        }
    }
}

/// A whole number, which JSON may spell as a fraction.
fn whole(value: &Value) -> Option<i128> {
    let spelled = || value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128);
    value.as_u64().map(i128::from).or(value.as_i64().map(i128::from)).or_else(spelled)
}

/// Each tag begins with one trigger, and each trigger begins a tag.
fn checked(object: &Object, dispatch: Dispatch) -> Result<Dispatch, Refusal> {
    for (at, tag) in dispatch.tags.iter().enumerate() {
        let triggers = dispatch.triggers.iter().filter(|trigger| tag.begin.starts_with(trigger.as_str())).count();
        if triggers != 1 {
            let reason = format!("must have one string that begins {:?} of tag {at}, got {triggers}", tag.begin);
            return Err(object.refuse("triggers", &reason));
        }
    }
    let is_used = |trigger: &&String| dispatch.tags.iter().any(|tag| tag.begin.starts_with(trigger.as_str()));
    match dispatch.triggers.iter().find(|trigger| !is_used(trigger)) {
        Some(unused) => Err(object.refuse("triggers", &format!("has {unused:?}, with which no tag begins"))),
        None => Ok(dispatch),
    }
}
