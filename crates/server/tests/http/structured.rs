//! Answers that are held to a form. The fake model draws any token that it may, so that what comes out is the form's doing alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::{Value, json};
use vllm_apple::structured::{Form, Memory, Structure, Structures};
use vllm_apple_engine::{Grammar, GrammarError};

use crate::support::{Setup, tokenizer};

const CHAT: &str = "/v1/chat/completions";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"enum": ["Ann", "Bob", "Zoë"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    })
}

fn format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": schema()}})
}

fn body(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 120});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["name", "age", "tags"]);
    assert!(["Ann", "Bob", "Zoë"].contains(&value["name"].as_str().unwrap()), "{text}");
    assert!(value["age"].as_u64().unwrap() <= 150, "{text}");
    assert!(value["tags"].as_array().unwrap().iter().all(Value::is_boolean), "{text}");
}

#[tokio::test]
async fn an_answer_keeps_to_its_schema_whatever_else_is_asked() {
    let server = Setup::default().start().await;
    let others = [
        json!({}),
        json!({"temperature": 0}),
        json!({"n": 3, "seed": 7}),
        json!({"frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 1.5}),
        json!({"logprobs": true, "top_logprobs": 3, "ignore_eos": true}),
        json!({"min_tokens": 3}),
    ];
    for other in others {
        let mut asked = body(other.clone());
        asked["response_format"] = format();
        let answer = server.ask(CHAT, asked.clone()).await;
        for choice in answer["choices"].as_array().unwrap() {
            check(choice["message"]["content"].as_str().unwrap());
            assert_eq!(choice["finish_reason"], "stop", "{other}");
        }
        // Streamed and alone, the first answer is the same.
        if other.get("n").is_none() {
            asked["seed"] = json!(11);
            let whole = server.ask(CHAT, asked.clone()).await["choices"][0]["message"]["content"].clone();

            let events = server.stream(CHAT, asked).await;
            let streamed: String =
                events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
            assert_eq!(whole, streamed);
        }
    }
}

#[tokio::test]
async fn every_name_of_a_form_is_honoured() {
    let server = Setup::default().start().await;
    let json_schema = schema();
    let text = json_schema.to_string();
    for fields in [
        json!({"guided_json": json_schema}),
        json!({"guided_json": text}),
        json!({"structured_outputs": {"json": json_schema}}),
        json!({"structured_outputs": {"json": text, "disable_any_whitespace": true}}),
        json!({"json_schema": json_schema}),
        json!({"format": json_schema}),
        json!({"response_format": {"type": "json_object", "schema": json_schema}}),
    ] {
        let answer = server.ask(CHAT, body(fields.clone())).await;
        check(answer["choices"][0]["message"]["content"].as_str().unwrap());
        let completion = json!({"prompt": "Hi!", "max_tokens": 120});
        let mut completion = completion.as_object().unwrap().clone();
        completion.extend(fields.as_object().unwrap().clone());
        let answer = server.ask("/v1/completions", completion.into()).await;
        check(answer["choices"][0]["text"].as_str().unwrap());
    }
    for (fields, expected) in [
        (json!({"guided_regex": "[ab]{3}-[0-9]"}), r"^[ab]{3}-[0-9]$"),
        (json!({"regex": "x{2}"}), "^xx$"),
        (json!({"structured_outputs": {"regex": "(yes|no)!"}}), "^(yes|no)!$"),
        (json!({"guided_choice": ["red", "dark \"blue\"", "é"]}), "^(red|dark \"blue\"|é)$"),
        (json!({"structured_outputs": {"choice": ["a"]}}), "^a$"),
        (json!({"structured_outputs": {"choice": ["\u{7f}"]}}), "^\u{7f}$"),
        (json!({"guided_grammar": "start: \"a\" (\"b\" | \"c\")"}), "^a[bc]$"),
        (json!({"grammar": "root ::= [a-c] tail?\ntail ::= \"-\" [^\\n-z]{2} # end"}), "^[abc](-[^\n-z]{2})?$"),
        (json!({"ebnf": "root ::= (\"x\" | \"y\" |) \"!\""}), "^[xy]?!$"),
        (json!({"structured_outputs": {"grammar": "start: /[0-9]{2}/"}}), "^[0-9]{2}$"),
    ] {
        let answer = server.ask(CHAT, body(fields.clone())).await;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(regex::Regex::new(expected).unwrap().is_match(content), "{fields}: {content:?}");
    }
}

#[tokio::test]
async fn a_form_that_cannot_be_is_refused_with_its_field() {
    let server = Setup::default().start().await;
    let deep = format!("{}a{}", "(".repeat(50_000), ")".repeat(50_000));
    let tag = |tag: Value| json!({"structured_outputs": {"structural_tag": tag}});
    let text = json!({"type": "any_text"});
    for (fields, param, word) in [
        (json!({"guided_json": {"type": "strin"}}), "guided_json", "strin"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 7}}}}),
            "response_format.json_schema.schema",
            "type",
        ),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema", "required"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type", "json_schema"),
        (json!({"response_format": {"type": "text", "strict": true}}), "response_format.strict", "not known"),
        (json!({"guided_regex": "["}), "guided_regex", "guided_regex"),
        (json!({"guided_regex": deep}), "guided_regex", "brackets"),
        (json!({"guided_regex": "a)|(b"}), "guided_regex", "unopened group"),
        (json!({"guided_regex": "a\\"}), "guided_regex", "incomplete escape"),
        (json!({"guided_regex": ".{0,100000}"}), "guided_regex", "can be followed"),
        (json!({"guided_json": {"type": "integer", "multipleOf": 999_983}}), "guided_json", "`multipleOf` of 999983"),
        (json!({"guided_grammar": "start: %json {\"multipleOf\": 1e-9}"}), "guided_grammar", "`multipleOf` of 1e-9"),
        (json!({"guided_grammar": "start: a\na[temperature=0.5]: /.*/"}), "guided_grammar", "`temperature`"),
        (json!({"structured_outputs": {"regex": "(a{300}){300}"}}), "structured_outputs.regex", "can be followed"),
        (json!({"guided_regex": "[a&&b]"}), "guided_regex", "there is no text of this form"),
        (tag(json!({"type": "banana"})), "structured_outputs.structural_tag.type", "\"structural_tag\""),
        (
            tag(json!({"type": "banana", "format": text})),
            "structured_outputs.structural_tag.type",
            "\"structural_tag\"",
        ),
        (tag(json!({"format": null})), "structured_outputs.structural_tag.format", "required"),
        (tag(json!({"format": text, "triggers": ["a"]})), "structured_outputs.structural_tag.triggers", "beside"),
        (json!({"guided_grammar": deep}), "guided_grammar", "brackets"),
        (json!({"guided_grammar": "root ::= a"}), "guided_grammar", "nowhere"),
        (json!({"guided_grammar": "start: nothing"}), "guided_grammar", "nothing"),
        (json!({"guided_choice": []}), "guided_choice", "list"),
        (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs", "one form"),
        (json!({"structured_outputs": {"jsn": {}}}), "structured_outputs.jsn", "json"),
        (json!({"guided_regex": "a", "response_format": {"type": "json_object"}}), "guided_regex", "response_format"),
        (json!({"guided_regex": "a", "guided_whitespace_pattern": " "}), "guided_whitespace_pattern", "guided_json"),
        (json!({"structured_outputs": {"json_object": "yes"}}), "structured_outputs.json_object", "true or false"),
        (
            json!({"structured_outputs": {"json": {}, "disable_any_whitespace": 1}}),
            "structured_outputs.disable_any_whitespace",
            "true or",
        ),
        (
            json!({"structured_outputs": {"json": {}, "whitespace_pattern": 5}}),
            "structured_outputs.whitespace_pattern",
            "a string",
        ),
        (
            json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
            "structured_outputs.whitespace_pattern",
            "json",
        ),
        (json!({"guided_json": {"type": "object", "patternProperties": {"a(?=b)": {}}}}), "guided_json", "guided_json"),
    ] {
        let response = server.post(CHAT, body(fields.clone())).await;
        assert_eq!(response.status(), 400, "{fields}");
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(word), "{error}");
    }
    // A text asks for nothing, and so does a field that is null.
    server.ask(CHAT, body(json!({"response_format": {"type": "text"}}))).await;
    let older = json!({"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["a"], "format": null});
    server.ask(CHAT, body(tag(older))).await;
    server.ask(CHAT, body(tag(json!({"type": "structural_tag", "format": text, "structures": null})))).await;
}

/// Whatever comes of them: the server lives.
#[tokio::test]
async fn no_form_overflows_the_stack() {
    let server = Setup::default().start().await;
    let rules: String = (0..2_000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    let terminals: String = (0..2_000).map(|i| format!("T{i}: T{}\n", i + 1)).collect();
    let definitions: serde_json::Map<String, Value> = (0..1_000)
        .map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)})))
        .chain([("d1000".to_owned(), json!({"type": "boolean"}))])
        .collect();
    for form in [
        json!({"guided_grammar": format!("start: r0\n{rules}r2000: \"a\"\n")}),
        json!({"guided_grammar": format!("start: T0\n{terminals}T2000: \"a\"\n")}),
        json!({"guided_json": {"$ref": "#/$defs/d0", "$defs": definitions}}),
        json!({"guided_regex": "a?".repeat(2_000)}),
        json!({"guided_regex": "(a|b)*a(a|b){500}"}),
        json!({"guided_choice": (0..1_000).map(|i| format!("choice {i}")).collect::<Vec<_>>()}),
    ] {
        let mut asked = body(form);
        asked["max_tokens"] = json!(2);
        let response = server.post(CHAT, asked).await;
        assert!([200, 400].contains(&response.status().as_u16()), "{}", response.text().await.unwrap());
    }
    server.ask(CHAT, body(json!({"max_tokens": 1}))).await;
}

