//! Calls that must come, and how models write them. The fake model writes what a test wants, or what the form leaves it.

use serde_json::{Value, json};

use crate::more_tokens::{app, ask, checkpoint_with};
use crate::support::Setup;
use crate::tools::{added, body, setup};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_required_call_is_made_and_keeps_to_its_schema() {
    let server = Setup::default().roomy().start().await;
    for seed in 0..4 {
        let required = body(json!({"tool_choice": "required", "seed": seed, "parallel_tool_calls": seed % 2 == 0}));
        let answer = server.ask(CHAT, required.clone()).await;
        let choice = &answer["choices"][0];
        let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
        assert!(!calls.is_empty() && choice["message"]["content"].is_null(), "{answer}");
        if choice["finish_reason"] != "length" {
            assert_eq!(choice["finish_reason"], "tool_calls");
            assert!(seed % 2 == 0 || calls.len() == 1);
            for call in calls {
                let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
                match call["function"]["name"].as_str().unwrap() {
                    "weather" => assert!(["Oslo", "Rome"].contains(&arguments["city"].as_str().unwrap())),
                    name => assert_eq!((name, &arguments), ("now", &json!({}))),
                }
            }
        }
        let whole: Vec<_> = calls.iter().map(|call| call["function"].clone()).collect();
        let streamed = added(&server.stream(CHAT, required).await).1;
        let streamed: Vec<_> =
            streamed.into_iter().map(|(name, arguments)| json!({"name": name, "arguments": arguments})).collect();
        assert_eq!(whole, streamed);
        let named = json!({"type": "function", "function": {"name": "weather"}});
        let answer = server.ask(CHAT, body(json!({"tool_choice": named, "seed": seed}))).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        let function = &choice["message"]["tool_calls"][0]["function"];
        assert_eq!(function["name"], "weather");
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(["Oslo", "Rome"].contains(&arguments["city"].as_str().unwrap()));
    }
}

