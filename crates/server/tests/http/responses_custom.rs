//! Tools of `/v1/responses` whose input is free text, as Codex' `apply_patch`, and what the model is told of them.

use serde_json::{Value, json};

use crate::responses::{RESPONSES, SHOWING, prompt};
use crate::support::{Server, Setup, length, with};

const INPUT: &str = "*** Begin Patch\n+\"a\"\n*** End Patch";

fn apply_patch() -> Value {
    let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"});
    json!({"type": "custom", "name": "apply_patch", "description": "It edits.", "format": format})
}

/// What the model is told of it.
fn as_function() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
        "required": ["input"],
        "additionalProperties": false,
    });
    let description = "It edits.\n\nThe input must match this Lark grammar:\nstart: /.+/s";
    json!({"type": "function", "name": "apply_patch", "description": description, "parameters": parameters})
}

/// What the model writes to call a tool of this name.
fn call(name: &str) -> String {
    format!("<tool_call>{}</tool_call>", json!({"name": name, "arguments": {"input": INPUT}}))
}

async fn showing() -> Server {
    let mut setup = Setup::default().roomy();
    setup.template = Some(SHOWING);
    setup.start().await
}

#[tokio::test]
async fn a_call_has_free_text() {
    let text = call("apply_patch");
    let server = Setup::scripted(&text).roomy().start().await;
    let body = json!({"input": "Hi!", "tools": [apply_patch()], "max_output_tokens": length(&text)});
    let response = server.post(RESPONSES, body.clone()).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "tools.format");
    let response: Value = response.json().await.unwrap();
    assert_eq!(response["tools"], json!([apply_patch()]));
    let called = response["output"].as_array().unwrap().last().unwrap();
    assert!(called["id"].as_str().unwrap().starts_with("ctc_"), "{response}");
    let fields = ["type", "name", "input", "status"].map(|name| called[name].as_str().unwrap());
    assert_eq!(fields, ["custom_tool_call", "apply_patch", INPUT, "completed"]);
    let events = server.stream_named(RESPONSES, body).await;
    let of = |name: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["type"] == format!("response.{name}")).collect()
    };
    let added = &of("output_item.added").last().unwrap()["item"];
    assert_eq!(
        (&added["type"], &added["input"], &added["status"]),
        (&json!("custom_tool_call"), &json!(""), &json!("in_progress"))
    );
    let deltas = of("custom_tool_call_input.delta");
    assert_eq!(deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect::<String>(), INPUT);
    let done = of("custom_tool_call_input.done");
    assert_eq!((done.len(), &done[0]["input"]), (1, &json!(INPUT)));
    let item = &of("output_item.done").last().unwrap()["item"];
    assert_eq!((&item["input"], &item["id"]), (&json!(INPUT), &added["id"]));
    assert!(deltas.iter().chain(&done).all(|event| event["item_id"] == item["id"]));
    assert!(of("function_call_arguments.delta").is_empty() && of("function_call_arguments.done").is_empty());
    assert_eq!(events.last().unwrap()["response"]["output"].as_array().unwrap().last().unwrap(), item);
    // One that is cut off has what there is of the text.
    let cut = text.split_once("Patch").unwrap().0;
    let body = json!({"input": "Hi!", "tools": [apply_patch()], "max_output_tokens": length(cut)});
    let response = server.ask(RESPONSES, body).await;
    let called = response["output"].as_array().unwrap().last().unwrap();
    assert_eq!(called["status"], "incomplete");
    assert!(INPUT.starts_with(called["input"].as_str().unwrap()), "{called}");
}

#[tokio::test]
async fn the_model_knows_a_function_of_a_string() {
    let server = showing().await;
    let asking = |tool: Value, call: Value, output: &str| {
        let call = with(json!({"call_id": "c", "name": "apply_patch"}), call);
        let input =
            json!([{"role": "user", "content": "Hi"}, call, {"type": output, "call_id": "c", "output": "Done."}]);
        json!({"input": input, "tools": [tool], "tool_choice": "none", "reasoning": {"effort": "low"}})
    };
    let arguments = json!({"input": INPUT}).to_string();
    let plain = asking(as_function(), json!({"type": "function_call", "arguments": arguments}), "function_call_output");
    let custom = asking(apply_patch(), json!({"type": "custom_tool_call", "input": INPUT}), "custom_tool_call_output");
    assert_eq!(prompt(&server, custom.clone()).await, prompt(&server, plain).await);
    // An output may be parts.
    let mut parts = custom.clone();
    parts["input"][2]["output"] = json!([{"type": "input_text", "text": "Done."}]);
    assert_eq!(prompt(&server, parts).await, prompt(&server, custom.clone()).await);
    // Free text of any form, which nothing is left out of.
    let mut free = custom.clone();
    free["tools"][0]["format"] = json!({"type": "text"});
    let response = server.post(RESPONSES, with(free, json!({"max_output_tokens": 1}))).await;
    assert_eq!((response.status().as_u16(), response.headers().get("x-fields-without-effect")), (200, None));
}

