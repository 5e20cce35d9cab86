//! Items of `/v1/responses` that come by their names, the list of what a response was asked with, and the tokens of that.

use serde_json::{Value, json};

use crate::responses::{RESPONSES, prompt, tools};
use crate::support::{Server, Setup, THOUGHT_AND_CALLS as TEXT, length, with};

/// Shows all of a conversation, and how Hermes writes calls of tools; thinks.
const SHOWING_ALL: &str = "{{ messages | tojson }}{% if tools %} {{ tools | tojson }} <tool_call>{% endif %}\
                           {% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}";

async fn showing_all(text: &str) -> Server {
    let mut setup = Setup::scripted(text);
    setup.fake.info.max_model_len = 4096;
    setup.fake.info.num_blocks = 4096;
    setup.template = Some(SHOWING_ALL);
    setup.start().await
}

async fn failed(response: reqwest::Response, status: u16) -> Value {
    let got = response.status();
    let error: Value = response.json().await.unwrap();
    assert_eq!(got, status, "{error}");
    error["error"].clone()
}

/// A second turn in which the items of the first stand so.
fn second_turn(first: &Value, item: impl Fn(&Value) -> Value) -> Value {
    let output = first["output"].as_array().unwrap();
    let mut input = vec![json!({"role": "user", "content": "Hi!"})];
    input.extend(output.iter().map(item));
    for call in output.iter().filter(|item| item["type"] == "function_call") {
        input.push(json!({"type": "function_call_output", "call_id": call["call_id"], "output": "x"}));
    }
    json!({"input": input, "tools": tools(), "tool_choice": "none"})
}

#[tokio::test]
async fn items_may_come_by_their_names() {
    let server = showing_all(TEXT).await;
    let asking = json!({"input": "Hi!", "tools": tools(), "max_output_tokens": length(TEXT)});
    let first = server.ask(RESPONSES, asking.clone()).await;
    assert_eq!(first["output"].as_array().unwrap().len(), 4, "{first}");
    let expected = prompt(&server, second_turn(&first, Value::clone)).await;
    let named = second_turn(&first, |item| json!({"type": "item_reference", "id": item["id"]}));
    assert_eq!(prompt(&server, named.clone()).await, expected);
    // As the clients of some write it, without a type.
    assert_eq!(prompt(&server, second_turn(&first, |item| json!({"id": item["id"]}))).await, expected);
    // Nothing of it is without effect; that of which there is no more than the name is.
    let response = server.post(RESPONSES, with(named.clone(), json!({"max_output_tokens": 1}))).await;
    assert!(response.headers().get("x-fields-without-effect").is_none());
    let unknown = json!({"input": [{"type": "reasoning", "id": "rs_x", "summary": []}, {"role": "user", "content": "Hi"}], "max_output_tokens": 1});
    assert_eq!(server.post(RESPONSES, unknown).await.headers()["x-fields-without-effect"], "input.id");
    // A thought that has a name alone is looked for.
    let bare = |item: &Value| match item["type"].as_str() {
        Some("reasoning") => json!({"type": "reasoning", "id": item["id"], "summary": []}),
        _ => json!({"type": "item_reference", "id": item["id"]}),
    };
    assert_eq!(prompt(&server, second_turn(&first, bare)).await, expected);
    // The items of a stream have such names, too.
    let events = server.stream_named(RESPONSES, asking.clone()).await;
    let streamed = events.last().unwrap()["response"].clone();
    let named_in_stream = second_turn(&streamed, |item| json!({"type": "item_reference", "id": item["id"]}));
    assert_eq!(prompt(&server, named_in_stream).await, prompt(&server, second_turn(&streamed, Value::clone)).await);
    // What is kept no longer, and what never was.
    server.client.delete(format!("{}{RESPONSES}/{}", server.url, first["id"].as_str().unwrap())).send().await.unwrap();
    let gone = failed(server.post(RESPONSES, named).await, 404).await;
    assert_eq!((&gone["param"], &gone["code"]), (&json!("input[1].id"), &json!("item_not_found")));
    let message = gone["message"].as_str().unwrap();
    assert!(message.starts_with("Item with id 'rs_") && message.contains("--max-stored-responses"), "{message}");
    let unkept = server.ask(RESPONSES, with(asking, json!({"store": false}))).await;
    let named = json!({"input": [{"type": "item_reference", "id": unkept["output"][1]["id"]}]});
    assert_eq!(failed(server.post(RESPONSES, named).await, 404).await["param"], "input[0].id");
    for (item, status, param) in [
        (json!({"type": "item_reference"}), 400, "input[0].id"),
        (json!({"type": "item_reference", "id": 3}), 400, "input[0].id"),
        (json!({"type": "item_reference", "id": "msg_x"}), 404, "input[0].id"),
        (json!({"type": "item_reference", "id": "msg_x", "content": "Hi"}), 400, "input[0].content"),
    ] {
        let error = failed(server.post(RESPONSES, json!({"input": [item]})).await, status).await;
        assert_eq!(error["param"], param, "{item}");
    }
}

