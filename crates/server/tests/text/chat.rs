//! Chat templates against what transformers rendered, and Mistral's format against what mistral_common encoded.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use vllm_apple::text::{ChatInput, ChatTemplate, ContentFormat, TextError, Tokenizer};

use crate::support::golden_dir;

#[derive(Deserialize)]
struct Golden {
    templates: HashMap<String, Template>,
    conversations: HashMap<String, Conversation>,
    cases: Vec<Case>,
    snippets: Vec<Snippet>,
    mistral_common: Vec<Encoded>,
}

#[derive(Deserialize)]
pub struct Template {
    checkpoint: Option<String>,
    pub special_tokens: Map<String, Value>,
    pub source: String,
}

#[derive(Deserialize)]
pub struct Conversation {
    pub messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(default)]
    pub kwargs: Map<String, Value>,
}

/// A rendering: either a text, or an error that the template raised or that the implementation worded.
#[derive(Deserialize)]
pub struct Outcome {
    pub text: Option<String>,
    pub error: Option<String>,
    #[serde(default)]
    is_raised_by_template: bool,
}

#[derive(Deserialize)]
pub struct Case {
    pub template: String,
    pub conversation: String,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
    ids: Option<Vec<u32>>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Deserialize)]
struct Snippet {
    source: String,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Deserialize)]
struct Encoded {
    conversation: String,
    ids: Vec<u32>,
}

impl Conversation {
    pub fn input(&self) -> ChatInput<'_> {
        let kwargs = self.kwargs.clone();
        ChatInput { messages: &self.messages, tools: self.tools.as_deref(), kwargs, ..ChatInput::default() }
    }
}

fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(golden_dir().join("chat.json")).unwrap()).unwrap()
}

fn model(name: &str) -> (std::path::PathBuf, Tokenizer) {
    let dir = golden_dir().join("models").join(name);
    let tokenizer = Tokenizer::from_dir(&dir).unwrap();
    (dir, tokenizer)
}

