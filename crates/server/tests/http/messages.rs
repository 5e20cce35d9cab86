//! `/v1/messages`: the same answers as chat's in Anthropic's words, its errors, and what is refused.

use serde_json::{Value, json};
use vllm_apple::http::AppConfig;

use crate::support::{MODEL, Server, Setup, THOUGHT_AND_CALLS as TEXT, length, with};

const MESSAGES: &str = "/v1/messages";

fn tools() -> Value {
    let place = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": false});
    json!([
        {"name": "weather", "description": "It knows.", "input_schema": place, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": false}},
    ])
}

fn body(fields: Value) -> Value {
    with(
        json!({"model": MODEL, "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 150, "temperature": 0}),
        fields,
    )
}

async fn error(server: &Server, body: Value, status: u16) -> Value {
    let response = server.post(MESSAGES, body.clone()).await;
    let got = response.status();
    let error: Value = response.json().await.unwrap();
    assert_eq!(got, status, "{body}: {error}");
    assert_eq!(error["type"], "error");
    error["error"].clone()
}

#[tokio::test]
async fn a_message_has_thinking_text_and_calls() {
    let server = Setup::scripted(TEXT).roomy().start().await;
    let body = body(json!({"tools": tools(), "max_tokens": length(TEXT)}));
    let message = server.ask(MESSAGES, body.clone()).await;
    let [thought, said, weather, now] = message["content"].as_array().unwrap().as_slice() else { panic!("{message}") };
    assert_eq!(thought["thinking"], "\nHm.");
    assert!(!thought["signature"].as_str().unwrap().is_empty());
    assert_eq!(said, &json!({"type": "text", "text": "\n\nWell. "}));
    assert_eq!(
        (&weather["type"], &weather["name"], &weather["input"]),
        (&json!("tool_use"), &json!("weather"), &json!({"city": "Oslo"}))
    );
    assert_eq!((&now["name"], &now["input"]), (&json!("now"), &json!({})));
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!(MODEL))
    );
    // The fake model writes until it is stopped.
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    let usage = &message["usage"];
    assert_eq!(usage["output_tokens"], length(TEXT));
    assert!(usage["output_tokens_details"]["thinking_tokens"].as_u64().unwrap() > 3);
    let again = server.ask(MESSAGES, body).await["usage"].clone();
    let of = |usage: &Value, name: &str| usage[name].as_u64().unwrap();
    assert!(of(&again, "cache_read_input_tokens") > 0 && of(usage, "cache_read_input_tokens") == 0);
    assert_eq!(of(&again, "cache_read_input_tokens") + of(&again, "input_tokens"), of(usage, "input_tokens"));
    // A call that is cut off has no input that is an object.
    let cut = TEXT.split_once("\"Os").unwrap().0;
    let message = server.ask(MESSAGES, self::body(json!({"tools": tools(), "max_tokens": length(cut)}))).await;
    let input = &message["content"].as_array().unwrap().last().unwrap()["input"];
    assert!(input["unparsed_arguments"].as_str().unwrap().starts_with("{\"city\""), "{message}");
}

#[tokio::test]
async fn a_stream_adds_up_to_the_message_in_anthropics_order() {
    let server = Setup::scripted(TEXT).roomy().start().await;
    // It ends after a whole call, and before the next.
    let body = body(
        json!({"tools": tools(), "stop_sequences": ["\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"]}),
    );
    let whole = server.ask(MESSAGES, body.clone()).await;
    assert_eq!(whole["stop_reason"], "tool_use");
    let events = server.stream_named(MESSAGES, body).await;
    let mut names: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    names.dedup();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected =
        [&["message_start", "ping"][..], &block, &block, &block, &["message_delta", "message_stop"]].concat();
    assert_eq!(names, expected);
    let start = &events[0]["message"];
    assert_eq!(
        (&start["content"], &start["stop_reason"], &start["usage"]["output_tokens"]),
        (&json!([]), &Value::Null, &json!(0))
    );
    assert!(start["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 0);
    for (index, block) in whole["content"].as_array().unwrap().iter().enumerate() {
        let of_it: Vec<_> = events.iter().filter(|event| event["index"] == index).collect();
        let mut added = of_it[0]["content_block"].clone();
        let mut input = String::new();
        for event in &of_it[1..of_it.len() - 1] {
            let delta = &event["delta"];
            for field in ["text", "thinking", "signature"] {
                if let Some(more) = delta[field].as_str() {
                    added[field] = (added[field].as_str().unwrap().to_owned() + more).into();
                }
            }
            input.push_str(delta["partial_json"].as_str().unwrap_or_default());
        }
        let mut block = block.clone();
        if block["type"] == "tool_use" {
            added["input"] = serde_json::from_str(&input).unwrap();
            block["id"] = added["id"].clone();
        }
        assert_eq!(added, block);
    }
    let delta = &events[events.len() - 2];
    assert_eq!(delta["delta"]["stop_reason"], "tool_use");
    assert_eq!(delta["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

#[tokio::test]
async fn an_answer_ends_for_anthropics_reasons() {
    let server = Setup::scripted("One two three").start().await;
    let stopped = server.ask(MESSAGES, body(json!({"stop_sequences": ["two"]}))).await;
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!("two")));
    assert_eq!(stopped["content"], json!([{"type": "text", "text": "One "}]));
    // More than the model's length leaves.
    let all = server.ask(MESSAGES, body(json!({"max_tokens": 100_000, "ignore_eos": true}))).await;
    assert_eq!(all["stop_reason"], "model_context_window_exceeded");
    let nothing = server.ask(MESSAGES, body(json!({"stop_sequences": ["One"]}))).await;
    assert_eq!(nothing["content"], json!([{"type": "text", "text": ""}]));
}

#[tokio::test]
async fn blocks_are_chats_messages() {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }} {{ enable_thinking }} {{ tools | tojson }} <tool_call>");
    let server = setup.start().await;
    let call = json!({"id": "c", "type": "function", "function": {"name": "now", "arguments": "{\"a\": 1}"}});
    let chat_tools = json!([{"type": "function", "function": {"name": "now", "description": "It knows.", "parameters": {"type": "object"}}}]);
    let messages = json!([
        {"role": "system", "content": "Be.\nKind."},
        {"role": "user", "content": "Hi\nyou"},
        {"role": "assistant", "content": "I look.", "reasoning": "Hm.", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
        {"role": "user", "content": "So?"},
    ]);
    let chat = json!({"messages": messages, "tools": chat_tools, "tool_choice": "none", "enable_thinking": false, "max_tokens": 1});
    let expected = server.ask("/v1/chat/completions", chat).await["usage"]["prompt_tokens"].as_u64().unwrap();
    let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let messages = json!([
        {"role": "user", "content": [text("Hi"), text("you")]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            text("I look."),
            {"type": "tool_use", "id": "c", "name": "now", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [text("noon")], "is_error": true}, text("So?")]},
    ]);
    let tools = json!([{"name": "now", "description": "It knows.", "input_schema": {"type": "object"}}]);
    let body = json!({"model": MODEL, "messages": messages, "system": [text("Be."), text("Kind.")], "tools": tools,
        "tool_choice": {"type": "none"}, "thinking": {"type": "disabled"}});
    let response = server.post("/v1/messages/count_tokens", body.clone()).await;
    assert_eq!(
        response.headers()["x-fields-without-effect"],
        "messages.content.cache_control, messages.content.signature, messages.content.redacted_thinking, messages.content.is_error"
    );
    assert_eq!(response.json::<Value>().await.unwrap(), json!({"input_tokens": expected}));
    let answered = server.ask(MESSAGES, with(body, json!({"max_tokens": 1}))).await;
    let usage = &answered["usage"];
    assert_eq!(usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap(), expected);
}

#[tokio::test]
async fn a_begun_answer_is_continued() {
    let server = Setup::default().start().await;
    let said = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, I"}]);
    let chat = json!({"messages": said, "continue_final_message": true, "max_tokens": 1});
    let expected = &server.ask("/v1/chat/completions", chat).await["usage"]["prompt_tokens"];
    let counted = server.ask("/v1/messages/count_tokens", json!({"model": MODEL, "messages": said})).await;
    assert_eq!(&counted["input_tokens"], expected);
}

#[tokio::test]
async fn choices_and_forms_hold() {
    let server = Setup::default().roomy().start().await;
    for (choice, name) in [
        (json!({"type": "tool", "name": "weather"}), Some("weather")),
        (json!({"type": "any", "disable_parallel_tool_use": true}), None),
    ] {
        let message = server
            .ask(MESSAGES, body(json!({"tools": tools(), "tool_choice": choice, "temperature": 1, "seed": 1})))
            .await;
        let call = &message["content"][0];
        assert_eq!((&call["type"], &message["stop_reason"]), (&json!("tool_use"), &json!("tool_use")), "{message}");
        assert!(name.is_none_or(|name| call["name"] == name) && message["content"].as_array().unwrap().len() == 1);
    }
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let message = server.ask(MESSAGES, body(format)).await;
    let answer: Value = serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(answer["a"] == 1 || answer["a"] == 2);
}

#[tokio::test]
async fn thinking_is_shown_if_it_is_asked_for() {
    let server = Setup::scripted("<think>\nHm.</think>\n\nYes.").roomy().start().await;
    let fields = json!({"max_tokens": 2000, "stop_sequences": ["s."], "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}});
    let response = server.post(MESSAGES, body(fields)).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "thinking.budget_tokens, max_tokens");
    let message: Value = response.json().await.unwrap();
    assert_eq!(message["content"], json!([{"type": "text", "text": "\n\nYe"}]));
    assert!(message["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap() > 3);
    // The prompt has ended it: what follows is the answer.
    let message = server.ask(MESSAGES, body(json!({"thinking": {"type": "disabled"}, "stop_sequences": ["Y"]}))).await;
    assert_eq!(message["content"], json!([{"type": "text", "text": "<think>\nHm.</think>\n\n"}]));
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = Setup::default().roomy().start().await;
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    for (fields, named) in [
        (json!({"max_tokens": null}), "`max_tokens` is required"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": null}), "`messages` is required"),
        (json!({"messages": []}), "`messages`"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "`messages[0].role`"),
        (json!({"messages": [{"role": "user"}]}), "`messages[0].content`"),
        (json!({"messages": user(json!([{"type": "image", "source": {}}]))}), "`messages[0].content[0].type`"),
        (
            json!({"messages": user(json!([{"type": "tool_use", "id": "x", "name": "y", "input": {}}]))}),
            "`messages[0].content[0].type`",
        ),
        (json!({"messages": user(json!([{"type": "tool_result"}]))}), "`messages[0].content[0].tool_use_id`"),
        (
            json!({"messages": user(json!([{"type": "tool_result", "tool_use_id": "x", "is_error": "no"}]))}),
            "`messages[0].content[0].is_error`",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "y", "input": 3}]}]}),
            "`messages[0].content[0].input`",
        ),
        (json!({"system": 3}), "`system`"),
        (json!({"system": [{"type": "image"}]}), "`system[0].type`"),
        (json!({"system": [{"type": "tool_reference", "tool_name": "x"}]}), "`system[0].type`"),
        (
            json!({"messages": user(json!([{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "tool_reference"}]}]))}),
            "`messages[0].content[0].content[0].tool_name`",
        ),
        (json!({"stop": "x"}), "`stop_sequences`"),
        (json!({"stop_sequences": "x"}), "`stop_sequences`"),
        (json!({"stop_sequences": [""]}), "`stop_sequences`"),
        (json!({"stop_sequences": [3]}), "`stop_sequences[0]`"),
        (json!({"thinking": {"type": "maybe"}}), "`thinking.type`"),
        (json!({"thinking": {"type": "adaptive", "display": 3}}), "`thinking.display`"),
        (json!({"output_config": {"task_budget": 3}}), "`output_config.task_budget`"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 3}}), "`thinking.budget_tokens`"),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "`tools[0].type`"),
        (json!({"tools": [{"name": "x"}]}), "`tools[0].input_schema`"),
        (json!({"tools": [{"name": "x", "input_schema": 3}]}), "`tools[0].input_schema`"),
        (json!({"tools": [{"name": "x", "input_schema": {}, "defer_loading": "yes"}]}), "`tools[0].defer_loading`"),
        (json!({"tools": [{"input_schema": {}}]}), "`tools[0].name`"),
        (json!({"tools": tools(), "tool_choice": {"type": "tool"}}), "`tool_choice.type`"),
        (json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "x"}}), "`tool_choice`"),
        (
            json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "what"}}}}),
            "`output_config.format.schema`",
        ),
        (json!({"mcp_servers": [{}]}), "`mcp_servers`"),
        (json!({"context_management": {"edits": [3]}}), "`context_management.edits[0]`"),
        (json!({"context_management": {"edits": [{"type": "x", "keep": 3}]}}), "`context_management.edits[0]`"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"max_token": 1}), "`max_tokens`"),
    ] {
        let error = error(&server, body(fields.clone()), 400).await;
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(named) && !message.contains("response_format"), "{fields}: {message}");
    }
    // Nothing is taken out of the conversation, so that this is done.
    for keep in [json!("all"), json!({"type": "all"})] {
        let kept = json!({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": keep}]}, "max_tokens": 1});
        let response = server.post(MESSAGES, body(kept)).await;
        assert_eq!(response.status(), 200);
        assert!(response.headers().get("x-fields-without-effect").is_none());
    }
}

#[tokio::test]
async fn what_agents_send_and_loses_nothing_is_named() {
    let server = Setup::default().roomy().start().await;
    let edits = json!([
        {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
        {"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 3}, "clear_at_least": null},
        {"type": "compact_20260112"},
    ]);
    let fields = json!({
        "max_tokens": 1,
        "thinking": {"type": "adaptive", "display": "updates"},
        "output_config": {"task_budget": {"type": "tokens", "total": 20_000}},
        "tools": [{"name": "now", "input_schema": {"type": "object"}, "defer_loading": true}],
        "context_management": {"edits": edits},
        "billing_policy": "standard",
    });
    let response = server.post(MESSAGES, body(fields)).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["x-fields-without-effect"],
        "thinking.display, output_config.task_budget, tools.defer_loading, context_management.edits, billing_policy"
    );
}

#[tokio::test]
async fn the_model_is_not_told_of_billing() {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }}");
    let server = setup.start().await;
    let text = |text: &str| json!({"type": "text", "text": text});
    let asked = |system: Value, later: Value| {
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "system", "content": later}, {"role": "user", "content": "So?"}]);
        server.post("/v1/messages/count_tokens", json!({"model": MODEL, "system": system, "messages": messages}))
    };
    let count = async |response: reqwest::Response| response.json::<Value>().await.unwrap()["input_tokens"].clone();
    let plain = asked(json!([text("Be."), text("Kind.")]), json!([text("Hurry.")])).await;
    assert!(plain.headers().get("x-fields-without-effect").is_none());
    let expected = count(plain).await;
    assert!(expected.is_u64(), "{expected}");
    let billing = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=0a1b2;";
    for (system, later) in [
        (json!([text(billing), text("Be."), text("Kind.")]), json!([text(billing), text("Hurry.")])),
        // What follows the line is not lost.
        (json!(format!("{billing}\nBe.\nKind.")), json!(format!("{billing}\nHurry."))),
    ] {
        let response = asked(system, later).await;
        assert_eq!(response.headers()["x-fields-without-effect"], "system.x-anthropic-billing-header");
        assert_eq!(count(response).await, expected);
    }
}