#[tokio::test]
async fn what_a_response_was_asked_with_is_listed() {
    let mut setup = Setup::scripted("Yes.").roomy();
    setup.template = Some("{{ messages | tojson }}");
    let server = setup.start().await;
    let input = json!([
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "\"Hi\""}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]);
    let yes = length("Yes.");
    let first = server.ask(RESPONSES, json!({"input": input, "instructions": "Be.", "max_output_tokens": yes})).await;
    let next = json!({"input": "And?", "previous_response_id": first["id"], "max_output_tokens": yes});
    let second = server.ask(RESPONSES, next).await;
    let path =
        |response: &Value, query: &str| format!("{RESPONSES}/{}/input_items{query}", response["id"].as_str().unwrap());
    let list = async |response: &Value, query: &str| {
        let response = server.get(&path(response, query)).await;
        assert_eq!(response.status(), 200, "{query}");
        response.json::<Value>().await.unwrap()
    };
    let plain = |list: &Value| {
        let mut items = list["data"].clone();
        for item in items.as_array_mut().unwrap() {
            assert_eq!(item.as_object_mut().unwrap().shift_remove("status"), Some(json!("completed")));
            assert!(item.as_object_mut().unwrap().shift_remove("id").is_some());
        }
        items.as_array().unwrap().clone()
    };
    let said = |role: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]});
    let answered = |text: &str| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]});
    let mut expected = vec![
        said("system", "Be kind."),
        said("user", "\"Hi\""),
        json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}),
        answered("I look."),
        json!({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}),
        json!({"type": "function_call_output", "call_id": "c", "output": "x"}),
    ];
    let listed = list(&first, "?order=asc").await;
    assert_eq!(plain(&listed), expected);
    assert_eq!((&listed["object"], &listed["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&listed["first_id"], &listed["last_id"]), (&listed["data"][0]["id"], &listed["data"][5]["id"]));
    // That of the next has the answer, too, and the last item first.
    expected.extend([answered("Yes."), said("user", "And?")]);
    expected.reverse();
    let listed = list(&second, "").await;
    assert_eq!(plain(&listed), expected);
    let mut pages = Vec::new();
    let mut query = "?limit=3".to_owned();
    loop {
        let page = list(&second, &query).await;
        pages.extend(page["data"].as_array().unwrap().clone());
        query = format!("?limit=3&after={}", page["last_id"].as_str().unwrap());
        if page["has_more"] == false {
            break;
        }
    }
    assert_eq!(json!(pages), listed["data"]);
    let beyond = list(&second, &query).await;
    assert_eq!(beyond, json!({"object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false}));
    let response = server.get(&path(&first, "?include%5B%5D=message.input_image.image_url")).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "include");
    for (query, param) in [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?order=up", "order"),
        ("?after=msg_x", "after"),
        ("?before=msg_x", "before"),
    ] {
        assert_eq!(failed(server.get(&path(&first, query)).await, 400).await["param"], param, "{query}");
    }
    let unknown = server.get(&format!("{RESPONSES}/resp_x/input_items")).await;
    assert_eq!(failed(unknown, 404).await["code"], "response_not_found");
}

#[tokio::test]
async fn tokens_are_counted_without_an_answer() {
    let server = showing_all(TEXT).await;
    let count = async |body: Value| server.ask("/v1/responses/input_tokens", body).await;
    let body = json!({"input": "Hi!", "tools": tools(), "instructions": "Be."});
    let response = server.ask(RESPONSES, with(body.clone(), json!({"max_output_tokens": 4}))).await;
    let expected = |response: &Value| json!({"object": "response.input_tokens", "input_tokens": response["usage"]["input_tokens"]});
    assert_eq!(count(body).await, expected(&response));
    let next = json!({"input": "And?", "previous_response_id": response["id"], "max_output_tokens": 1});
    let counted = count(next.clone()).await;
    assert_eq!(counted, expected(&server.ask(RESPONSES, next).await));
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": [{"role": "nobody"}]}), "input[0].content"),
        (json!({"input": "Hi", "max_tokens": 3}), "max_tokens"),
    ] {
        let response = server.post("/v1/responses/input_tokens", body).await;
        assert_eq!(failed(response, 400).await["param"], param);
    }
    let response = server.post("/v1/responses/input_tokens", json!({"input": "Hi", "truncation": "auto"})).await;
    assert_eq!(response.headers()["x-fields-without-effect"], "truncation");
}