/// A template given as text, with special tokens of our choice.
pub fn template_of(source: &str, special_tokens: &Map<String, Value>) -> Result<ChatTemplate, TextError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(golden_dir().join("models/llama/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), json!(special_tokens).to_string()).unwrap();
    ChatTemplate::from_dir(dir.path(), &Tokenizer::from_dir(dir.path()).unwrap(), Some(source))
}

fn special_tokens() -> Map<String, Value> {
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
    tokens.as_object().unwrap().clone()
}

/// Whether a rendering is what was recorded. The wording of errors counts only where the template chose it.
pub fn difference(ours: &Result<String, TextError>, expected: &Outcome) -> Option<String> {
    let same = match (ours, &expected.text, &expected.error) {
        (Ok(ours), Some(text), _) => ours == text,
        (Err(TextError::Template(ours)), _, Some(error)) => !expected.is_raised_by_template || ours == error,
        (Err(_), _, Some(_)) => !expected.is_raised_by_template,
        _ => false,
    };
    (!same).then(|| format!("{ours:?}\nexpected {:?} {:?}", expected.text, expected.error))
}

#[test]
fn renders_like_transformers() {
    let golden = golden();
    for case in &golden.cases {
        let recorded = &golden.templates[&case.template];
        let template = match &recorded.checkpoint {
            Some(name) => {
                let (dir, tokenizer) = model(name);
                ChatTemplate::from_dir(&dir, &tokenizer, None)
            }
            None => template_of(&recorded.source, &recorded.special_tokens),
        }
        .unwrap();
        let mut input = golden.conversations[&case.conversation].input();
        input.add_generation_prompt = case.add_generation_prompt;
        input.continue_final_message = case.continue_final_message;
        let difference = difference(&template.render(&input), &case.outcome);
        assert!(difference.is_none(), "{}, {}: {}", case.template, case.conversation, difference.unwrap());
    }
}

#[test]
fn prompts_have_the_ids_of_the_rendered_text() {
    let golden = golden();
    let mut compared = 0;
    for case in golden.cases.iter().filter(|case| case.ids.is_some()) {
        let (dir, tokenizer) = model(golden.templates[&case.template].checkpoint.as_ref().unwrap());
        let template = ChatTemplate::from_dir(&dir, &tokenizer, None).unwrap();
        let mut input = golden.conversations[&case.conversation].input();
        input.add_generation_prompt = case.add_generation_prompt;
        let ids = template.prompt(&tokenizer, &input).unwrap();
        assert_eq!(&ids, case.ids.as_ref().unwrap(), "{}, {}", case.template, case.conversation);
        compared += 1;
    }
    assert!(compared > 40);
}

#[test]
fn tekken_prompts_are_those_of_mistral_common() {
    let golden = golden();
    let (dir, tokenizer) = model("mistral-tekken");
    let template = ChatTemplate::from_dir(&dir, &tokenizer, None).unwrap();
    for case in &golden.mistral_common {
        let ids = template.prompt(&tokenizer, &golden.conversations[&case.conversation].input()).unwrap();
        assert_eq!(ids, case.ids, "{}", case.conversation);
    }
}

/// What the template engine does otherwise than Jinja2, one by one: neither more nor fewer.
const KNOWN_DIFFERENCES: [&str; 3] = [
    // No printf-style `%` on strings; the `format` filter does the same.
    "{{ '%s has %d' % ('x', 3) }}",
    // Methods are no attributes.
    "{{ {'a': 1} | attr('keys') is defined }}",
    // `truncate` takes named arguments only, and there is no `center`.
    "{{ 'long text here' | truncate(8, true, '…') }} {{ 'x' | center(5) }}|",
];

#[test]
fn snippets_differ_only_where_known() {
    let golden = golden();
    let conversation = &golden.conversations["single"];
    let mut different = Vec::new();
    for snippet in &golden.snippets {
        let template = template_of(&snippet.source, &special_tokens());
        let ours = template.and_then(|template| template.render(&conversation.input()));
        if let Some(difference) = difference(&ours, &snippet.outcome) {
            println!("{}\n{difference}\n", snippet.source);
            different.push(snippet.source.as_str());
        }
    }
    assert_eq!(different, KNOWN_DIFFERENCES);
}

fn render(source: &str, messages: Value) -> Result<String, TextError> {
    template_of(source, &special_tokens())?.render(&ChatInput::new(messages.as_array().unwrap()))
}

/// As transformers: a field without a value is no field.
#[test]
fn fields_of_no_value_are_not_there() {
    let messages = json!([{"role": "assistant", "content": null, "tool_calls": [{"id": null}]}]);
    let source =
        "{% if messages[0].content is defined %}{{ messages[0].content }}{% endif %}{{ messages[0].tool_calls }}";
    assert_eq!(render(source, messages).unwrap(), "[{'id': None}]");
}

#[test]
fn a_template_that_does_not_compile_is_an_error_at_start() {
    let error = render("{% if %}", json!([])).unwrap_err();
    assert!(matches!(error, TextError::TemplateSyntax { .. }), "{error}");
}

#[test]
fn an_engine_failure_is_an_error_of_the_request() {
    // The reverse of an empty list panics inside minijinja 3.0.5.
    let error = render("{% for m in messages[::-1] %}{{ m }}{% endfor %}", json!([])).unwrap_err();
    assert!(matches!(error, TextError::Template(_)), "{error}");
}

#[test]
fn named_templates_are_chosen_by_tools() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(golden_dir().join("models/llama/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let templates = json!([
        {"name": "default", "template": "plain {{ eos_token }}"},
        {"name": "tool_use", "template": "with {{ tools | length }} tools"},
    ]);
    let config = json!({"eos_token": {"content": "</s>"}, "chat_template": templates});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    let template = ChatTemplate::from_dir(dir.path(), &tokenizer, None).unwrap();
    let input = ChatInput::default();
    assert_eq!(template.render(&input).unwrap(), "plain </s>");
    let tools = [json!({})];
    assert_eq!(template.render(&ChatInput { tools: Some(&tools), ..input.clone() }).unwrap(), "with 1 tools");
    // A file of its own wins over the configuration.
    std::fs::write(dir.path().join("chat_template.jinja"), "from the file").unwrap();
    let template = ChatTemplate::from_dir(dir.path(), &tokenizer, None).unwrap();
    assert_eq!(template.render(&input).unwrap(), "from the file");
    assert_eq!(template.render(&ChatInput { tools: Some(&tools), ..input.clone() }).unwrap(), "from the file");
    // And may have others beside it.
    std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
    let beside = dir.path().join("additional_chat_templates/tool_use.jinja");
    std::fs::write(beside, "{{ tools | length }} from another").unwrap();
    let template = ChatTemplate::from_dir(dir.path(), &tokenizer, None).unwrap();
    assert_eq!(template.render(&input).unwrap(), "from the file");
    assert_eq!(template.render(&ChatInput { tools: Some(&tools), ..input }).unwrap(), "1 from another");
}

