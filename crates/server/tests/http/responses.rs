//! `/v1/responses`: the same answers as chat's in OpenAI's other words, what is kept of them, and what is refused.

use serde_json::{Value, json};

use crate::support::{Server, Setup, THOUGHT_AND_CALLS as TEXT, length, with};

pub(crate) const RESPONSES: &str = "/v1/responses";

pub(crate) fn tools() -> Value {
    let place = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": false});
    json!([
        {"type": "function", "name": "weather", "description": "It knows.", "parameters": place, "strict": true},
        {"type": "function", "name": "now", "parameters": null},
    ])
}

/// Of an answer with all kinds of items; the fake model does not end by itself.
fn asking() -> Value {
    json!({"input": "Hi!", "tools": tools(), "max_output_tokens": 200, "stop": ["\n<tool_call>{\"name\": \"later"], "temperature": 0})
}

/// Without what differs between equal answers.
fn plain(response: &Value) -> Value {
    let mut response = response.clone();
    for field in ["id", "created_at", "completed_at", "store"] {
        response.as_object_mut().unwrap().remove(field);
    }
    for item in response["output"].as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("id");
        item.as_object_mut().unwrap().remove("call_id");
    }
    response
}

fn names(events: &[Value]) -> Vec<&str> {
    let name = |event: &Value| event["type"].as_str().unwrap().trim_start_matches("response.").to_owned();
    let mut names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    names.dedup();
    assert!(events.iter().all(|event| !name(event).is_empty()));
    names.into_iter().map(|name| name.trim_start_matches("response.")).collect()
}

async fn error(server: &Server, body: Value, status: u16) -> Value {
    let response = server.post(RESPONSES, body.clone()).await;
    let got = response.status();
    let error: Value = response.json().await.unwrap();
    assert_eq!(got, status, "{body}: {error}");
    error["error"].clone()
}

