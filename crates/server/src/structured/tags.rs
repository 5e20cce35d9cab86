//! Forms inside free text, as vLLM's structural tags: a trigger, and then what must follow it. Written as a grammar of llguidance.

use serde_json::{Value, json};

use super::with_whitespace;

/// Where `trigger` stands in the text, `begin` (which starts with it), JSON of `schema`, and `end` follow.
#[derive(Debug, Clone, PartialEq)]
pub struct Tag {
    /// What starts it.
    pub trigger: String,
    /// What stands before the JSON.
    pub begin: String,
    /// The JSON.
    pub schema: Value,
    /// What stands after it.
    pub end: String,
}

/// The grammar: text up to the first trigger, its tag, text up to the next.
pub fn lark(tags: &[Tag]) -> String {
    let options: Vec<_> = (0..tags.len()).map(|i| format!("tag_{i}")).collect();
    let mut lark = format!(
        "%llguidance {{}}\nstart: ({})* tag_end\ntag_end: TAG_TEXT\nTAG_TEXT: /(.|\\n)*/\n",
        options.join(" | ")
    );
    for (i, Tag { trigger, begin, schema, end }) in tags.iter().enumerate() {
        let quoted = |text: &str| if text.is_empty() { String::new() } else { json!(text).to_string() };
        let rest = quoted(&begin[trigger.len().min(begin.len())..]);
        let json = with_whitespace(schema.clone(), None);
        lark.push_str(&format!(
            "tag_{i}_trigger[lazy]: TAG_TEXT {}\ntag_{i}: tag_{i}_trigger {rest} %json {json} {}\n",
            quoted(trigger),
            quoted(end)
        ));
    }
    lark
}