#[test]
fn a_checkpoint_without_template_refuses_to_chat() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(golden_dir().join("models/llama/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    let template = ChatTemplate::from_dir(dir.path(), &tokenizer, None).unwrap();
    let error = template.prompt(&tokenizer, &ChatInput::default()).unwrap_err();
    assert!(error.to_string().contains(Path::to_str(dir.path()).unwrap()), "{error}");
}

#[test]
fn content_parts_are_joined_for_templates_of_strings() {
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    let input = ChatInput::new(parts.as_array().unwrap());
    let (_, tokenizer) = model("llama");
    let check = |source: &str, format: ContentFormat, text: &str| {
        let template = template_of(source, &special_tokens()).unwrap();
        assert_eq!(template.content_format(), format, "{source}");
        let expected = tokenizer.encode(text, false).unwrap();
        assert_eq!(template.prompt(&tokenizer, &input).unwrap(), expected, "{source}");
    };
    check("{{ messages[0].content }}!", ContentFormat::String, "a\nb!");
    let loops = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
    check(loops, ContentFormat::Parts, "ab");
    // Of several parts it would write the first.
    let first = "{% set c = messages[0].content %}{{ c if c is string else c[0].text }}";
    check(first, ContentFormat::String, "a\nb");
}

#[test]
fn a_string_is_a_part_for_templates_of_parts_alone() {
    let loops = "{% for p in messages[0].content if p.type == 'text' %}{{ p.text }};{% endfor %}";
    let refuses = "{% for p in messages[0].content %}{{ p['text'] + ';' }}{% endfor %}";
    for source in [loops, refuses] {
        let template = template_of(source, &special_tokens()).unwrap();
        assert_eq!(template.content_format(), ContentFormat::PartsAlone, "{source}");
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        for (content, text) in [(json!("ab"), "ab;"), (parts, "a;b;"), (json!(null), "")] {
            let message = json!({"role": "user", "content": content});
            assert_eq!(adapted(source, message), prompt(text), "{source}");
        }
    }
}

/// What a template writes of one message that came through the API.
fn adapted(source: &str, message: Value) -> Vec<u32> {
    let (_, tokenizer) = model("llama");
    let template = template_of(source, &special_tokens()).unwrap();
    template.prompt(&tokenizer, &ChatInput::new(&[message])).unwrap()
}

/// The values expected below, as a prompt.
fn prompt(text: &str) -> Vec<u32> {
    model("llama").1.encode(text, false).unwrap()
}

#[test]
fn tool_arguments_become_objects() {
    let written = |function: Value| {
        let call = json!({"type": "function", "function": function});
        let source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
        adapted(source, json!({"role": "assistant", "content": null, "tool_calls": [call]}))
    };
    assert_eq!(written(json!({"name": "f", "arguments": "{\"x\": [1, 2.0]}"})), prompt("{\"x\": [1, 2.0]}"));
    assert_eq!(written(json!({"name": "f", "arguments": {"x": 1}})), prompt("{\"x\": 1}"));
    for none in [json!({"name": "f"}), json!({"name": "f", "arguments": ""}), json!({"name": "f", "arguments": null})] {
        assert_eq!(written(none), prompt("{}"));
    }
    // An answer that was cut off, and what a model should not have written.
    for other in [json!("{\"x\": "), json!("[1]"), json!("null"), json!([1])] {
        assert_eq!(written(json!({"name": "f", "arguments": other})), prompt("{}"));
    }
}

/// As vLLM has it: templates of strings add texts to one another, and ask for calls by the name of their list.
#[test]
fn what_a_message_lacks_is_empty() {
    let source = "{{ messages[0].content + '|' }}{{ messages[0].tool_calls is defined }}";
    assert_eq!(adapted(source, json!({"role": "assistant", "tool_calls": []})), prompt("|False"));
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]});
    assert_eq!(adapted(source, calls), prompt("|True"));
}

