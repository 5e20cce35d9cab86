//! `/v1/chat/completions`: the template, streams, log-probabilities and tools.

use serde_json::{Value, json};
use vllm_apple::text::{ChatInput, ChatTemplate};

use crate::support::{MODEL, Setup, checkpoint, choices_of, tokenizer, with};

const CHAT: &str = "/v1/chat/completions";

fn rendered(messages: &[Value]) -> Vec<u32> {
    let tokenizer = tokenizer();
    let template = ChatTemplate::from_dir(&checkpoint(), &tokenizer, None).unwrap();
    template.prompt(&tokenizer, &ChatInput::new(messages)).unwrap()
}

#[tokio::test]
async fn messages_go_through_the_template() {
    let server = Setup::scripted("Hello to you").start().await;
    let messages = [json!({"role": "system", "content": "Be kind."}), json!({"role": "user", "content": "Hi!"})];
    let parts = json!([{"type": "text", "text": "Hi!"}]);
    for content in [json!("Hi!"), parts] {
        let mut messages = messages.clone();
        messages[1]["content"] = content;
        let length = tokenizer().encode("Hello to you", false).unwrap().len();
        let body =
            json!({"model": MODEL, "messages": messages, "max_completion_tokens": length, "return_token_ids": true});
        let answer = server.ask(CHAT, body).await;
        let choice = &answer["choices"][0];
        let message = json!({"role": "assistant", "content": "Hello to you", "refusal": null, "reasoning": null});
        assert_eq!(choice["message"], message);
        assert_eq!(choice["finish_reason"], "length");
        assert_eq!(answer["object"], "chat.completion");
        assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
        let prompt = rendered(&plain(&messages));
        assert_eq!(answer["prompt_token_ids"], json!(prompt));
        assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    }
}

fn plain(messages: &[Value]) -> Vec<Value> {
    let text = |content: &Value| content.as_str().map_or("Hi!".to_owned(), str::to_owned);
    messages.iter().map(|m| json!({"role": m["role"], "content": text(&m["content"])})).collect()
}

#[tokio::test]
async fn a_stream_is_the_whole_reply_in_pieces() {
    let server = Setup::default().start().await;
    let messages = json!([{"role": "user", "content": "Tell me"}]);
    let body = json!({
        "messages": messages, "seed": 5, "n": 2, "max_tokens": 12, "logprobs": true, "top_logprobs": 3,
    });
    let whole = server.ask(CHAT, body.clone()).await;
    let events = server.stream(CHAT, body).await;
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"]));
    for index in 0..2 {
        let choice = &whole["choices"][index];
        let parts = choices_of(&events, index);
        assert_eq!(parts[0]["delta"], json!({"role": "assistant", "content": ""}));
        let text: String = parts.iter().filter_map(|part| part["delta"]["content"].as_str()).collect();
        assert_eq!(choice["message"]["content"], text);
        let logprobs = parts.iter().filter_map(|part| part["logprobs"]["content"].as_array()).flatten();
        assert!(logprobs.eq(choice["logprobs"]["content"].as_array().unwrap()));
        assert_eq!(parts.last().unwrap()["finish_reason"], choice["finish_reason"]);
    }
}

#[tokio::test]
async fn a_streams_first_chunk_has_the_prompts_tokens() {
    let server = Setup::default().start().await;
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "n": 2, "max_tokens": 2, "ignore_eos": true, "return_token_ids": true,
    });
    let whole = server.ask(CHAT, body.clone()).await;
    let events = server.stream(CHAT, body).await;
    assert_eq!(events[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    assert!(whole["prompt_token_ids"].is_array());
    assert!(events[1..].iter().all(|event| event.get("prompt_token_ids").is_none()));
}

#[tokio::test]
async fn logprobs_have_openais_shape() {
    let server = Setup::scripted("🦀").start().await;
    let ids = tokenizer().encode("🦀", false).unwrap();
    let messages = json!([{"role": "user", "content": "A crab"}]);
    let body = json!({"messages": messages, "max_tokens": ids.len(), "logprobs": true, "top_logprobs": 2});
    let answer = server.ask(CHAT, body.clone()).await;
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), ids.len());
    assert!(content.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
    // The bytes of the tokens make the character that none of them is.
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), "🦀");
    let answer = server.ask(CHAT, json!({"messages": body["messages"], "max_tokens": 1})).await;
    assert!(answer["choices"][0]["logprobs"].is_null());
}

#[tokio::test]
async fn a_reply_without_a_length_ends_with_the_model() {
    let server = Setup::default().start().await;
    let messages = json!([{"role": "user", "content": "Go on"}]);
    let answer = server.ask(CHAT, json!({"messages": messages, "ignore_eos": true})).await;
    assert_eq!(answer["usage"]["total_tokens"], 256);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");

    let mut setup = Setup::default();
    setup.defaults.max_new_tokens = Some(7);
    let server = setup.start().await;
    let answer = server.ask(CHAT, json!({"messages": messages, "ignore_eos": true})).await;
    assert_eq!(answer["usage"]["completion_tokens"], 7);
}

