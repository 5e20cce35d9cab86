//! Tools of `/v1/responses`: those of OpenAI's, functions in namespaces, calls with their outputs, and what agents send with these.

use serde_json::{Value, json};

use crate::responses::{RESPONSES, SHOWING, prompt, tools};
use crate::support::{Setup, length, with};

#[tokio::test]
async fn tools_of_openais_are_not_shown() {
    let mut setup = Setup::default().roomy();
    setup.template = Some(SHOWING);
    let server = setup.start().await;
    let asking =
        |tools: Value| json!({"input": "Hi", "tools": tools, "tool_choice": "auto", "reasoning": {"effort": "low"}});
    let function = json!({"type": "function", "name": "now"});
    let expected = prompt(&server, asking(json!([function]))).await;
    let tools = json!([{"type": "mcp", "server_label": "x"}, function, {"type": "web_search_preview_2025_03_11"}]);
    assert_eq!(prompt(&server, asking(tools)).await, expected);
    // None but these.
    let server = Setup::default().start().await;
    let tools = json!([{"type": "web_search", "external_web_access": false}]);
    let body = json!({"input": "Hi", "tools": tools, "tool_choice": "auto", "max_output_tokens": 1});
    let response = server.post(RESPONSES, body).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "tools.web_search");
    assert_eq!(response.json::<Value>().await.unwrap()["tools"], tools);
}

#[tokio::test]
async fn functions_of_namespaces_have_two_names() {
    const CALL: &str = "<think>\nHm.</think>\n\n<tool_call>{\"name\": \"ns__weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
    let of_call = |call: &Value| {
        [&call["type"], &call["namespace"], &call["name"]].map(|field| field.as_str().unwrap().to_owned())
    };
    let expected = ["function_call", "ns", "weather"];
    let namespace = json!([{"type": "namespace", "name": "ns", "description": "It knows.", "tools": tools()}]);
    let server = Setup::scripted(CALL).roomy().start().await;
    let body = json!({"input": "Hi!", "tools": namespace, "max_output_tokens": length(CALL), "temperature": 0});
    let response = server.ask(RESPONSES, body.clone()).await;
    assert_eq!(of_call(response["output"].as_array().unwrap().last().unwrap()), expected, "{response}");
    assert_eq!(response["tools"], namespace);
    let events = server.stream_named(RESPONSES, body).await;
    let added = events.iter().rfind(|event| event["type"] == "response.output_item.added").unwrap();
    let done = events.iter().rfind(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(
        (of_call(&added["item"]), of_call(&done["item"])),
        (expected.map(str::to_owned), expected.map(str::to_owned))
    );
    let whole = events.iter().find(|event| event["type"] == "response.function_call_arguments.done").unwrap();
    assert_eq!(whole["name"], "weather");
    // A choice may have either name.
    let server = Setup::default().roomy().start().await;
    for name in ["weather", "ns__weather"] {
        let choice = json!({"type": "function", "name": name});
        let body = json!({"input": "Hi", "max_output_tokens": 100, "tools": namespace, "tool_choice": choice});
        let response = server.ask(RESPONSES, body).await;
        assert_eq!(of_call(&response["output"][0]), expected, "{response}");
    }
    // The model knows the longer one.
    let mut setup = Setup::default().roomy();
    setup.template = Some(SHOWING);
    let server = setup.start().await;
    let asking = |call: Value, tools: Value| {
        let call = with(json!({"type": "function_call", "call_id": "c", "arguments": "{}"}), call);
        let input = json!([{"role": "user", "content": "Hi"}, call, {"type": "function_call_output", "call_id": "c", "output": "x"}]);
        json!({"input": input, "tools": tools, "tool_choice": "none", "reasoning": {"effort": "low"}})
    };
    let now = |name: &str| json!({"type": "function", "name": name});
    let plain = asking(json!({"name": "ns__now"}), json!([now("ns__now")]));
    let spaced = asking(
        json!({"name": "now", "namespace": "ns"}),
        json!([{"type": "namespace", "name": "ns", "tools": [now("now")]}]),
    );
    assert_eq!(prompt(&server, spaced).await, prompt(&server, plain).await);
}

#[tokio::test]
async fn calls_stay_with_their_outputs() {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }}");
    let server = setup.start().await;
    let [user, said] = ["user", "assistant"].map(|role| json!({"role": role, "content": "Hi"}));
    let thought = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]});
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "now", "arguments": "{}"});
    let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "x"});
    let expected = json!([user, thought, said, call("a"), call("b"), output("a"), output("b")]);
    let expected = prompt(&server, json!({"input": expected})).await;
    for input in [
        json!([user, call("a"), said, thought, call("b"), output("a"), output("b")]),
        json!([user, call("a"), thought, call("b"), output("a"), said, output("b")]),
    ] {
        assert_eq!(prompt(&server, json!({"input": input})).await, expected, "{input}");
    }
}

#[tokio::test]
async fn the_model_is_told_of_outputs_that_it_cannot_see() {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }}");
    let server = setup.start().await;
    let asking = |output: Value| {
        let call = json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"});
        let output = json!({"type": "function_call_output", "call_id": "c", "output": output});
        json!({"input": [{"role": "user", "content": "Hi"}, call, output], "max_output_tokens": 1})
    };
    let seen =
        "I see:\n[image not shown: this model reads text only]\n[file \"a.pdf\" not shown: this model reads text only]";
    let output = json!([
        {"type": "input_text", "text": "I see:"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "high"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
    ]);
    let response = server.post(RESPONSES, asking(output.clone())).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-fields-without-effect"], "input.output.input_image, input.output.input_file");
    assert_eq!(prompt(&server, asking(output)).await, prompt(&server, asking(json!(seen))).await);
    // Where nothing else would do, it is refused.
    let response = server.post(RESPONSES, asking(json!([{"type": "input_video"}]))).await;
    assert_eq!(response.json::<Value>().await.unwrap()["error"]["param"], "input[2].output[0].type");
}

#[tokio::test]
async fn what_codex_adds_to_items_is_named() {
    let mut setup = Setup::default().roomy();
    setup.template = Some("{{ messages | tojson }}");
    let server = setup.start().await;
    let passed = json!({"internal_chat_message_metadata_passthrough": {"turn_id": "1"}});
    let told = json!({"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": [{"type": "input_text", "text": "Hi"}]});
    let call = json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", "encrypted_function_args": ["x"]});
    let output = json!({"type": "function_call_output", "call_id": "c", "name": "look", "output": "x"});
    let input: Vec<Value> = [told, call, output].into_iter().map(|item| with(item, passed.clone())).collect();
    let body = json!({"input": input, "max_output_tokens": 1});
    let response = server.post(RESPONSES, body.clone()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["x-fields-without-effect"],
        "input.author, input.recipient, input.internal_chat_message_metadata_passthrough, input.encrypted_function_args"
    );
    let plain = json!([
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]);
    assert_eq!(prompt(&server, body).await, prompt(&server, json!({"input": plain})).await);
}