/// vLLM's forms of required calls do so, too: in another form models write what they were not taught.
#[tokio::test]
async fn a_call_that_must_come_is_written_as_the_model_writes_it() {
    const PYTHONIC: &str = "[func_name1(params_name1=1)]";
    const BEGUN: &str = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
    let v3 = format!("{BEGUN}function<｜tool▁sep｜>weather\n```json\n{{\"city\": \"");
    let v31 = format!("{BEGUN}weather<｜tool▁sep｜>{{\"city\": \"");
    // What shows a format in a template, and how a call begins in it.
    let formats = [
        ("<tool_call>", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \""),
        ("<|python_tag|>", "{\"name\": \"weather\", \"parameters\": {\"city\": \""),
        ("[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \""),
        ("<｜tool▁sep｜>```json", &v3),
        ("<｜tool▁sep｜>", &v31),
        ("<function=a><parameter=b>", "<tool_call>\n<function=weather>\n<parameter=city>\n"),
        ("<arg_key>", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"),
        // Nothing is known of how an answer is held to calls in this one.
        (PYTHONIC, "[{\"name\": \"weather\", \"parameters\": {\"city\": \""),
    ];
    for (shown, begin) in formats {
        let template =
            format!("{{% if tools %}}{shown}{{{{ tools | tojson }}}}{{% endif %}}{{{{ messages[0].content }}}}");
        let server = Setup { template: Some(template.leak()), ..setup(begin) }.start().await;
        let named = json!({"type": "function", "function": {"name": "weather"}});
        for choice in [json!("required"), named].into_iter().take(if shown == PYTHONIC { 1 } else { 2 }) {
            let asked =
                json!({"tool_choice": choice, "logprobs": true, "parallel_tool_calls": choice.is_object(), "seed": 1});
            let body = body(asked);
            let answer = server.ask(CHAT, body.clone()).await;
            let message = &answer["choices"][0]["message"];
            let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
            let written: String = tokens.iter().filter_map(|token| token["token"].as_str()).collect();
            assert!(written.starts_with(begin), "{written}");
            let calls = message["tool_calls"].as_array().unwrap_or_else(|| panic!("{answer}"));
            let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!(calls.len() == 1 && calls[0]["function"]["name"] == "weather" && message["content"].is_null());
            assert!(["Oslo", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{answer}");
            let (content, streamed, _) = added(&server.stream(CHAT, body).await);
            assert_eq!((content.as_str(), streamed.len()), ("", 1));
            assert_eq!(calls[0]["function"]["arguments"], streamed[0].1);
        }
    }
}

/// What it thinks is free, and a call within is none.
#[tokio::test]
async fn a_call_that_must_come_comes_behind_thoughts() {
    let template = "{{ messages[0].content }}{{ tools }}<think>\n{# </think> <tool_call> #}";
    let dir = checkpoint_with(&["<think>", "</think>"], false, &["<|im_end|>"], template);
    let thought = "Hm.\n<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call> so";
    for tool_choice in [json!("required"), json!({"type": "function", "function": {"name": "weather"}})] {
        let written = format!("{thought}</think><tool_call>\n{{\"name\": \"weather\", ");
        let asked = json!({"tool_choice": tool_choice, "parallel_tool_calls": false, "seed": 1});
        let (choice, _) = ask(&app(dir.path(), &written), body(asked)).await;
        let message = &choice["message"];
        assert_eq!((&message["reasoning"], &message["content"]), (&json!(thought), &Value::Null), "{choice}");
        let calls = message["tool_calls"].as_array().unwrap();
        assert!(calls.len() == 1 && calls[0]["function"]["name"] == "weather", "{choice}");
    }
}

/// References are followed, definitions come along only where they are needed, and what is too long in one form is held in another.
#[tokio::test]
async fn schemas_of_tools_may_have_definitions() {
    let definitions: serde_json::Map<String, Value> = (0..30)
        .map(|at| (format!("d{at}"), json!({"type": "object", "properties": {"x": {"type": "integer", "maximum": 9}}})))
        .chain([("n".to_owned(), json!({"type": "integer", "minimum": 12, "maximum": 12}))])
        .collect();
    let mut properties: serde_json::Map<String, Value> =
        (0..30).map(|at| (format!("p{at}"), json!({"type": "integer", "minimum": 0, "maximum": 9}))).collect();
    properties.insert("last".to_owned(), json!({"$ref": "#/$defs/n"}));
    let parameters = json!({"type": "object", "properties": properties, "required": ["last"], "$defs": definitions});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let template = "{% if tools %}<function=a><parameter=b>{{ tools | length }}{% endif %}{{ messages[0].content }}";
    let begin = "<tool_call>\n<function=f>\n<parameter=last>\n";
    let server = Setup { template: Some(template), ..setup(begin) }.start().await;
    let asked = json!({"tool_choice": "required", "tools": tools, "parallel_tool_calls": false});
    let calls = server.ask(CHAT, body(asked)).await["choices"][0]["message"]["tool_calls"].clone();
    assert_eq!(calls[0]["function"]["arguments"], "{\"last\": 12}");
    // Not OpenAI's names, which are read back from JSON alone.
    let tools = json!([{"type": "function", "function": {"name": "a b", "parameters": {}}}]);
    let asked = json!({"tool_choice": "required", "tools": tools, "parallel_tool_calls": false, "max_tokens": 60});
    let server = Setup { template: Some(template), ..setup("[{\"name\": \"a b\", \"parameters\": {") }.start().await;
    let calls = server.ask(CHAT, body(asked)).await["choices"][0]["message"]["tool_calls"].clone();
    assert_eq!(calls[0]["function"]["name"], "a b");
}

const GLM: [&str; 6] = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];

/// Formats that write arguments as text.
#[tokio::test]
async fn a_text_that_must_be_an_argument_is_free_and_else_it_keeps_to_its_schema() {
    let parameters = json!({"type": "object", "required": ["text", "number"], "properties": {
        "text": {"type": "string", "description": "Any."}, "unit": {"enum": ["C", "F"]}, "number": {"type": "integer"}}});
    let tools =
        |parameters: &Value| json!([{"type": "function", "function": {"name": "note", "parameters": parameters}}]);
    for (shown, written) in [
        (
            "<function=a><parameter=b>",
            "<tool_call>\n<function=note>\n<parameter=text>\nHi,\n<b>you</b>!\n</parameter>\n<parameter=number>\n12\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "<arg_key>",
            "<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>Hi,\n<b>you</b>!</arg_value>\n<arg_key>number</arg_key>\n<arg_value>12</arg_value>\n</tool_call>",
        ),
    ] {
        let template = format!("{{% if tools %}}{shown}{{{{ tools }}}}{{% endif %}}{{{{ messages[0].content }}}}");
        let template: &'static str = template.leak();
        let server = Setup { template: Some(template), ..setup(written) }.start().await;
        let mut asked =
            body(json!({"tool_choice": "required", "tools": tools(&parameters), "parallel_tool_calls": false}));
        let calls = server.ask(CHAT, asked.clone()).await["choices"][0]["message"]["tool_calls"].clone();
        let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"text": "Hi,\n<b>you</b>!", "number": 12}), "{calls}");
        if shown == "<arg_key>" {
            let template = format!("{{{{ messages[0].content }}}}{{{{ tools }}}}{{# {shown} #}}");
            let dir = checkpoint_with(&GLM, true, &["<|im_end|>"], &template);
            let (choice, _) = ask(&app(dir.path(), written), asked.clone()).await;
            assert_eq!(choice["message"]["tool_calls"][0]["function"], calls[0]["function"], "{choice}");
        }
        // What no such form holds is held as JSON.
        let mut pattern = parameters.clone();
        pattern["properties"]["text"]["pattern"] = json!("^a+$");
        asked["tools"] = tools(&pattern);
        asked["max_tokens"] = json!(60);
        let server =
            Setup { template: Some(template), ..setup("[{\"name\": \"note\", \"parameters\": {\"text\": \"aaa\",") }
                .start()
                .await;
        let calls = server.ask(CHAT, asked).await["choices"][0]["message"]["tool_calls"].clone();
        assert!(calls[0]["function"]["arguments"].as_str().unwrap().starts_with("{\"text\": \"aaa\","), "{calls}");
    }
}

/// Where its tags are special tokens.
#[tokio::test]
async fn a_call_that_must_come_has_the_models_tokens() {
    const V3: [&str; 5] = [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
    ];
    for (tags, begin) in [
        (&["[TOOL_CALLS]", "[ARGS]"][..], "[TOOL_CALLS]weather[ARGS]{"),
        (&GLM, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"),
        (&V3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"),
    ] {
        let template = format!("{{{{ messages[0].content }}}}{{{{ tools }}}}{{# {} #}}", tags.concat());
        let dir = checkpoint_with(tags, true, &["<|im_end|>"], &template);
        for tool_choice in [json!("required"), json!({"type": "function", "function": {"name": "weather"}})] {
            let asked = body(json!({"tool_choice": tool_choice, "parallel_tool_calls": false}));
            let (choice, _) = ask(&app(dir.path(), begin), asked).await;
            let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{choice}"));
            let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!(["Oslo", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{choice}");
            assert!(calls[0]["function"]["name"] == "weather" && choice["message"]["content"].is_null(), "{choice}");
        }
    }
}