#[tokio::test]
async fn a_response_has_reasoning_text_and_calls() {
    let server = Setup::scripted(TEXT).roomy().start().await;
    let body =
        with(asking(), json!({"max_output_tokens": length(TEXT), "metadata": {"a": "b"}, "instructions": "Be."}));
    let response = server.ask(RESPONSES, body).await;
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    let [thought, said, weather, now] = response["output"].as_array().unwrap().as_slice() else {
        panic!("{response}");
    };
    assert_eq!(thought["content"], json!([{"type": "reasoning_text", "text": "\nHm."}]));
    assert_eq!((&thought["type"], &thought["summary"]), (&json!("reasoning"), &json!([])));
    assert_eq!(
        (&said["type"], &said["role"], &said["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    assert_eq!(said["content"][0]["text"], "\n\nWell. ");
    assert_eq!((&weather["name"], &weather["arguments"]), (&json!("weather"), &json!("{\"city\": \"Oslo\"}")));
    assert_eq!((&now["type"], &now["arguments"]), (&json!("function_call"), &json!("{}")));
    assert!(weather["call_id"] != now["call_id"]);
    // The fake model writes until it is stopped, but its last call is whole.
    assert_eq!((&response["status"], &now["status"]), (&json!("incomplete"), &json!("completed")));
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens"], length(TEXT));
    let thinking = usage["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() as usize;
    assert!(thinking.abs_diff(length("<think>\nHm.</think>")) <= 1, "{thinking}");
    for (field, value) in [
        ("metadata", json!({"a": "b"})),
        ("instructions", json!("Be.")),
        ("tools", tools()),
        ("tool_choice", json!("auto")),
        ("temperature", json!(0.0)),
        ("error", Value::Null),
    ] {
        assert_eq!(response[field], value, "{field}");
    }
}

#[tokio::test]
async fn a_stream_adds_up_to_the_response_in_openais_order() {
    let server = Setup::scripted(TEXT).roomy().start().await;
    let body = with(
        asking(),
        json!({"max_output_tokens": length(TEXT) + 3, "stop": "</tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"}),
    );
    let whole = server.ask(RESPONSES, body.clone()).await;
    assert_eq!((&whole["status"], whole["completed_at"].is_u64()), (&json!("completed"), true));
    let events = server.stream_named(RESPONSES, body).await;
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names(&events), expected);
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..events.len() as u64));
    assert_eq!(
        (&events[0]["response"]["status"], &events[0]["response"]["output"]),
        (&json!("in_progress"), &json!([]))
    );
    let last = &events.last().unwrap()["response"];
    let mut whole = plain(&whole);
    // The first request filled the prefix cache.
    whole["usage"]["input_tokens_details"] = last["usage"]["input_tokens_details"].clone();
    assert_eq!(plain(last), whole);
    // What is said of an item adds up to it.
    for (index, item) in last["output"].as_array().unwrap().iter().enumerate() {
        let of_it: Vec<_> = events.iter().filter(|event| event["output_index"] == index).collect();
        let added: String = of_it.iter().filter_map(|event| event["delta"].as_str()).collect();
        let text = item["content"][0]["text"].as_str().or(item["arguments"].as_str()).unwrap();
        assert_eq!(added, text);
        assert_eq!(&of_it.last().unwrap()["item"], item);
        assert_eq!((&of_it[0]["item"]["status"], &of_it[0]["item"]["id"]), (&json!("in_progress"), &item["id"]));
        assert!(of_it[1..of_it.len() - 1].iter().all(|event| event["item_id"] == item["id"]));
        let done = of_it[of_it.len() - if item["type"] == "function_call" { 2 } else { 3 }];
        assert_eq!(done["text"].as_str().or(done["arguments"].as_str()).unwrap(), text);
    }
    // One that is cut off.
    let events = server.stream_named(RESPONSES, with(asking(), json!({"max_output_tokens": 8}))).await;
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.incomplete"), &json!("incomplete")));
    assert_eq!(events[events.len() - 2]["item"]["status"], "incomplete");
}

/// The messages that a template shows.
pub(crate) const SHOWING: &str = "{{ messages | tojson }} {{ reasoning_effort }} {{ tools | tojson }} <tool_call>";

/// What the template makes of a request.
pub(crate) async fn prompt(server: &Server, body: Value) -> usize {
    server.ask(RESPONSES, with(body, json!({"max_output_tokens": 1}))).await["usage"]["input_tokens"].as_u64().unwrap()
        as usize
}

#[tokio::test]
async fn items_are_chats_messages() {
    let mut setup = Setup::default().roomy();
    setup.template = Some(SHOWING);
    let server = setup.start().await;
    let call = json!({"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}});
    let chat_tools = json!([{"type": "function", "function": {"name": "now", "description": "It knows.", "parameters": {"type": "object"}}}]);
    let messages = json!([
        {"role": "system", "content": "Be.\n\nKind."},
        {"role": "user", "content": "Hi\nyou"},
        {"role": "assistant", "content": "I look.", "reasoning": "Hm.", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]);
    let chat = json!({"messages": messages, "tools": chat_tools, "tool_choice": "none", "reasoning_effort": "low", "max_tokens": 1});
    let expected = server.ask("/v1/chat/completions", chat).await["usage"]["prompt_tokens"].as_u64().unwrap();
    let input = json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Kind."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_text", "text": "you"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "noon"},
    ]);
    let tools =
        json!([{"type": "function", "name": "now", "description": "It knows.", "parameters": {"type": "object"}}]);
    let fields = json!({"tools": tools, "tool_choice": "none", "reasoning": {"effort": "low"}, "instructions": "Be."});
    assert_eq!(prompt(&server, with(json!({"input": input}), fields)).await as u64, expected);
}

#[tokio::test]
async fn a_conversation_goes_on_from_what_is_kept() {
    let mut setup = Setup::scripted("Yes.").roomy();
    setup.template = Some("{{ messages | tojson }}");
    let server = setup.start().await;
    let two = length("Yes.");
    let first = server.ask(RESPONSES, json!({"input": "Hi", "instructions": "Be.", "max_output_tokens": two})).await;
    assert_eq!(first["store"], true);
    let id = first["id"].as_str().unwrap();
    let kept: Value = server.get(&format!("{RESPONSES}/{id}")).await.json().await.unwrap();
    assert_eq!(kept, first);
    // Instructions are not carried over.
    let next = json!({"previous_response_id": id, "input": "And?", "max_output_tokens": two});
    let second = server.ask(RESPONSES, next.clone()).await;
    assert_eq!(second["previous_response_id"], id);
    let said = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]);
    let chat = server.ask("/v1/chat/completions", json!({"messages": said, "max_tokens": 1})).await;
    assert_eq!(second["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    // A stream keeps its response, too, before it says that it is completed.
    let events = server.stream_named(RESPONSES, next.clone()).await;
    let third = &events.last().unwrap()["response"];
    let kept: Value = server.get(&format!("{RESPONSES}/{}", third["id"].as_str().unwrap())).await.json().await.unwrap();
    assert_eq!(&kept, third);
    // Not kept, and no longer.
    let unkept = server.ask(RESPONSES, json!({"input": "Hi", "store": false, "max_output_tokens": 1})).await;
    assert_eq!(unkept["store"], false);
    let response = server.get(&format!("{RESPONSES}/{}", unkept["id"].as_str().unwrap())).await;
    assert_eq!(response.status(), 404);
    let url = format!("{}{RESPONSES}/{id}", server.url);
    let deleted: Value = server.client.delete(&url).send().await.unwrap().json().await.unwrap();
    assert_eq!(deleted, json!({"id": id, "object": "response", "deleted": true}));
    assert_eq!(server.client.delete(&url).send().await.unwrap().status(), 404);
    let gone = error(&server, next, 400).await;
    assert_eq!(
        (&gone["param"], &gone["code"]),
        (&json!("previous_response_id"), &json!("previous_response_not_found"))
    );
}

#[tokio::test]
async fn a_server_that_keeps_nothing_says_so() {
    let mut setup = Setup::default();
    setup.config.max_stored_responses = 0;
    let server = setup.start().await;
    let response = server.ask(RESPONSES, json!({"input": "Hi", "max_output_tokens": 1})).await;
    assert_eq!(response["store"], false);
    assert_eq!(server.get(&format!("{RESPONSES}/{}", response["id"].as_str().unwrap())).await.status(), 404);
}

#[tokio::test]
async fn forms_and_choices_hold() {
    let server = Setup::default().roomy().start().await;
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": true}});
    let body = json!({"input": "Hi", "max_output_tokens": 100, "text": format});
    let response = server.ask(RESPONSES, body).await;
    let answer: Value = serde_json::from_str(response["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(answer["a"] == 1 || answer["a"] == 2);
    assert_eq!(response["text"], format);
    let choice = json!({"type": "function", "name": "weather"});
    let body = json!({"input": "Hi", "max_output_tokens": 100, "tools": tools(), "tool_choice": choice});
    let response = server.ask(RESPONSES, body).await;
    let call = &response["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["Oslo", "Rome"].contains(&arguments["city"].as_str().unwrap()));
}

#[tokio::test]
async fn what_has_no_effect_is_named() {
    let server = Setup::default().start().await;
    let body = json!({"input": "Hi", "max_output_tokens": 1, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "a", "client_metadata": {"a": "b"},
        "reasoning": {"summary": "auto"}, "truncation": "disabled", "background": false, "stream_options": {"include_obfuscation": false}});
    let response = server.post(RESPONSES, body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["x-fields-without-effect"],
        "client_metadata, prompt_cache_key, reasoning.summary, include"
    );
    let server = Setup::default().roomy().start().await;
    let tools = json!([
        {"type": "web_search", "external_web_access": false},
        {"type": "function", "name": "now", "allowed_callers": ["direct", "programmatic"], "output_schema": {"type": "string"}, "async": false},
        {"type": "function", "name": "then", "allowed_callers": ["direct"]},
    ]);
    let body = json!({"input": "Hi", "max_output_tokens": 1, "tools": tools, "reasoning": {"context": "all_turns", "mode": "standard"},
        "truncation": "auto", "background_options": {"a": 1},
        "stream_options": {"include_obfuscation": true, "reasoning_summary_delivery": "sequential_cutoff"}});
    let response = server.post(RESPONSES, body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["x-fields-without-effect"],
        "tools.web_search, tools.allowed_callers, tools.output_schema, reasoning.context, reasoning.mode, background_options, truncation, \
         stream_options.reasoning_summary_delivery, stream_options.include_obfuscation"
    );
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = Setup::default().roomy().start().await;
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    for (fields, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": 3}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [3]}), "input[0]"),
        (json!({"input": [{"role": "nobody", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user", "contents": "x"}]}), "input[0].contents"),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (json!({"input": [{"role": "assistant", "content": null}]}), "input[0].content"),
        (json!({"input": [{"type": "function_call_output", "call_id": "x"}]}), "input[0].output"),
        (json!({"input": [{"type": "web_search_call"}]}), "input[0].type"),
        (json!({"input": [{"type": "function_call", "call_id": "x", "name": "y"}]}), "input[0].arguments"),
        (json!({"input": user(json!([{"type": "input_image", "image_url": "x"}]))}), "input[0].content[0].type"),
        (json!({"input": user(json!([{"type": "input_text"}]))}), "input[0].content[0].text"),
        (json!({"messages": user(json!("Hi"))}), "messages"),
        (json!({"max_tokens": 3}), "max_tokens"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_output_tokens": "x"}), "max_output_tokens"),
        (json!({"background": true}), "background"),
        (json!({"conversation": "x"}), "conversation"),
        (json!({"truncation": "left"}), "truncation"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"include": ["message.output_text.logprobs"]}), "include[0]"),
        (json!({"include": ["x"]}), "include[0]"),
        (json!({"stream_options": {"include_obfuscation": "yes"}}), "stream_options.include_obfuscation"),
        (json!({"reasoning": {"budget": 3}}), "reasoning.budget"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "json_schema", "name": "x"}}}), "text.format.schema"),
        (json!({"text": {"format": {"type": "json_schema", "schema": {"type": "what"}}}}), "text.format.schema"),
        (json!({"tools": [{"type": "customs", "name": "x"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "web_searches"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "web_search"}, {"type": "function"}]}), "tools[1].name"),
        (json!({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}), "tool_choice.type"),
        (json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [{"type": "namespace", "tools": []}]}), "tools[0].name"),
        (json!({"tools": [{"type": "namespace", "name": "x"}]}), "tools[0].tools"),
        (
            json!({"tools": [{"type": "namespace", "name": "x", "tools": [{"type": "web_search"}]}]}),
            "tools[0].tools[0].type",
        ),
        (
            json!({"tools": [{"type": "namespace", "name": "x", "tools": [{"type": "function"}]}]}),
            "tools[0].tools[0].name",
        ),
        (
            json!({"tools": [{"type": "function", "name": "x", "allowed_callers": ["programmatic"]}]}),
            "tools[0].allowed_callers",
        ),
        (json!({"tools": [{"type": "function", "name": "x", "async": true}]}), "tools[0].async"),
        (json!({"tools": [{"type": "function", "function": {"name": "x"}}]}), "tools[0].function"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tools": [{"type": "function", "name": "x", "parameters": 3}]}), "tools[0].parameters"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": {"type": "file_search"}}), "tool_choice.type"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"metadata": "x"}), "metadata"),
        (json!({"metadata": {"x": 3}}), "metadata"),
        (json!({"previous_response_id": "resp_x"}), "previous_response_id"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"inputs": "x"}), "inputs"),
    ] {
        let error = error(&server, with(json!({"input": "Hi"}), fields.clone()), 400).await;
        assert_eq!(error["param"], param, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(!message.contains("response_format") && !message.contains("max_completion_tokens"), "{message}");
    }
    let half = r#"{"input": [{"role": "user", "content": "\ud83d"}]}"#;
    let request = server.client.post(format!("{}{RESPONSES}", server.url)).header("content-type", "application/json");
    let error: Value = request.body(half).send().await.unwrap().json().await.unwrap();
    assert_eq!(error["error"]["param"], "input[0].content");
}

