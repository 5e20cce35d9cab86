//! Calls with literal arguments, in Python: to JSON.

use serde_json::{Map, Number, Value};

/// Values inside values at most: each takes stack.
const MAX_DEPTH: usize = 64;

/// Where a call ends that `text` begins with: after the parenthesis that closes it.
pub fn end_of_call(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => {
                // What closes more than was opened is no call.
                let Some(left) = depth.checked_sub(1) else { return Some(at + 1) };
                depth = left;
                if depth == 0 && byte == b')' {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The name and the arguments, as a JSON object, of `name(key=value, …)`.
pub fn call(text: &str) -> Option<(String, String)> {
    let (name, rest) = text.split_once('(')?;
    let mut reader = Reader(rest);
    let mut arguments = Map::new();
    loop {
        reader.skip();
        if reader.eat(')') {
            break;
        }
        let key = reader.word()?;
        reader.skip();
        reader.eat('=').then_some(())?;
        arguments.insert(key, reader.value(0)?);
        reader.skip();
        if !reader.eat(',') {
            reader.eat(')').then_some(())?;
            break;
        }
    }
    reader.0.is_empty().then(|| (name.trim().to_owned(), spaced(&Value::Object(arguments))))
}

/// JSON with spaces after `,` and `:`, as Python writes it.
fn spaced(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| format!("{}: {}", Value::from(key.as_str()), spaced(value)));
            format!("{{{}}}", list(fields.collect()))
        }
        Value::Array(items) => format!("[{}]", list(items.iter().map(spaced).collect())),
        value => value.to_string(),
    }
}

struct Reader<'t>(&'t str);

impl Reader<'_> {
    fn skip(&mut self) {
        self.0 = self.0.trim_start();
    }

    fn eat(&mut self, c: char) -> bool {
        match self.0.strip_prefix(c) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> Option<String> {
        let end = self.0.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then(|| word.to_owned())
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip();
        match self.0.chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Value::String),
            '[' => self.list('[', ']', depth),
            '(' => self.list('(', ')', depth),
            '{' => self.object(depth),
            c if c.is_ascii_digit() || "+-.".contains(c) => self.number(),
            _ => match self.word()?.as_str() {
                "True" | "true" => Some(Value::Bool(true)),
                "False" | "false" => Some(Value::Bool(false)),
                "None" | "null" => Some(Value::Null),
                _ => None,
            },
        }
    }

    fn number(&mut self) -> Option<Value> {
        let end = self.0.find(|c: char| !c.is_ascii_alphanumeric() && !"+-._".contains(c)).unwrap_or(self.0.len());
        let (text, rest) = self.0.split_at(end);
        self.0 = rest;
        let text = text.replace('_', "");
        let integer = text.parse::<i64>().ok().map(Number::from).or_else(|| text.parse::<u64>().ok().map(Number::from));
        integer.or_else(|| Number::from_f64(text.parse().ok()?)).map(Value::Number)
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Option<Value> {
        self.eat(open);
        let mut items = Vec::new();
        loop {
            self.skip();
            if self.eat(close) {
                return Some(Value::Array(items));
            }
            items.push(self.value(depth + 1)?);
            self.skip();
            if !self.eat(',') {
                return self.eat(close).then_some(Value::Array(items));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.eat('{');
        let mut fields = Map::new();
        loop {
            self.skip();
            if self.eat('}') {
                return Some(Value::Object(fields));
            }
            let Value::String(key) = self.value(depth + 1)? else { return None };
            self.skip();
            self.eat(':').then_some(())?;
            fields.insert(key, self.value(depth + 1)?);
            self.skip();
            if !self.eat(',') {
                return self.eat('}').then_some(Value::Object(fields));
            }
        }
    }

    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.0.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.0 = &self.0[at + 1..];
                    return Some(text);
                }
                '\\' => {
                    let (_, escape) = chars.next()?;
                    let mut hex = |digits: usize| {
                        let code: String = (0..digits).filter_map(|_| chars.next().map(|(_, c)| c)).collect();
                        char::from_u32(u32::from_str_radix(&code, 16).ok()?)
                    };
                    match escape {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        'b' => text.push('\u{8}'),
                        'f' => text.push('\u{c}'),
                        '0' => text.push('\0'),
                        '\n' => {}
                        'x' => text.push(hex(2)?),
                        'u' => text.push(hex(4)?),
                        'U' => text.push(hex(8)?),
                        '\\' | '\'' | '"' => text.push(escape),
                        // Python keeps what is no escape.
                        other => text.extend(['\\', other]),
                    }
                }
                c => text.push(c),
            }
        }
        None
    }
}
