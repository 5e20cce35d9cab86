//! Python's methods and filters in templates, where the template engine lacks them or has other ways.

use serde_json::json;
use vllm_apple::text::{ChatInput, ChatTemplate, TextError};

use crate::support::{byte_level, tokenizer_of};

/// The template over one message with this content, `c`.
fn render(source: &str, content: &str) -> Result<String, TextError> {
    let tokenizer = tokenizer_of(&[("tokenizer.json", &byte_level(&["a"]))]).unwrap();
    let source = format!("{{% set c = messages[0].content %}}{source}");
    let template = ChatTemplate::from_dir(tempfile::tempdir().unwrap().path(), &tokenizer, Some(&source))?;
    template.render(&ChatInput::new(&[json!({"role": "user", "content": content})]))
}

#[test]
fn strings_have_pythons_methods() {
    let cases = [
        ("{{ c.strip() }}", "\u{1c} a \u{1f}", "a"),
        ("{{ c.lstrip() }}|", "\u{1c} a \u{1f}", "a \u{1f}|"),
        ("{{ c.rstrip() }}", "\u{1c} a \u{1f}", "\u{1c} a"),
        ("{{ c.strip('xy') }}", "xyaxbyx", "axb"),
        ("{{ c.splitlines() | join('|') }}", "a\u{2028}b\u{1c}c\r\nd\u{85}e\n", "a|b|c|d|e"),
        ("{{ c.splitlines(keepends=true) | join('|') }}", "a\r\nb\n", "a\r\n|b\n"),
        ("{{ c.removeprefix('ab') }}", "abab", "ab"),
        ("{{ c.removeprefix('x') }}", "abab", "abab"),
        ("{{ c.removesuffix('ab') }}", "xabab", "xab"),
        ("{{ c.removesuffix('x') }}", "abab", "abab"),
        ("{{ c.partition('=') | join('|') }}", "a=b=c", "a|=|b=c"),
        ("{{ c.partition('=') | join('|') }}", "abc", "abc||"),
        ("{{ c.partition('=') | join('|') }}", "=", "|=|"),
        ("{{ c.rpartition('=') | join('|') }}", "a=b=c", "a=b|=|c"),
        ("{{ c.rpartition('=') | join('|') }}", "abc", "||abc"),
        ("{{ c.rpartition('=') | join('|') }}", "=", "|=|"),
        ("{{ c.index('x') }}", "häx", "2"),
    ];
    for (source, content, expected) in cases {
        assert_eq!(render(source, content).unwrap(), expected, "{source} of {content:?}");
    }
    assert!(render("{{ c.index('x') }}", "abc").unwrap_err().to_string().contains("substring not found"));
    for method in ["casefold", "swapcase", "zfill", "ljust", "rjust", "center"] {
        let error = render(&format!("{{{{ c.{method}() }}}}"), "a").unwrap_err().to_string();
        assert!(error.contains(method) && error.contains("not supported"), "{error}");
    }
}

#[test]
fn filters_have_pythons_ways() {
    let cases = [
        ("{{ c | indent('> ') }}", "a\nb", "a\n> b"),
        ("{{ c | indent(2, true) }}", "\na", "  \n  a"),
        ("{{ c | indent(2) }}", "a\n\nb", "a\n\n  b"),
        ("{{ c | indent(2, blank=true) }}", "a\n\nb", "a\n  \n  b"),
        ("{{ [c] | tojson(indent=none) }}", "a", "[\"a\"]"),
        ("{{ [c] | tojson(false, none) }}", "a", "[\"a\"]"),
        ("{{ [1e308 * 10, -1e308 * 10] | tojson }}", "", "[Infinity, -Infinity]"),
        ("{{ nothing | length }}", "", "0"),
    ];
    for (source, content, expected) in cases {
        assert_eq!(render(source, content).unwrap(), expected, "{source} of {content:?}");
    }
    assert!(render("{{ 5 | length }}", "").unwrap_err().to_string().contains("has no length"));
}

#[test]
fn what_is_undefined_is_an_empty_sequence() {
    let source = "{{ x is sequence }}|{{ x | first }}|{{ x | last }}|{% for k, v in x | items %}{{ k }}{% endfor %}|{{ x | first is defined }}";
    assert_eq!(render(source, "").unwrap(), "True||||False");
    let source = "{{ c is sequence }}|{{ c | first }}|{{ c | last }}|{% for k, v in {'a': c} | items %}{{ k }}{{ v }}{% endfor %}";
    assert_eq!(render(source, "xyz").unwrap(), "True|x|z|axyz");
    assert!(render("{{ none | items }}", "").is_err() && render("{{ 1 | first }}", "").is_err());
}
