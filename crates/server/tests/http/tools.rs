//! Calls of tools and reasoning in chat answers. The fake model writes what a test wants, or what the choice of a tool leaves it.

use serde_json::{Value, json};

use crate::support::{Setup, length, with};

const CHAT: &str = "/v1/chat/completions";

fn tools() -> Value {
    let place = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": false});
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "weather", "description": "It knows.", "parameters": place}},
        {"type": "function", "function": {"name": "now", "parameters": nothing}},
    ])
}

pub fn setup(text: &str) -> Setup {
    Setup::scripted(text).roomy()
}

pub fn body(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi!"}], "tools": tools(), "max_tokens": 150});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

const TWO_CALLS: &str = "Well. <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>\n\
                         <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";

/// The message that deltas add up to.
pub fn added(events: &[Value]) -> (String, Vec<(String, String)>, String) {
    let (mut content, mut calls, mut reason) = (String::new(), Vec::<(String, String)>::new(), String::new());
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                let id = call["id"].as_str().unwrap();
                // Mistral's templates take no other.
                assert!(id.starts_with("chatcmpl-tool-") || id.len() == 9, "{id}");
                calls.push((call["function"]["name"].as_str().unwrap().to_owned(), String::new()));
            }
            calls[index].1.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
        reason = choice["finish_reason"].as_str().unwrap_or(&reason).to_owned();
    }
    (content, calls, reason)
}