#[tokio::test]
async fn a_stream_that_is_left_ends_its_request() {
    let server = Setup::endless().start().await;
    let body = json!({"input": "Hi", "stream": true, "ignore_eos": true, "max_output_tokens": 90_000});
    let mut response = server.post(RESPONSES, body).await;
    assert!(response.chunk().await.unwrap().is_some());
    drop(response);
    server.idle().await;
}

#[tokio::test]
async fn a_step_that_fails_fails_the_response() {
    let mut setup = Setup::default();
    setup.fake.faults = vec![(5, vllm_apple_engine::fake::Fault::Forward)];
    let server = setup.start().await;
    let body = json!({"input": "Hi", "ignore_eos": true, "max_output_tokens": 50});
    let events = server.stream_named(RESPONSES, body).await;
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"]["code"], "server_error");
}

#[tokio::test]
async fn what_is_repeated_may_have_ends_of_lines() {
    let server = Setup::default().start().await;
    let body =
        "{\"input\": \"Hi\", \"stream\": true, \"max_output_tokens\": 1,\r\n \"metadata\": {\r\n\"a\": \r\"b\"\n}}";
    let request = server.client.post(format!("{}{RESPONSES}", server.url)).header("content-type", "application/json");
    let events = crate::support::named_events(&request.body(body).send().await.unwrap().text().await.unwrap());
    assert_eq!(events[0]["response"]["metadata"], json!({"a": "b"}));
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
}