#[tokio::test]
async fn a_conversation_goes_on_after_a_call_of_free_text() {
    let text = call("apply_patch");
    let mut setup = Setup::scripted(&text).roomy();
    setup.template = Some(SHOWING);
    let server = setup.start().await;
    let fields = json!({"tools": [apply_patch()], "reasoning": {"effort": "low"}});
    let body = with(json!({"input": "Hi!", "max_output_tokens": length(&text)}), fields.clone());
    let first = server.ask(RESPONSES, body).await;
    let called = first["output"].as_array().unwrap().last().unwrap();
    let output = json!({"type": "custom_tool_call_output", "call_id": called["call_id"], "output": "Done."});
    let next = json!({"input": [output], "previous_response_id": first["id"]});
    let expected = prompt(&server, with(next, fields.clone())).await;
    for item in [called.clone(), json!({"type": "item_reference", "id": called["id"]})] {
        let input = json!([{"role": "user", "content": "Hi!"}, item, output]);
        assert_eq!(prompt(&server, with(json!({"input": input}), fields.clone())).await, expected, "{input}");
    }
}

#[tokio::test]
async fn a_choice_may_name_one_and_a_namespace_may_have_one() {
    let server = Setup::default().roomy().start().await;
    let choice = json!({"type": "custom", "name": "apply_patch"});
    let among = json!({"type": "allowed_tools", "mode": "required", "tools": [choice]});
    for choice in [choice, among, json!("required")] {
        let body = json!({"input": "Hi", "max_output_tokens": 400, "tools": [apply_patch()], "tool_choice": choice});
        let response = server.ask(RESPONSES, body).await;
        assert_eq!((&response["output"][0]["type"], &response["tool_choice"]), (&json!("custom_tool_call"), &choice));
        assert!(response["output"][0]["input"].is_string() && response["output"][0].get("arguments").is_none());
    }
    let text = call("ns__apply_patch");
    let server = Setup::scripted(&text).roomy().start().await;
    let namespace = json!({"type": "namespace", "name": "ns", "tools": [apply_patch()]});
    let body = json!({"input": "Hi", "max_output_tokens": length(&text), "tools": [namespace]});
    let response = server.ask(RESPONSES, body).await;
    let called = response["output"].as_array().unwrap().last().unwrap();
    let fields = ["type", "namespace", "name", "input"].map(|name| called[name].as_str().unwrap());
    assert_eq!(fields, ["custom_tool_call", "ns", "apply_patch", INPUT]);
    // What comes back is what the model wrote.
    let server = showing().await;
    let asking = |call: Value| {
        let call = with(json!({"type": "custom_tool_call", "call_id": "c", "input": "x"}), call);
        let input = json!([{"role": "user", "content": "Hi"}, call]);
        json!({"input": input, "tools": [apply_patch()], "tool_choice": "none", "reasoning": {"effort": "low"}})
    };
    let spaced = prompt(&server, asking(json!({"name": "apply_patch", "namespace": "ns"}))).await;
    assert_eq!(spaced, prompt(&server, asking(json!({"name": "ns__apply_patch"}))).await);
}

#[tokio::test]
async fn what_is_wrong_with_one_is_named() {
    let server = Setup::default().roomy().start().await;
    let format = |format: Value| json!({"tools": [{"type": "custom", "name": "x", "format": format}]});
    for (fields, param) in [
        (json!({"tools": [{"type": "custom"}]}), "tools[0].name"),
        (json!({"tools": [{"type": "custom", "name": 3}]}), "tools[0].name"),
        (json!({"tools": [{"type": "custom", "name": "x", "parameters": {}}]}), "tools[0].parameters"),
        (json!({"tools": [{"type": "custom", "name": "x"}, {"type": "function", "name": "x"}]}), "tools[1].name"),
        (format(json!("text")), "tools[0].format"),
        (format(json!({"type": "xml"})), "tools[0].format.type"),
        (format(json!({"type": "grammar", "syntax": "ebnf", "definition": "x"})), "tools[0].format.syntax"),
        (format(json!({"type": "grammar", "syntax": "lark"})), "tools[0].format.definition"),
        (format(json!({"type": "grammar", "syntax": "regex", "definition": 3})), "tools[0].format.definition"),
        (json!({"tools": [apply_patch()], "tool_choice": {"type": "custom"}}), "tool_choice"),
        (json!({"tools": [apply_patch()], "tool_choice": {"type": "custom", "name": "x"}}), "tool_choice"),
        (json!({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "x"}]}), "input[0].input"),
        (json!({"input": [{"type": "custom_tool_call_output", "call_id": "c"}]}), "input[0].output"),
    ] {
        let response = server.post(RESPONSES, with(json!({"input": "Hi"}), fields.clone())).await;
        assert_eq!(response.status(), 400, "{fields}");
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["param"], param, "{fields}");
    }
}