#[tokio::test]
async fn calls_are_told_apart_from_text_whole_and_streamed() {
    let length = crate::support::tokenizer().encode(TWO_CALLS, false).unwrap().len();
    let server = setup(TWO_CALLS).start().await;
    // The fake model does not end by itself.
    let body = body(json!({"max_tokens": length, "stop": ["never"]}));
    let answer = server.ask(CHAT, body.clone()).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "Well. ");
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["type"]), (2, &json!("function")));
    assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}));
    assert_eq!(calls[1]["function"], json!({"name": "now", "arguments": "{}"}));
    assert!(calls[0]["id"] != calls[1]["id"] && calls[0].get("index").is_none());
    let events = server.stream(CHAT, body.clone()).await;
    let (content, calls, _) = added(&events);
    assert_eq!(content, "Well. ");
    assert_eq!(calls, [("weather".into(), "{\"city\": \"Oslo\"}".into()), ("now".to_owned(), "{}".to_owned())]);
    // One call at most, and none.
    let mut one = body.clone();
    one["parallel_tool_calls"] = json!(false);
    assert_eq!(server.ask(CHAT, one.clone()).await["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(added(&server.stream(CHAT, one).await).1.len(), 1);
    let mut none = body.clone();
    none["tool_choice"] = json!("none");
    assert_eq!(server.ask(CHAT, none).await["choices"][0]["message"]["content"], TWO_CALLS);
    // A stop string after a call.
    let mut stopped = body;
    stopped["stop"] = json!("\n<tool");
    assert_eq!(server.ask(CHAT, stopped.clone()).await["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(added(&server.stream(CHAT, stopped).await).2, "tool_calls");
}

#[tokio::test]
async fn a_call_that_is_cut_off_is_no_end_with_calls() {
    let server = setup(TWO_CALLS).start().await;
    let limit = length(&TWO_CALLS[..TWO_CALLS.find("slo").unwrap()]);
    for (fields, arguments, reason) in [
        (json!({"stop": ["slo"]}), vec!["{\"city\": \"O"], "stop"),
        (json!({"stop": ["slo"], "include_stop_str_in_output": true}), vec!["{\"city\": \"Oslo"], "stop"),
        (json!({"stop": ["}}</tool"]}), vec!["{\"city\": \"Oslo\""], "stop"),
        (json!({"max_tokens": limit}), vec!["{\"city\": \"O"], "length"),
        // The second; one that is not shown; and whole ones.
        (json!({"stop": ["}}</tool_call>"], "min_tokens": limit + 15}), vec!["{\"city\": \"Oslo\"}", "{"], "stop"),
        (json!({"stop": ["\"now"], "parallel_tool_calls": false}), vec!["{\"city\": \"Oslo\"}"], "tool_calls"),
        (json!({"stop": ["</tool_call>"]}), vec!["{\"city\": \"Oslo\"}"], "tool_calls"),
    ] {
        let body = body(with(json!({"max_tokens": length(TWO_CALLS)}), fields.clone()));
        let choice = server.ask(CHAT, body.clone()).await["choices"][0].clone();
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        let whole: Vec<_> = calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
        assert_eq!((whole, &choice["finish_reason"]), (arguments.clone(), &json!(reason)), "{fields}");
        let (_, calls, streamed) = added(&server.stream(CHAT, body).await);
        let parts: Vec<_> = calls.iter().map(|call| call.1.as_str()).collect();
        assert_eq!((parts, streamed.as_str()), (arguments, reason), "{fields}");
    }
}

/// As models write them after their thoughts.
#[tokio::test]
async fn white_space_before_calls_is_no_content() {
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    for (text, expected) in [
        (format!("<think>Hm.</think>\n\n{call}\n{call}"), Value::Null),
        (format!("<think>Hm.</think>\n\nWell. {call}"), json!("\n\nWell. ")),
        ("<think>Hm.</think>\n\n".to_owned(), json!("\n\n")),
    ] {
        let server = setup(&text).start().await;
        // The fake model does not end by itself.
        let body = body(json!({"max_tokens": length(&text)}));
        let message = server.ask(CHAT, body.clone()).await["choices"][0]["message"].clone();
        assert_eq!((&message["content"], &message["reasoning"]), (&expected, &json!("Hm.")), "{text}");
        let content = added(&server.stream(CHAT, body).await).0;
        assert_eq!(content, expected.as_str().unwrap_or_default(), "{text}");
    }
}

#[tokio::test]
async fn a_call_ends_thoughts_that_were_not_ended() {
    let text = "<think>\nI look.\n<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
    let server = setup(text).start().await;
    let body = body(json!({"max_tokens": length(text)}));
    let choice = server.ask(CHAT, body.clone()).await["choices"][0].clone();
    assert_eq!(choice["message"]["reasoning"], "\nI look.\n");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Oslo\"}");
    assert!(choice["message"]["content"].is_null());
    let (content, calls, _) = added(&server.stream(CHAT, body.clone()).await);
    assert_eq!((content.as_str(), calls.len()), ("", 1));
    // Without tools it is a thought.
    let mut none = body;
    none["tool_choice"] = json!("none");
    let message = server.ask(CHAT, none).await["choices"][0]["message"].clone();
    assert!(message["reasoning"].as_str().unwrap().ends_with("</tool_call>") && message.get("tool_calls").is_none());
}

#[tokio::test]
async fn reasoning_is_told_apart() {
    let server = setup("<think>\nHm.</think>\n\nYes.").start().await;
    let length = crate::support::tokenizer().encode("<think>\nHm.</think>\n\nYes.", false).unwrap().len();
    let ask = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": length});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let message = server.ask(CHAT, ask(json!({}))).await["choices"][0]["message"].clone();
    assert_eq!((&message["reasoning_content"], &message["reasoning"]), (&json!("\nHm."), &json!("\nHm.")));
    assert_eq!(message["content"], "\n\nYes.");
    let events = server.stream(CHAT, ask(json!({}))).await;
    let reasoning: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str()).collect();
    assert_eq!((reasoning.as_str(), added(&events).0.as_str()), ("\nHm.", "\n\nYes."));
    let message = server.ask(CHAT, ask(json!({"include_reasoning": false}))).await["choices"][0]["message"].clone();
    assert_eq!((message.get("reasoning"), message.get("reasoning_content")), (Some(&Value::Null), None));
    let streamed = server.stream(CHAT, ask(json!({"include_reasoning": false}))).await;
    assert!(streamed.iter().all(|event| event["choices"][0]["delta"].get("reasoning").is_none()));
    // The prompt has ended it: what follows is the answer.
    for fields in [json!({"enable_thinking": false}), json!({"chat_template_kwargs": {"enable_thinking": false}})] {
        let message = server.ask(CHAT, ask(fields)).await["choices"][0]["message"].clone();
        assert_eq!(message["content"], "<think>\nHm.</think>\n\nYes.");
    }
}

#[tokio::test]
async fn tokens_that_were_thought_are_counted() {
    const TEXT: &str = "<think>\nHm.</think>\n\nYes.";
    let server = setup(TEXT).start().await;
    let counted = |event: &Value| event["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    let ask = |fields: Value| {
        with(json!({"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": length(TEXT)}), fields)
    };
    let thought = counted(&server.ask(CHAT, ask(json!({}))).await).unwrap();
    assert!((thought as usize).abs_diff(length("<think>\nHm.</think>")) <= 1, "{thought}");
    for (fields, expected) in [
        (json!({"n": 2}), 2 * thought),
        (json!({"include_reasoning": false}), thought),
        (json!({"enable_thinking": false}), 0),
    ] {
        assert_eq!(counted(&server.ask(CHAT, ask(fields.clone())).await), Some(expected), "{fields}");
        let options = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
        let events = server.stream(CHAT, ask(with(fields.clone(), options))).await;
        let (last, before) = events.split_last().unwrap();
        assert_eq!((counted(&before[0]), counted(last)), (Some(0), Some(expected)), "{fields}");
        let of_first =
            before.iter().filter(|event| event["choices"][0]["index"] == 0).map(|event| counted(event).unwrap());
        assert!(of_first.is_sorted(), "{fields}");
    }
    // Completions tell nothing apart, and other models think nothing.
    let answer = server.complete(json!({"prompt": [5], "max_tokens": 1})).await;
    assert!(answer["usage"].get("completion_tokens_details").is_none(), "{answer}");
    let plain = Setup { template: Some("{{ messages }}"), ..setup(TEXT) }.start().await;
    assert_eq!(counted(&plain.ask(CHAT, ask(json!({}))).await), None);
}

#[tokio::test]
async fn tools_that_the_model_would_not_see_are_refused() {
    let server = Setup { template: Some("{{ messages }}"), ..Setup::default().roomy() }.start().await;
    let response = server.post(CHAT, body(json!({}))).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["param"], "tools");
    assert!(error["error"]["message"].as_str().unwrap().contains("does not show tools"), "{error}");
    // A template that shows them in a way that nobody knows: a call that is held to a form needs no more.
    let server = Setup { template: Some("{{ tools }}{{ messages }}"), ..Setup::default().roomy() }.start().await;
    let error: Value = server.post(CHAT, body(json!({}))).await.json().await.unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("--tool-call-parser"), "{error}");
    server.ask(CHAT, body(json!({"tool_choice": "required"}))).await;
    server.ask(CHAT, body(json!({"tool_choice": "none"}))).await;
}