/// Templates that take a user's parts seldom take a tool's.
#[test]
fn a_tools_result_is_one_text() {
    let loops = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    assert_eq!(adapted(loops, json!({"role": "tool", "content": parts})), prompt("a\nb"));
    assert_eq!(adapted(loops, json!({"role": "user", "content": parts})), prompt("ab"));
}

/// A template that takes no string is asked for parts, if it makes text of them.
#[test]
fn later_system_messages_are_joined_to_the_first_where_the_template_does_not_take_them() {
    let message = |role: &str, content: Value| json!({"role": role, "content": content});
    let conversation = [
        message("system", "a".into()),
        message("user", "b".into()),
        message("developer", json!([{"type": "text", "text": "c"}])),
        message("user", "d".into()),
    ];
    let (_, tokenizer) = model("llama");
    let check = |source: &str, messages: &[Value], expected: &str| {
        let template = template_of(source, &special_tokens()).unwrap();
        let ids = template.prompt(&tokenizer, &ChatInput::new(messages)).unwrap();
        assert_eq!(ids, prompt(expected), "{source}");
    };
    let each = "{% for m in messages %}{{ m.role }} {{ m.content }};{% endfor %}";
    check(each, &conversation, "system a;user b;system c;user d;");
    let first_alone = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{{ m.role }} {{ m.content }};{% endfor %}";
    check(first_alone, &conversation, "system a\n\nc;user b;user d;");
    check(first_alone, &conversation[1..], "system c;user b;user d;");
    let loses = "{% for m in messages %}{% if m.role == 'user' or loop.first %}{{ m.role }} {{ m.content }};{% endif %}{% endfor %}";
    check(loses, &conversation, "system a\n\nc;user b;user d;");
    let of_parts = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %};{% endfor %}";
    check(of_parts, &conversation, "a\n\nc;b;d;");
    let knows_developers =
        "{% for m in messages %}{{ m.role }}{% if m.role == 'developer' %}!{% endif %} {{ m.content }};{% endfor %}";
    check(knows_developers, &conversation, "system a;user b;developer! c;user d;");
    // Both roles at the beginning only, the first message among them.
    let either_first = "{% for m in messages %}{% if m.role == 'user' or loop.first and m.role in ['system', 'developer'] %}{{ m.role }} {{ m.content }};{% endif %}{% endfor %}";
    check(either_first, &conversation, "system a\n\nc;user b;user d;");
    let developer_first = [message("developer", "x".into()), conversation[0].clone(), conversation[1].clone()];
    check(either_first, &developer_first, "developer x\n\na;user b;");
    // A developer's anywhere, and the system's at the beginning.
    let developer_anywhere = "{% for m in messages %}{% if m.role in ['user', 'developer'] or loop.first %}{{ m.role }} {{ m.content }};{% endif %}{% endfor %}";
    check(developer_anywhere, &conversation, "system a;user b;developer c;user d;");
    check(developer_anywhere, &developer_first, "system a;developer x;user b;");
}

/// As gpt-oss' own, as far as it matters here.
const HARMONY: &str = "{% if tools %}{% for t in tools %}{{ '// ' + t.function.description + '\n' + t.function.name }}{% for name, p in t.function.parameters.properties.items() %} {{ name }}\
                       {% if p.default is defined %}{% if p.enum %}{{ ' default: ' + p.default }}{% else %}{{ ' default: ' + p.default | tojson }}{% endif %}{% endif %}{% endfor %}\n{% endfor %}{% endif %}\
                       {% set last = namespace(name='') %}{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %}\
                       <|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|><|start|>assistant to={{ m.tool_calls[0].function.name }}<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>\
                       {% set last.name = m.tool_calls[0].function.name %}{% elif m.role == 'tool' %}<|start|>{{ last.name }}<|message|>{{ m.content }}<|end|>\
                       {% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}";