#[tokio::test]
async fn a_result_may_name_tools() {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }}");
    let server = setup.start().await;
    let asked = |found: Value| {
        let messages = json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "search", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": found}]},
        ]);
        server.ask("/v1/messages/count_tokens", json!({"model": MODEL, "messages": messages}))
    };
    let reference = |name: &str| json!({"type": "tool_reference", "tool_name": name});
    let named = asked(json!([reference("weather"), reference("now")])).await;
    assert_eq!(named, asked(json!("weather\nnow")).await);
}

#[tokio::test]
async fn errors_have_anthropics_form_on_its_paths_alone() {
    let config = AppConfig { api_keys: vec!["right".to_owned()], ..AppConfig::default() };
    let server = Setup { config, ..Setup::default() }.start().await;
    assert_eq!(error(&server, body(json!({})), 401).await["type"], "authentication_error");
    let send = |key: &'static str, path: &'static str, body: Value| {
        server.client.post(format!("{}{path}", server.url)).header("x-api-key", key).json(&body).send()
    };
    assert_eq!(send("wrong", MESSAGES, body(json!({}))).await.unwrap().status(), 401);
    assert_eq!(send("right", MESSAGES, body(json!({"max_tokens": 1}))).await.unwrap().status(), 200);
    // Some clients send both headers, one of them with a key for another server.
    for (bearer, own, status) in [("Bearer x", "right", 200), ("Bearer right", "x", 200), ("Bearer x", "x", 401)] {
        let request = server.client.get(format!("{}/v1/models", server.url));
        let response = request.header("authorization", bearer).header("x-api-key", own).send().await.unwrap();
        assert_eq!(response.status(), status, "{bearer}, {own}");
    }
    let unknown: Value = send("right", MESSAGES, body(json!({"model": "x"}))).await.unwrap().json().await.unwrap();
    assert_eq!(unknown["error"]["type"], "not_found_error");
    let long = json!({"messages": [{"role": "user", "content": "Hi! ".repeat(400)}]});
    let long: Value = send("right", MESSAGES, body(long)).await.unwrap().json().await.unwrap();
    let message = long["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("prompt is too long: ") && message.contains(" tokens > 256 maximum. "), "{message}");
    let missing: Value = send("right", "/v1/messages/batches", json!({})).await.unwrap().json().await.unwrap();
    assert_eq!(missing["error"]["type"], "not_found_error");
    let response =
        server.client.get(format!("{}{MESSAGES}", server.url)).header("x-api-key", "right").send().await.unwrap();
    assert_eq!(response.status(), 405);
    assert_eq!(response.json::<Value>().await.unwrap()["type"], "error");
    let chat: Value = send("right", "/v1/chat/completions", json!({})).await.unwrap().json().await.unwrap();
    assert_eq!((&chat["error"]["param"], chat.get("type")), (&json!("messages"), None));
}

#[tokio::test]
async fn a_client_that_would_keep_its_messages_here_is_told_to_send_them() {
    let server = Setup::default().roomy().start().await;
    let request = json!({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi!"}], "thread": {"type": "create"}});
    let response = server.post("/v1/messages", request).await;
    assert_eq!(response.status(), 400);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["details"]["error_code"], "thread_unsupported_request");
}