#[tokio::test]
async fn prompt_logprobs_stand_beside_the_choices() {
    let server = Setup::default().start().await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let answer = server.ask(CHAT, json!({"messages": messages, "max_tokens": 1, "prompt_logprobs": 1})).await;
    let logprobs = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize);
}

#[tokio::test]
async fn prompt_logprobs_are_held_once_for_all_answers() {
    let mut setup = Setup::default();
    // Less than the log-probabilities of a prompt take 64 times, more than they take once, put into words.
    setup.config.max_request_memory = 12 << 20;
    let server = setup.start().await;
    let messages = json!([{"role": "user", "content": "word ".repeat(100)}]);
    let body = json!({"messages": messages, "max_tokens": 1, "prompt_logprobs": 20, "n": 64});
    let answer = server.ask(CHAT, body).await;
    let logprobs = answer["prompt_logprobs"].as_array().unwrap();
    assert!(logprobs.len() * 64 * 21 * 96 > 12 << 20, "{}", logprobs.len());
    // Each choice of a completion is sent them: so is their text.
    let body = json!({"prompt": vec![5; 200], "max_tokens": 1, "prompt_logprobs": 20, "n": 64});
    let answer = server.complete(body).await;
    let choices = answer["choices"].as_array().unwrap();
    assert!(choices.iter().all(|choice| choice["prompt_logprobs"] == choices[0]["prompt_logprobs"]));
    assert!(choices[0]["prompt_logprobs"].to_string().len() * choices.len() > 12 << 20);
}

#[tokio::test]
async fn the_last_message_can_be_continued() {
    let server = Setup::default().start().await;
    let messages = [json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": "Well, I"})];
    let body = json!({"messages": messages, "continue_final_message": true, "max_tokens": 1, "return_token_ids": true});
    let answer = server.ask(CHAT, body).await;
    let ids: Vec<u32> = serde_json::from_value(answer["prompt_token_ids"].clone()).unwrap();
    assert!(tokenizer().decode(&ids, false).unwrap().ends_with("Well, I"));
}

#[tokio::test]
async fn tools_and_template_variables_reach_the_template() {
    let template = Some("{{ tools }}{{ messages }}{{ enable_thinking }} <tool_call>");
    let server = Setup { template, ..Setup::default() }.start().await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]);
    for (field, value) in [("tools", tools), ("tool_choice", json!("none"))] {
        let mut body = json!({"messages": messages, "max_tokens": 1});
        body[field] = value;
        server.ask(CHAT, body).await;
    }
    let body = json!({"messages": messages, "max_tokens": 1, "chat_template_kwargs": {"enable_thinking": false}});
    server.ask(CHAT, body).await;
}

/// As vLLM's ids: the header's name comes before the body's.
#[tokio::test]
async fn the_header_x_request_id_names_a_request() {
    let server = Setup::default().start().await;
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    let send = async |path: &str, body: &Value, name: &[u8]| {
        let url = format!("{}{path}", server.url);
        server.client.post(url).header("X-Request-Id", name).json(body).send().await.unwrap()
    };
    let anthropics = with(chat.clone(), json!({"model": MODEL}));
    for (path, body, id) in [
        (CHAT, chat.clone(), "chatcmpl-a b"),
        ("/v1/completions", json!({"prompt": "Hi", "max_tokens": 1}), "cmpl-a b"),
        ("/v1/messages", anthropics, "chatcmpl-a b"),
    ] {
        let answer: Value = send(path, &body, b"a b").await.json().await.unwrap();
        assert_eq!(answer["id"], id);
        let streamed = send(path, &with(body.clone(), json!({"stream": true})), b"a b").await.text().await.unwrap();
        assert!(streamed.contains(&format!("\"id\":\"{id}\"")), "{streamed}");
        for name in [b"x".repeat(257).as_slice(), b"", "ä".as_bytes()] {
            let refused = send(path, &body, name).await;
            assert_eq!(refused.status(), 400);
            assert!(refused.text().await.unwrap().contains("`X-Request-Id` must have"));
        }
    }
    let both = send(CHAT, &with(chat.clone(), json!({"request_id": "c"})), &b"x".repeat(256)).await;
    assert_eq!(both.headers()["x-fields-without-effect"], "request_id");
    assert_eq!(both.json::<Value>().await.unwrap()["id"], format!("chatcmpl-{}", "x".repeat(256)));
    assert_eq!(server.ask(CHAT, with(chat, json!({"request_id": "c"}))).await["id"], "chatcmpl-c");
    let response = send("/v1/responses", &json!({"input": "Hi", "max_output_tokens": 1}), &b"x".repeat(257)).await;
    assert!(response.json::<Value>().await.unwrap()["id"].as_str().unwrap().starts_with("resp_"));
}