#[tokio::test]
async fn a_call_that_a_stop_string_cuts_short_is_incomplete() {
    let server = Setup::scripted(TEXT).roomy().start().await;
    for (stop, status) in [("slo\"", "incomplete"), ("</tool_call>", "completed")] {
        let body = with(asking(), json!({"stop": [stop]}));
        let response = server.ask(RESPONSES, body.clone()).await;
        let call = response["output"].as_array().unwrap().last().unwrap().clone();
        assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!(status)), "{response}");
        let events = server.stream_named(RESPONSES, body).await;
        let done = events.iter().rfind(|event| event["type"] == "response.output_item.done").unwrap();
        assert_eq!((&done["item"]["arguments"], &done["item"]["status"]), (&call["arguments"], &json!(status)));
        assert_eq!(plain(&events.last().unwrap()["response"])["output"], plain(&response)["output"]);
    }
}

#[tokio::test]
async fn what_is_kept_is_no_stream() {
    let server = Setup::default().roomy().start().await;
    let response = server.ask(RESPONSES, json!({"input": "Hi", "max_output_tokens": 1})).await;
    let path = format!("{}{RESPONSES}/{}", server.url, response["id"].as_str().unwrap());
    for (query, status) in [("?stream=true", 400), ("?starting_after=1", 400), ("?stream=false&include=x", 200)] {
        assert_eq!(server.client.get(format!("{path}{query}")).send().await.unwrap().status(), status, "{query}");
    }
}