#[test]
fn a_turn_of_gpt_oss_says_all_that_was_said() {
    let call =
        |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": id});
    let user = json!({"role": "user", "content": "Hi!"});
    let written = |messages: &[Value]| {
        let template = template_of(HARMONY, &special_tokens()).unwrap();
        template.prompt(&model("llama").1, &ChatInput::new(messages)).unwrap()
    };
    let turn = json!({"role": "assistant", "content": "I look.", "reasoning": "Hm.", "tool_calls": [call("a", "look"), call("b", "find")]});
    let thought = "<|start|>user<|message|>Hi!<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>";
    let said = "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>";
    let calls = "<|start|>assistant to=look<|message|>{}<|call|><|start|>look<|message|>a<|end|>\
                 <|start|>assistant<|channel|>analysis<|message|><|end|><|start|>assistant to=find<|message|>{}<|call|><|start|>find<|message|>b<|end|>";
    let asked = [user.clone(), turn, result("b"), result("a")];
    assert_eq!(written(&asked), prompt(&format!("{thought}{said}{calls}")));
    // A template that has room for both gets both.
    let both = HARMONY.replace(
        "{% if m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %}",
        "{{ m.content }}{{ m.thinking }}",
    );
    let template = template_of(&both, &special_tokens()).unwrap();
    let turn =
        json!({"role": "assistant", "content": "I look.", "reasoning": "Hm.", "tool_calls": [call("a", "look")]});
    let ids = template.prompt(&model("llama").1, &ChatInput::new(&[turn])).unwrap();
    let expected = "I look.Hm.<|start|>assistant<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=look<|message|>{}<|call|>";
    assert_eq!(ids, prompt(expected));
}

#[test]
fn tools_have_what_templates_ask_for() {
    let (_, tokenizer) = model("llama");
    let written = |source: &str, tools: &[Value]| {
        let template = template_of(source, &special_tokens()).unwrap();
        template.prompt(&tokenizer, &ChatInput { tools: Some(tools), ..ChatInput::default() }).unwrap()
    };
    let each = "{{ tools | tojson }}";
    let (bare, full) = (
        json!({"function": {"name": "f"}}),
        json!({"type": "function", "x": 1, "function": {"parameters": {}, "name": "f"}}),
    );
    let expected = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}, {"type": "function", "x": 1, "function": {"parameters": {}, "name": "f"}}]"#;
    assert_eq!(written(each, &[bare.clone(), full]), prompt(expected));
    let enumerated =
        json!({"n": {"enum": [1, 2], "default": 1}, "s": {"enum": ["a"], "default": "a"}, "f": {"default": 2}});
    let tool = json!({"function": {"name": "g", "description": null, "parameters": {"properties": enumerated}}});
    assert_eq!(written(HARMONY, &[bare, tool]), prompt("// \nf// \ng n default: 1 s default: a f default: 2"));
}

#[test]
fn a_template_that_refuses_strings_gets_parts_that_it_can_write() {
    let format = |rest: &str| {
        let refuses = "{% if messages[0].content is string %}{{ raise_exception('no') }}{% endif %}";
        template_of(&format!("{refuses}{rest}"), &special_tokens()).unwrap().content_format()
    };
    assert_eq!(format("{% for p in messages[0].content %}{{ p.text }}{% endfor %}"), ContentFormat::PartsAlone);
    assert_eq!(format("{{ messages[0].content }}"), ContentFormat::String, "it writes them as Python does");
    assert_eq!(format("nothing"), ContentFormat::String, "it leaves them out");
}

#[test]
fn reasoning_is_found_under_the_name_that_has_some() {
    let messages = json!([{"role": "assistant", "reasoning_content": null, "thinking": "x", "content": ""}]);
    let rendered = render("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}", messages);
    assert_eq!(rendered.unwrap(), "x|x");
    let source = "{{ messages[0].reasoning }}|{{ messages[0].reasoning_content }}";
    for name in ["reasoning", "reasoning_content", "thinking"] {
        let message = json!({"role": "assistant", "content": "", "reasoning_content": null, name: "x"});
        assert_eq!(adapted(source, message), prompt("x|x"), "{name}");
    }
}

#[test]
fn a_template_file_that_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("chat_template.jinja")).unwrap();
    let error = ChatTemplate::from_dir(dir.path(), &model("llama").1, None).unwrap_err();
    assert!(matches!(error, TextError::Read { .. }), "{error}");
}