#[tokio::test]
async fn text_before_a_tag_is_free_and_what_follows_it_is_not() {
    let server = Setup::default().start().await;
    let tag = json!({
        "type": "structural_tag",
        "structures": [{"begin": "a", "schema": {"enum": [1, 2]}, "end": ";"}],
        "triggers": ["a"],
    });
    let answer = server.ask(CHAT, body(json!({"response_format": tag, "max_tokens": 40, "n": 4}))).await;
    for choice in answer["choices"].as_array().unwrap() {
        let content = choice["message"]["content"].as_str().unwrap();
        for rest in content.split('a').skip(1) {
            assert!(["1;", "2;"].iter().any(|tag| rest.starts_with(tag) || tag.starts_with(rest)), "{content:?}");
        }
    }
}

/// Keywords that llguidance does not know, where they say nothing or can be said otherwise.
#[test]
fn reworded_schemas_hold_answers() {
    let tokenizer = Arc::new(tokenizer());
    let structures = Structures::new(Arc::clone(&tokenizer), tokenizer.eos_token_ids().into());
    let text = |format: &str| json!({"type": "string", "format": format});
    let plain = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let with = |name: &str, value: Value| crate::support::with(plain.clone(), json!({name: value}));
    for (schema, answers, others) in [
        (
            json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}),
            vec!["{}", r#"{"é": 1, "b": 2}"#],
            vec![r#"{"a": "b"}"#],
        ),
        (with("additionalProperties", json!({"not": {}})), vec!["{}", r#"{"a": 1}"#], vec![r#"{"b": 1}"#]),
        (with("unevaluatedProperties", json!(false)), vec!["{}", r#"{"a": 1}"#], vec![r#"{"b": 1}"#]),
        (with("unevaluatedProperties", json!(true)), vec![r#"{"a": 1}"#, r#"{"b": "c"}"#], vec![r#"{"a": "b"}"#]),
        (
            json!({"type": "array", "uniqueItems": false, "items": {"type": "boolean"}}),
            vec!["[]", "[true, true]"],
            vec!["[1]"],
        ),
        (
            json!({"type": "number", "minimum": f64::MIN, "maximum": f64::MAX}),
            vec!["0", "-1.5e300", "12345678901234567890"],
            vec!["\"0\"", "null"],
        ),
        (json!({"type": "number", "minimum": 0, "maximum": f64::MAX}), vec!["0", "1.5"], vec!["-1"]),
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            vec!["0", "-9223372036854774784", "9223372036854775807"],
            vec!["-9223372036854775809", "9223372036854775808", "1.5"],
        ),
        (text("json-pointer"), vec![r#""""#, r#""/a~1b/0""#, r#""/é/""#], vec![r#""a""#, r#""/~""#, r#""/~2""#]),
        (
            text("relative-json-pointer"),
            vec![r#""0""#, r#""1/a""#, r##""2#""##],
            vec![r#""""#, r#""01""#, r#""/a""#, r##""2#/a""##],
        ),
        (
            text("uri-reference"),
            vec![r#""""#, r#""a/b?c#d""#, r#""//h:1/p""#, r#""../x""#, r#""https://e.org/a%20b""#, r#""//[::1]/a""#],
            vec![r#""a b""#, r#""1:b""#, r#""%zz""#, r#""\\""#, r#""//[x]/""#],
        ),
        (
            json!({"type": "string", "format": "json-pointer", "pattern": "b$"}),
            vec![r#""/a/b""#],
            vec![r#""/a""#, r#""b""#],
        ),
    ] {
        let form =
            structures.compile(&Structure::schema(schema.clone(), None)).unwrap_or_else(|e| panic!("{schema}: {e}"));
        let grammar = grammar(&form);
        answers.iter().for_each(|text| assert!(is_answer(&*grammar, text), "{schema}: {text}"));
        others.iter().for_each(|text| assert!(!is_answer(&*grammar, text), "{schema}: {text}"));
    }
    // In a structural tag, too.
    let tag = json!({"format": {"type": "json_schema", "json_schema": with("unevaluatedProperties", json!(false))}});
    let form =
        structures.compile(&Structure::structural_tag("tag", tag.as_object().unwrap().clone()).unwrap()).unwrap();
    assert!(is_answer(&*grammar(&form), r#"{"a": 1}"#) && !is_answer(&*grammar(&form), r#"{"b": 1}"#));
    // What says something is refused, and so is what no answer can keep.
    for schema in [
        json!({"type": "object", "propertyNames": {"pattern": "^a"}}),
        json!({"type": "array", "uniqueItems": true}),
        json!({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false}),
        json!({"type": "number", "maximum": 1e300}),
        crate::support::with(plain.clone(), json!({"required": ["b"], "additionalProperties": false})),
    ] {
        assert!(structures.compile(&Structure::schema(schema.clone(), None)).is_err(), "{schema}");
    }
}

/// The form without a limit of memory.
pub(super) fn grammar(form: &Arc<Form>) -> Arc<dyn Grammar> {
    form.counted(Arc::new(Counting { limit: usize::MAX, others: 0, taken: AtomicUsize::new(0) }), 0)
}

/// Whether the text is a whole answer: each of its tokens is allowed, and so is the end behind them.
pub(super) fn is_answer(grammar: &dyn Grammar, text: &str) -> bool {
    let tokenizer = tokenizer();
    let ends = tokenizer.eos_token_ids();
    let mut matcher = grammar.start();
    let mut allows = |token: u32, takes: bool| {
        let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32)];
        matcher.allowed(&mut mask).unwrap();
        let is_allowed = mask[token as usize / 32] >> (token % 32) & 1 == 1;
        if is_allowed && takes {
            matcher.accept(token).unwrap();
        }
        is_allowed
    };
    tokenizer.encode(text, false).unwrap().into_iter().all(|token| allows(token, true)) && allows(ends[0], false)
}

#[tokio::test]
async fn thousands_of_properties_may_come() {
    let server = Setup::default().start().await;
    let properties: serde_json::Map<_, _> = (0..3000).map(|i| (format!("p{i}"), json!({"type": "integer"}))).collect();
    let form = json!({"guided_json": {"type": "object", "properties": properties, "additionalProperties": false}, "max_tokens": 40});
    let answer = server.ask(CHAT, body(form)).await;
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'), "{answer}");
}

/// Tables of an answer that are full are made anew.
#[test]
fn long_texts_of_bounded_length_are_held() {
    let tokenizer = Arc::new(tokenizer());
    let structures = Structures::new(Arc::clone(&tokenizer), tokenizer.eos_token_ids().into());
    let schema = |most: usize| Structure::schema(json!({"type": "string", "maxLength": most}), None);
    let regex = |most: usize| Structure::regex(format!("\"[^\"]{{0,{most}}}\""));
    for (structure, letters, most) in [
        (schema(30_000), "The quick brown fox jumps over the lazy dog, and ", 30_000),
        (schema(9_000), "é漢x ", 9_000),
        (regex(11_000), "A dog. ", 11_000),
    ] {
        let grammar = grammar(&structures.compile(&structure).unwrap());
        let long: String = letters.chars().cycle().take(most).collect();
        assert!(is_answer(&*grammar, &format!("\"{long}\"")), "{letters}");
        assert!(!is_answer(&*grammar, &format!("\"{long}x\"")), "{letters}");
    }
    // One that is longer than any tables are refused with what to do.
    let grammar = grammar(&structures.compile(&schema(1_000_000)).unwrap());
    let mut matcher = grammar.start();
    let long = format!("\"{}", "漢".repeat(30_000));
    let mut failure = None;
    for token in tokenizer.encode(&long, false).unwrap() {
        let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32)];
        failure = matcher.accept(token).and_then(|()| matcher.allowed(&mut mask)).err();
        if failure.is_some() {
            break;
        }
    }
    assert!(matches!(&failure, Some(GrammarError::Form(reason)) if reason.contains("lower bounds")), "{failure:?}");
}

#[derive(Debug)]
struct Counting {
    limit: usize,
    /// Of these, those that other requests hold.
    others: usize,
    taken: AtomicUsize,
}

impl Memory for Counting {
    fn take(&self, bytes: usize) -> bool {
        let take = |taken: usize| Some(taken + bytes).filter(|taken| *taken <= self.limit - self.others);
        self.taken.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Relaxed);
    }

    fn could_take(&self, bytes: usize) -> bool {
        self.taken.load(Relaxed) + bytes <= self.limit
    }
}

/// Whether all of a text may come, its end apart, and else why not.
fn follow(grammar: &dyn Grammar, text: &str) -> Result<(), GrammarError> {
    let tokenizer = tokenizer();
    let mut matcher = grammar.start();
    for token in tokenizer.encode(text, false).unwrap() {
        matcher.allowed(&mut vec![0; tokenizer.vocab_size().div_ceil(32)])?;
        matcher.accept(token)?;
    }
    Ok(())
}

/// Each letter of a text of bounded length takes its place in them.
#[test]
fn tables_of_an_answer_are_counted_as_they_grow() {
    const INCLUDED: usize = 1 << 20;
    let tokenizer = Arc::new(tokenizer());
    let structures = Structures::new(Arc::clone(&tokenizer), tokenizer.eos_token_ids().into());
    let form = structures.compile(&Structure::regex("[ab]{0,40000}")).unwrap();
    let memory = |limit, others| Arc::new(Counting { limit, others, taken: AtomicUsize::new(0) });
    let long = "ab".repeat(10_000);
    let (much, little, none) = (memory(64 << 20, 0), memory(4 << 20, 0), memory(0, 0));
    let grammar = form.counted(much.clone(), INCLUDED);
    let mut matcher = grammar.start();
    for token in tokenizer.encode(&long, false).unwrap() {
        matcher.allowed(&mut vec![0; tokenizer.vocab_size().div_ceil(32)]).unwrap();
        matcher.accept(token).unwrap();
    }
    // 20,000 states, of which each is a hundred bytes at least.
    assert!(much.taken.load(Relaxed) > 2 << 20, "{much:?}");
    drop(matcher);
    assert_eq!(much.taken.load(Relaxed), 0);
    let error = follow(&*form.counted(little.clone(), INCLUDED), &long).unwrap_err();
    assert!(
        error.to_string().contains("--max-request-memory") && little.taken.load(Relaxed) == 0,
        "{error} {little:?}"
    );
    assert!(matches!(error, GrammarError::Form(_)), "there would never be enough: {error:?}");
    let error = follow(&*form.counted(memory(64 << 20, 60 << 20), INCLUDED), &long).unwrap_err();
    assert!(matches!(&error, GrammarError::OutOfMemory(reason) if reason.contains("try again")), "{error:?}");
    // Others go on meanwhile: theirs are included.
    assert_eq!(follow(&*form.counted(none.clone(), INCLUDED), "abab"), Ok(()));
    let person = structures.compile(&Structure::schema(schema(), None)).unwrap();
    let answer = r#"{"name": "Zoë", "age": 34, "tags": [true, false]}"#;
    assert_eq!(follow(&*person.counted(none, INCLUDED), answer), Ok(()));
}
