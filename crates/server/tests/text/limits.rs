//! Hostile chat templates: each ends in an error that says which limit it met, and the next conversation is rendered.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vllm_apple::text::{ChatInput, ChatRequest, ChatTemplate, TemplateLimit, TemplateRenderer, TextError, Tokenizer};

use crate::support::golden_dir;

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_vllm-apple"))
}

fn checkpoint() -> PathBuf {
    golden_dir().join("models/qwen2")
}

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_dir(&checkpoint()).unwrap())
}

fn renderer() -> TemplateRenderer {
    TemplateRenderer::start(program(), &checkpoint(), tokenizer(), None).unwrap()
}

fn hello() -> Vec<Value> {
    vec![json!({"role": "user", "content": "Hello!"})]
}

/// A template that works well, in this process.
fn expected() -> String {
    let template = ChatTemplate::from_dir(&checkpoint(), tokenizer(), None).unwrap();
    template.render(&ChatInput::new(&hello())).unwrap()
}

fn with_template(template: &str) -> ChatRequest {
    ChatRequest { template: Some(template.to_owned()), ..ChatRequest::new(&hello()) }
}

fn error_of(renderer: &TemplateRenderer, template: &str) -> TextError {
    let name = &template[..template.len().min(80)];
    match renderer.render(tokenizer(), &with_template(template)) {
        Ok(text) => panic!("{name}: rendered {} bytes", text.len()),
        Err(error) => error,
    }
}

/// What ends a hostile template.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Steps,
    Memory,
    Stack,
    Text,
    /// The template engine does not compile it.
    Syntax,
    /// The template engine fails, or has no such thing.
    Refused,
}

fn end(error: &TextError) -> Option<End> {
    Some(match error {
        TextError::TemplateLimit(TemplateLimit::Steps) => End::Steps,
        TextError::TemplateLimit(TemplateLimit::Memory) => End::Memory,
        TextError::TemplateLimit(TemplateLimit::Stack) => End::Stack,
        TextError::TemplateLimit(TemplateLimit::Text) => End::Text,
        TextError::TemplateSyntax { .. } => End::Syntax,
        TextError::Template(_) => End::Refused,
        _ => return None,
    })
}

#[test]
fn hostile_templates_end_in_an_error_and_harm_nobody_else() {
    let nested =
        |depth: usize| format!("{}x{}", "{% for i in range(99999) %}".repeat(depth), "{% endfor %}".repeat(depth));
    let doubling = |step: &str| {
        format!("{{% set ns = namespace(s='0123456789') %}}{{% for i in range(60) %}}{step}{{% endfor %}}")
    };
    let chain = |link: &str, times: usize| format!("{{{{ {}messages }}}}", link.repeat(times));
    let cases: &[(&str, String, End)] = &[
        ("nested ranges", nested(4), End::Steps),
        ("nested ranges that write nothing", nested(3).replace('x', ""), End::Steps),
        ("a long prompt", nested(1).replace('x', &"x".repeat(5000)), End::Text),
        ("doubling by ~", doubling("{% set ns.s = ns.s ~ ns.s %}") + "{{ ns.s }}", End::Memory),
        ("doubling by +", doubling("{% set ns.s = ns.s + ns.s %}"), End::Memory),
        ("doubling by a block", doubling("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"), End::Memory),
        (
            "doubling by a macro",
            format!("{{% macro twice(s) %}}{{{{ s }}}}{{{{ s }}}}{{% endmacro %}}{}", doubling("{% set ns.s = twice(ns.s) %}")),
            End::Memory,
        ),
        ("doubling by join", doubling("{% set ns.s = [ns.s, ns.s] | join %}"), End::Memory),
        ("doubling by format", doubling("{% set ns.s = '%s%s' | format(ns.s, ns.s) %}"), End::Memory),
        ("replace that grows", doubling("{% set ns.s = ns.s | replace('0', '00000000000') %}"), End::Memory),
        ("replace method that grows", doubling("{% set ns.s = ns.s.replace('0', '00000000000') %}"), End::Memory),
        ("a text times a number", "{{ 'x' * 100000000000 }}".to_owned(), End::Refused),
        ("slice", "{{ messages | slice(100000000000) | list }}".to_owned(), End::Memory),
        ("batch", "{{ messages | batch(100000000000, 'x') | list }}".to_owned(), End::Memory),
        ("center", "{{ 'x' | center(100000000000) }}".to_owned(), End::Syntax),
        ("a wide format", "{{ '%99999999999d' | format(3) }}".to_owned(), End::Refused),
        ("indent", "{{ 'x' | indent(100000000000) }}".to_owned(), End::Refused),
        ("a long range", "{{ range(100000000000) | list }}".to_owned(), End::Refused),
        ("lists of ranges", doubling("{% set ns.s = [range(99999) | list, ns.s, range(99999) | list] | list %}"), End::Memory),
        ("a nested list", "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}".to_owned(), End::Stack),
        ("- - -", chain("- ", 400_000), End::Stack),
        ("not not not", chain("not ", 400_000), End::Stack),
        ("attributes", format!("{{{{ messages{} }}}}", ".a".repeat(400_000)), End::Stack),
        ("items", format!("{{{{ messages{} }}}}", "[0]".repeat(400_000)), End::Stack),
        ("filters", format!("{{{{ messages{} }}}}", "|list".repeat(400_000)), End::Stack),
        ("sums", format!("{{{{ 1{} }}}}", "+x".repeat(400_000)), End::Stack),
        ("parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)), End::Syntax),
        ("brackets", format!("{{{{ {}{} }}}}", "[".repeat(100_000), "]".repeat(100_000)), End::Syntax),
        ("blocks", format!("{}{}", "{% if 1 %}".repeat(100_000), "{% endif %}".repeat(100_000)), End::Syntax),
        ("a macro that calls itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(), End::Refused),
        ("a loop that calls itself", "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}".to_owned(), End::Refused),
        ("raise_exception", "{{ raise_exception('I refuse') }}".to_owned(), End::Refused),
    ];
    let renderer = renderer();
    let expected = expected();
    let mut wrong = Vec::new();
    for (name, template, expected_end) in cases {
        let start = Instant::now();
        let error = error_of(&renderer, template);
        let took = start.elapsed();
        println!("{name}: {took:.2?}: {}", error.to_string().chars().take(200).collect::<String>());
        // Ten seconds to compile, ten to render: no template takes longer, whatever the machine.
        assert!(took < Duration::from_secs(25), "{name}: {took:?}");
        if end(&error) != Some(*expected_end) {
            wrong.push(format!(
                "{name}: {expected_end:?} expected: {}",
                error.to_string().chars().take(300).collect::<String>()
            ));
        }
        assert_eq!(renderer.render(tokenizer(), &ChatRequest::new(&hello())).unwrap(), expected, "after {name}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
