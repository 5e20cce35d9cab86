//! Hostile chat templates: each ends in an error that says which limit it met, and the next conversation is rendered.

use std::path::{Path, PathBuf};
use std::process::Command;
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

fn shown(error: &TextError) -> String {
    error.to_string().chars().take(300).collect()
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
        ("center", "{{ 'x' | center(100000000000) }}".to_owned(), End::Refused),
        ("a wide format", "{{ '%99999999999d' | format(3) }}".to_owned(), End::Memory),
        ("a long range", "{{ range(100000000000) | list }}".to_owned(), End::Refused),
        ("lists of ranges", "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x, range(99999) | list] %}{% endfor %}".to_owned(), End::Memory),
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
    // Other tests compute at the same time: the clock must not be faster than the limits that are tried here.
    let renderer = renderer().with_time_limit(Duration::from_secs(60));
    let expected = expected();
    let mut wrong = Vec::new();
    for (name, template, expected_end) in cases {
        let start = Instant::now();
        let rendered = renderer.render(tokenizer(), &with_template(template));
        let took = start.elapsed();
        // To compile and to render.
        assert!(took < Duration::from_secs(125), "{name}: {took:?}");
        match rendered {
            Err(error) => {
                println!("{name}: {took:.2?}: {}", shown(&error));
                if end(&error) != Some(*expected_end) {
                    wrong.push(format!("{name}: {expected_end:?} expected: {}", shown(&error)));
                }
            }
            Ok(text) => wrong.push(format!("{name}: rendered {} bytes", text.len())),
        }
        assert_eq!(renderer.render(tokenizer(), &ChatRequest::new(&hello())).unwrap(), expected, "after {name}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn prompts_are_those_of_this_process() {
    for model in ["qwen2", "mistral-tekken"] {
        let dir = golden_dir().join("models").join(model);
        let tokenizer = Tokenizer::from_dir(&dir).unwrap();
        let template = ChatTemplate::from_dir(&dir, &tokenizer, None).unwrap();
        let renderer = TemplateRenderer::start(program(), &dir, &tokenizer, None).unwrap();
        let prompt = renderer.prompt(&tokenizer, &ChatRequest::new(&hello())).unwrap();
        assert_eq!(prompt, template.prompt(&tokenizer, &ChatInput::new(&hello())).unwrap(), "{model}");
        // What the server counts of a prompt. A tekken.json model's is its pieces: the text of "Hello!" between control tokens.
        let written = renderer.write(&tokenizer, &ChatRequest::new(&hello())).unwrap();
        let text = renderer.render(&tokenizer, &ChatRequest::new(&hello())).unwrap_or_else(|_| "Hello!".to_owned());
        assert_eq!((written.bytes(), written.normalized_len(&tokenizer)), (text.len(), text.len()), "{model}");
        let open = [hello(), vec![json!({"role": "assistant", "content": "Well"})]].concat();
        let tools = [json!({"type": "function", "function": {"name": "add", "description": "", "parameters": {}}})];
        let mut request = ChatRequest::new(&open);
        request.tools = Some(serde_json::value::to_raw_value(&tools).unwrap());
        (request.add_generation_prompt, request.continue_final_message) = (false, true);
        let prompt = renderer.prompt(&tokenizer, &request).unwrap();
        let mut input = ChatInput { tools: Some(&tools), ..ChatInput::new(&open) };
        (input.add_generation_prompt, input.continue_final_message) = (false, true);
        assert_eq!(prompt, template.prompt(&tokenizer, &input).unwrap(), "{model}");
        let bounded = Tokenizer::from_dir(&dir).unwrap().bounded(100);
        let long = ChatRequest::new(&[json!({"role": "user", "content": "x".repeat(100_000)})]);
        assert!(matches!(renderer.prompt(&bounded, &long), Err(TextError::TooLong { .. })), "{model}");
        let own = renderer.prompt(&tokenizer, &with_template("Say {{ messages[0].content }}")).unwrap();
        assert_eq!(own, tokenizer.encode("Say Hello!", false).unwrap(), "{model}");
    }
}

/// Workers that write down their process ids, one per line.
fn logged(dir: &Path) -> TemplateRenderer {
    use std::os::unix::fs::PermissionsExt;
    let script = dir.join("program");
    let (log, program) = (dir.join("pids"), program());
    let text = format!("#!/bin/sh\necho $$ >> '{}'\nexec '{}' \"$@\"\n", log.display(), program.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    loop {
        match TemplateRenderer::start(script.clone(), &checkpoint(), tokenizer(), None) {
            // A process that another thread is just starting still has the script open for writing.
            Err(error) if error.to_string().contains("Text file busy") => std::thread::yield_now(),
            started => return started.unwrap(),
        }
    }
}

fn pids(dir: &Path) -> Vec<String> {
    std::fs::read_to_string(dir.join("pids")).unwrap().lines().map(str::to_owned).collect()
}

/// Whether there is such a process, be it as a zombie.
fn exists(pid: &str) -> bool {
    Command::new("ps").args(["-p", pid]).output().unwrap().status.success()
}

#[test]
fn workers_are_kept_replaced_and_reaped() {
    let dir = tempfile::tempdir().unwrap();
    let renderer = logged(dir.path());
    let render = || renderer.render(tokenizer(), &ChatRequest::new(&hello())).unwrap();
    for _ in 0..3 {
        assert_eq!(render(), expected());
    }
    assert_eq!(pids(dir.path()).len(), 1, "an idle worker is used again");
    // As the system does when memory is short.
    assert!(Command::new("kill").args(["-KILL", &pids(dir.path())[0]]).status().unwrap().success());
    assert_eq!(render(), expected());
    assert_eq!(pids(dir.path()).len(), 2);
    // Signals for the server, from a terminal or a service manager, do not concern a worker.
    for signal in ["-INT", "-TERM", "-HUP"] {
        assert!(Command::new("kill").args([signal, &pids(dir.path())[1]]).status().unwrap().success());
    }
    assert_eq!(render(), expected());
    assert_eq!(pids(dir.path()).len(), 2);
    // One that has grown to hundreds of MB does not stay.
    let greedy = "{% set ns = namespace(s='0123456789') %}{% for i in range(24) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}";
    assert_eq!(renderer.render(tokenizer(), &with_template(greedy)).unwrap(), (10 << 24).to_string());
    assert_eq!(render(), expected());
    let started = pids(dir.path());
    assert_eq!(started.len(), 3);
    assert!(!exists(&started[0]) && !exists(&started[1]) && exists(&started[2]), "{started:?}");
    drop(renderer);
    assert!(!exists(&started[2]));
}

/// The template is not at fault, so that it is rendered again, and only then judged.
#[test]
fn a_worker_that_is_killed_while_it_renders_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let renderer = logged(dir.path());
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    std::thread::scope(|scope| {
        let rendered = scope.spawn(|| renderer.render(tokenizer(), &with_template(endless)));
        std::thread::sleep(Duration::from_millis(100));
        assert!(Command::new("kill").args(["-KILL", &pids(dir.path())[0]]).status().unwrap().success());
        assert_eq!(end(&rendered.join().unwrap().unwrap_err()), Some(End::Steps));
    });
    assert_eq!(pids(dir.path()).len(), 2);
}

#[test]
fn good_templates_beside_bad_ones_come_out_right() {
    let renderer = renderer();
    let expected = expected();
    let bombs = [
        "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        format!("{{{{ {}messages }}}}", "not ".repeat(400_000)),
        "{{ messages | batch(100000000000, 'x') | list }}".to_owned(),
    ];
    std::thread::scope(|scope| {
        for bomb in &bombs {
            scope.spawn(|| {
                let error = renderer.render(tokenizer(), &with_template(bomb)).unwrap_err();
                assert!(matches!(error, TextError::TemplateLimit(_)), "{}", shown(&error));
            });
        }
        for name in ["a", "b", "c"] {
            let (renderer, expected) = (&renderer, &expected);
            scope.spawn(move || {
                for at in 0..20 {
                    assert_eq!(&renderer.render(tokenizer(), &ChatRequest::new(&hello())).unwrap(), expected);
                    let own = format!("{name} {at} {{{{ messages[0].content }}}}");
                    let rendered = renderer.render(tokenizer(), &with_template(&own)).unwrap();
                    assert_eq!(rendered, format!("{name} {at} Hello!"));
                }
            });
        }
    });
}

#[test]
fn a_hostile_template_is_an_error_at_start() {
    let start = |template: &str| TemplateRenderer::start(program(), &checkpoint(), tokenizer(), Some(template)).err();
    let deep = start(&format!("{{{{ {}messages }}}}", "- ".repeat(400_000))).unwrap();
    assert!(deep.to_string().contains("overflows a stack of 16 MiB"), "{}", shown(&deep));
    let wrong = start("{% if %}").unwrap();
    assert!(matches!(&wrong, TextError::TemplateSyntax { origin, .. } if origin == "--chat-template"), "{wrong}");
    let greedy = start("{{ messages | slice(100000000000) | list }}").unwrap();
    assert!(greedy.to_string().contains("too much memory, more than 768 MiB"), "{}", shown(&greedy));
    // A template may well refuse the conversation with which it is tried.
    assert!(start("{{ raise_exception('there must be a system prompt') }}").is_none());
}

#[test]
fn what_takes_too_long_is_ended() {
    let renderer = renderer().with_time_limit(Duration::from_millis(300));
    let slow = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
    let error = renderer.render(tokenizer(), &with_template(slow)).unwrap_err();
    assert_eq!(end(&error), None);
    assert!(error.to_string().contains("takes too much time"), "{error}");
}

#[test]
fn a_program_that_is_no_worker_is_an_error() {
    let start = |program: &str| TemplateRenderer::start(program.into(), &checkpoint(), tokenizer(), None).unwrap_err();
    let missing = start("/nowhere/vllm-apple").to_string();
    assert!(missing.contains("/nowhere/vllm-apple"), "{missing}");
    let error = start("true");
    assert!(matches!(error, TextError::TemplateProcess(_)), "{error}");
}

#[test]
fn damaged_conversations_are_refused() {
    let renderer = renderer();
    let refused = |request: ChatRequest| match renderer.render(tokenizer(), &request) {
        Err(TextError::Template(reason)) => reason,
        other => panic!("{:?}", other.map(|text| text.len())),
    };
    let raw = |text: String| serde_json::value::RawValue::from_string(text).unwrap();
    let nested = format!("[{}{}]", "[".repeat(100_000), "]".repeat(100_000));
    let mut request = ChatRequest::new(&hello());
    request.messages = raw(nested.clone());
    let reason = refused(request);
    assert!(reason.contains("messages[0]") && reason.contains("recursion"), "{reason}");
    let mut request = ChatRequest::new(&hello());
    request.kwargs.insert("deep".to_owned(), raw(nested));
    let reason = refused(request);
    assert!(reason.contains("chat_template_kwargs.deep"), "{reason}");
    let mut request = with_template("{{ raise_exception(messages[0].content * 100000) }}");
    request.messages = raw(json!([{"role": "user", "content": "no. "}]).to_string());
    let reason = refused(request);
    assert!(reason.starts_with("no. no. ") && reason.len() < 5000, "{} bytes", reason.len());
}

/// The largest resident size that a process has had so far, in bytes.
#[cfg(target_os = "linux")]
fn peak_of(pid: &str) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok().map(|kb| kb << 10)
}

/// A conversation of many short messages takes memory in proportion: at most 20 times its text in the worker.
#[cfg(target_os = "linux")]
#[test]
fn many_messages_take_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let renderer = logged(dir.path());
    let message = r#"{"role": "user", "content": "Hi there, you"}"#;
    let body = format!("[{}]", vec![message; 300_000].join(","));
    let len = body.len();
    let mut request = ChatRequest::new(&[]);
    request.messages = serde_json::value::RawValue::from_string(body).unwrap();
    let start = Instant::now();
    let (text, peak) = std::thread::scope(|scope| {
        let rendering = scope.spawn(|| renderer.render(tokenizer(), &request).unwrap());
        let mut peak = 0;
        while !rendering.is_finished() {
            peak = pids(dir.path()).last().and_then(|pid| peak_of(pid)).unwrap_or(0).max(peak);
            std::thread::sleep(Duration::from_millis(2));
        }
        (rendering.join().unwrap(), peak)
    });
    println!("{len} bytes of messages: {} bytes of text, {peak} bytes at most, {:?}", text.len(), start.elapsed());
    assert_eq!(text.matches("Hi there, you").count(), 300_000);
    assert!(peak > len && peak < 20 * len, "{peak} bytes for {len}");
}