#[tokio::test]
async fn a_choice_that_cannot_be_is_refused() {
    let server = Setup::default().roomy().start().await;
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (fields, param) in [
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": named("nothing")}), "tool_choice"),
        (json!({"tool_choice": "required", "tools": null}), "tool_choice"),
        (json!({"tool_choice": "required", "guided_regex": "a"}), "tool_choice"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}),
            "tools[0].function.parameters",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a", "strict": "yes"}}]}),
            "tools[0].function.strict",
        ),
        (json!({"tools": [1]}), "tools[0]"),
        // Without its schema, a call would be held to nothing.
        (
            json!({"tools": [{"type": "function", "function": {"name": "a", "paramters": {}}}]}),
            "tools[0].function.paramters",
        ),
        (json!({"tools": [{"type": "function", "function": {"name": "a"}, "functon": {}}]}), "tools[0].functon"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "now", "arguments": {}}}}),
            "tool_choice.function.arguments",
        ),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "now"}, "strict": true}}),
            "tool_choice.strict",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tool": []}}}),
            "tool_choice.allowed_tools.tool",
        ),
    ] {
        let response = server.post(CHAT, body(fields.clone())).await;
        assert_eq!(response.status(), 400, "{fields}");
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"]["param"], param, "{error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(!message.contains("Tool") && !message.contains("struct"), "{error}");
    }
    // What else a tool holds, the template shows.
    let tool =
        json!({"type": "function", "function": {"name": "a", "returns": {"type": "string"}}, "cache_control": {}});
    server.ask(CHAT, body(json!({"tools": [tool], "max_tokens": 1}))).await;
    let asked = json!({"input": "Hi!", "tools": [{"type": "function", "name": "now"}],
        "tool_choice": {"type": "function", "name": "now", "strict": true}});
    let error: Value = server.post("/v1/responses", asked).await.json().await.unwrap();
    assert_eq!(error["error"]["param"], "tool_choice.strict", "{error}");
}

/// References in a schema mean the schema's own root and definitions, whatever stands beside it.
#[tokio::test]
async fn a_required_call_reads_references_where_they_stand() {
    let server = Setup::default().roomy().start().await;
    let tool = |name: &str, value: &str| {
        let list = json!({"type": "object", "properties": {"value": {"$ref": "#/$defs/Value"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            "default": {"$ref": "#/properties/value"}, "kind": {"const": {"$ref": "#"}}},
            "required": ["value", "next", "default", "kind"], "additionalProperties": false, "$defs": {"Value": {"const": value}}});
        json!({"type": "function", "function": {"name": name, "parameters": list}})
    };
    for seed in 0..6 {
        let asked = body(json!({"tools": [tool("one", "first"), tool("two", "second")], "tool_choice": "required",
            "parallel_tool_calls": false, "seed": seed, "max_tokens": 400}));
        let answer = server.ask(CHAT, asked).await;
        let function = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let value = if function["name"] == "one" { "first" } else { "second" };
        let arguments = function["arguments"].as_str().unwrap_or_else(|| panic!("{answer}"));
        if answer["choices"][0]["finish_reason"] == "length" {
            assert!(arguments.contains(value), "{arguments}");
            continue;
        }
        let mut at: &Value = &serde_json::from_str(arguments).unwrap();
        while !at.is_null() {
            assert_eq!(
                (&at["value"], &at["default"], &at["kind"]),
                (&json!(value), &json!(value), &json!({"$ref": "#"})),
                "{arguments}"
            );
            at = &at["next"];
        }
    }
}

/// What gpt-oss writes into channels is read as such, but a call that must come has its own form.
#[tokio::test]
async fn a_forced_call_stands_in_no_channel() {
    const CHANNELS: &str = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{# <|channel|><|message|> #}";
    let server = Setup { template: Some(CHANNELS), ..setup("") }.start().await;
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "now"}})] {
        let asked = body(json!({"tool_choice": choice, "tools": [tools()[1]], "parallel_tool_calls": false}));
        let message = server.ask(CHAT, asked.clone()).await["choices"][0]["message"].clone();
        assert_eq!(message["tool_calls"][0]["function"]["name"], "now", "{message}");
        assert_eq!(added(&server.stream(CHAT, asked).await).1[0].0, "now");
    }
}

#[tokio::test]
async fn a_forced_call_is_no_thought() {
    // It begins thoughts that the tokenizer has no tags for, so that nothing could end them before the form.
    const THINKS: &str = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}<think>{# </think> #}";
    assert_eq!(crate::support::tokenizer().token_to_id("</think>"), None);
    let server = Setup { template: Some(THINKS), ..setup("") }.start().await;
    let named = json!({"type": "function", "function": {"name": "now"}});
    let message = server.ask(CHAT, body(json!({"tool_choice": named}))).await["choices"][0]["message"].clone();
    assert_eq!(message["tool_calls"][0]["function"]["name"], "now", "{message}");
    assert!(message["reasoning"].is_null(), "{message}");
}

#[tokio::test]
async fn calls_that_must_come_leave_no_text_to_a_form() {
    let server = setup("").start().await;
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}});
    let choice = json!({"type": "function", "function": {"name": "weather"}});
    let request = body(json!({"response_format": format, "tool_choice": choice}));
    let response = server.post(CHAT, request).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "response_format");
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "weather", "{answer}");
    // By the name that it has there.
    let schema = json!({"type": "integer"});
    let tool =
        json!({"type": "function", "name": "now", "parameters": {"type": "object", "additionalProperties": false}});
    let request = json!({"input": "Hi!", "tools": [tool], "tool_choice": {"type": "function", "name": "now"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}, "max_output_tokens": 50});
    let response = server.post("/v1/responses", request).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "text.format");
}

#[tokio::test]
async fn a_choice_among_some_tools_hides_the_others() {
    let server = setup("").start().await;
    let among = |mode: &str, name: &str| {
        let tools = json!([{"type": "function", "function": {"name": name}}]);
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    };
    let count = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let answer =
        server.ask(CHAT, body(json!({"tool_choice": among("required", "now"), "parallel_tool_calls": false}))).await;
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert!(calls.iter().all(|call| call["function"]["name"] == "now"), "{answer}");
    // The prompt is that of the other tool alone.
    let mut alone = body(json!({"max_tokens": 1}));
    alone["tools"].as_array_mut().unwrap().remove(0);
    let alone = server.ask(CHAT, alone).await;
    assert_eq!(count(&answer), count(&alone));
    let auto = server.ask(CHAT, body(json!({"tool_choice": among("auto", "now"), "max_tokens": 1}))).await;
    assert_eq!(count(&auto), count(&alone));
    let tools =
        json!([{"type": "function", "name": "now", "defer_loading": false}, {"type": "function", "name": "weather"}]);
    let choice = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]});
    let asked = json!({"input": "Hi!", "tools": tools, "tool_choice": choice, "max_output_tokens": 60, "parallel_tool_calls": false});
    let answer = server.ask("/v1/responses", asked.clone()).await;
    assert_eq!(answer["output"][0]["name"], "now", "{answer}");
    for wrong in [among("sometimes", "now"), among("auto", "nobody"), json!({"type": "allowed_tools"})] {
        assert_eq!(server.post(CHAT, body(json!({"tool_choice": wrong}))).await.status(), 400, "{wrong}");
    }
    // As many as there may be tools are a list that is read; one that is longer than a form may be says so itself.
    let many = |name: &str| {
        let tools = vec![json!({"type": "function", "function": {"name": name}}); 512];
        json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}})
    };
    assert_eq!(server.post(CHAT, body(json!({"tool_choice": many("now"), "max_tokens": 1}))).await.status(), 200);
    let refused = server.post(CHAT, body(json!({"tool_choice": many(&"a".repeat(300))}))).await.text().await.unwrap();
    assert!(refused.contains("`tool_choice` has") && refused.contains("131072"), "{refused}");
    let mut deferred = asked;
    deferred["tools"][0]["defer_loading"] = json!(true);
    let shown = server.post("/v1/responses", deferred).await;
    assert_eq!(shown.status(), 200);
    assert!(shown.headers()["x-fields-without-effect"].to_str().unwrap().contains("tools.defer_loading"));
}
