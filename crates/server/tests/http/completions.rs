//! `/v1/completions`: prompts, answers, streams and log-probabilities, against the fake executor's oracle.

use std::sync::Arc;

use serde_json::{Value, json};
use vllm_apple_engine::fake::{expected_output, expected_prompt_logprobs};
use vllm_apple_engine::{EngineRequest, FinishReason};
use vllm_apple_executor::SamplingParams;

use crate::support::{MODEL, Setup, choices_of, tokenizer};

/// What the fake answers to a greedy request.
fn oracle(prompt: &[u32], max_tokens: u32) -> (Vec<u32>, FinishReason) {
    let params = SamplingParams { temperature: 0.0, max_tokens: Some(max_tokens), ..SamplingParams::default() };
    let mut request = EngineRequest::new(prompt.to_vec(), params);
    request.eos_token_ids = Arc::from(tokenizer().eos_token_ids());
    expected_output(&Setup::default().fake.info, &request)
}

/// The oracle's text: without the end token, which never shows.
fn oracle_text(prompt: &[u32], max_tokens: u32) -> String {
    let (mut tokens, finish) = oracle(prompt, max_tokens);
    if matches!(finish, FinishReason::Stop { .. }) {
        tokens.pop();
    }
    let mut text = tokenizer().decode(&tokens, true).unwrap();
    let bytes: Vec<u8> = tokens.iter().flat_map(|&id| tokenizer().token_bytes(id)).collect();
    // A character that the end cuts off is none.
    let end = bytes.utf8_chunks().last().map_or(&[][..], |last| last.invalid());
    if std::str::from_utf8(end).is_err_and(|error| error.error_len().is_none()) {
        text.pop();
    }
    text
}

#[tokio::test]
async fn a_text_and_its_tokens_give_the_oracles_answer() {
    let server = Setup::default().start().await;
    let ids = tokenizer().encode("The quick brown fox", true).unwrap();
    for prompt in [json!("The quick brown fox"), json!(ids)] {
        let body = json!({"model": MODEL, "prompt": prompt, "temperature": 0, "return_token_ids": true});
        let answer = server.complete(body).await;
        // OpenAI's default of 16 tokens.
        let (tokens, _) = oracle(&ids, 16);
        let choice = &answer["choices"][0];
        assert_eq!(choice["token_ids"], json!(tokens));
        assert_eq!(choice["prompt_token_ids"], json!(ids));
        assert_eq!(choice["text"], oracle_text(&ids, 16));
        assert_eq!(answer["object"], "text_completion");
        assert_eq!(answer["model"], MODEL);
        assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
        assert_eq!(answer["usage"]["prompt_tokens"], ids.len());
        assert_eq!(answer["usage"]["completion_tokens"], tokens.len());
        assert_eq!(answer["usage"]["total_tokens"], ids.len() + tokens.len());
    }
}

#[tokio::test]
async fn cached_tokens_count_once_for_all_answers_and_not_across_salts() {
    let server = Setup::default().start().await;
    let cached = async |n: usize, salt: Option<&str>| {
        let prompt: Vec<u32> = (5..45).collect();
        let mut body = json!({"prompt": prompt, "n": n, "max_tokens": 2});
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        server.complete(body).await["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!(cached(1, None).await, 0);
    assert_eq!(cached(3, None).await, 32);
    assert_eq!(cached(1, Some("mine")).await, 0);
    assert_eq!(cached(3, Some("mine")).await, 32);
    assert_eq!(cached(1, Some("yours")).await, 0);
}

#[tokio::test]
async fn a_request_without_a_token_is_400_and_those_beside_it_are_right() {
    let server = Setup::default().start().await;
    // Behind the one text that may come there is only the end, which must not come yet.
    let poison = json!({"prompt": [5, 6], "min_tokens": 20, "max_tokens": 20, "guided_choice": ["a"]});
    let good = json!({"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 8, "return_token_ids": true});
    let asks = (0..20).map(|_| server.complete(good.clone()));
    let poisons = (0..5).map(|_| server.post("/v1/completions", poison.clone()));
    let (answers, refusals) =
        tokio::join!(futures_util::future::join_all(asks), futures_util::future::join_all(poisons));
    for answer in answers {
        assert_eq!(answer["choices"][0]["token_ids"], json!(oracle(&[5, 6, 7], 8).0));
    }
    for refusal in refusals {
        assert_eq!(refusal.status(), 400);
        let body: Value = refusal.json().await.unwrap();
        assert!(body["error"]["message"].as_str().unwrap().contains("`min_tokens` holds back"), "{body}");
    }
    server.idle().await;
}

#[tokio::test]
async fn several_prompts_and_answers_come_in_order() {
    let server = Setup::default().start().await;
    let prompts = json!([[5, 6, 7], [8, 9], [10]]);
    let answer = server.complete(json!({"prompt": prompts, "n": 2, "temperature": 0, "max_tokens": 6})).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    for (index, prompt) in [vec![5, 6, 7], vec![5, 6, 7], vec![8, 9], vec![8, 9], vec![10], vec![10]].iter().enumerate()
    {
        assert_eq!(choices[index]["index"], index);
        assert_eq!(choices[index]["text"], oracle_text(prompt, 6));
    }
    // A prompt counts once, whatever n is.
    assert_eq!(answer["usage"]["prompt_tokens"], 6);
    let texts = server.complete(json!({"prompt": ["one", "two"], "temperature": 0, "max_tokens": 3})).await;
    let ids = tokenizer().encode("two", true).unwrap();
    assert_eq!(texts["choices"][1]["text"], oracle_text(&ids, 3));
}

#[tokio::test]
async fn the_nth_answer_has_the_nth_seed() {
    let server = Setup::default().start().await;
    let ask = |n: u32, seed: i64| {
        server.complete(json!({"prompt": [5, 6], "n": n, "seed": seed, "max_tokens": 8, "return_token_ids": true}))
    };
    let both = ask(2, 41).await;
    let (first, second) = (ask(1, 41).await, ask(1, 42).await);
    assert_eq!(both["choices"][0]["token_ids"], first["choices"][0]["token_ids"]);
    assert_eq!(both["choices"][1]["token_ids"], second["choices"][0]["token_ids"]);
    assert_ne!(both["choices"][0]["token_ids"], both["choices"][1]["token_ids"]);
    // vLLM's seeds are signed.
    ask(1, -1).await;
}

#[tokio::test]
async fn a_stream_is_the_whole_answer_in_pieces() {
    let server = Setup::default().start().await;
    let cases = [
        json!({"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 40}),
        json!({"prompt": "some text", "seed": 3, "n": 3, "max_tokens": 20, "logprobs": 2}),
        json!({"prompt": ["a", "b"], "seed": 3, "echo": true, "max_tokens": 5, "logprobs": 1, "return_token_ids": true}),
        json!({"prompt": "a", "seed": 1, "max_tokens": 30, "skip_special_tokens": false, "ignore_eos": true}),
        json!({"prompt": "a prompt", "echo": true, "max_tokens": 0, "logprobs": 0}),
        json!({"prompt": ["a prompt", "b"], "seed": 2, "n": 3, "echo": true, "max_tokens": 5, "logprobs": 2}),
        json!({"prompt": "a", "seed": 2, "n": 3, "echo": true, "max_tokens": 0, "logprobs": 1}),
    ];
    for case in cases {
        let whole = server.complete(case.clone()).await;
        let events = server.stream("/v1/completions", case.clone()).await;
        let choices = whole["choices"].as_array().unwrap();
        for (index, choice) in choices.iter().enumerate() {
            let parts = choices_of(&events, index);
            let text: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
            assert_eq!(text, choice["text"], "{case}");
            assert_eq!(merged(&parts, "logprobs"), choice["logprobs"], "{case}");
            assert_eq!(parts.last().unwrap()["finish_reason"], choice["finish_reason"]);
            assert!(parts[..parts.len() - 1].iter().all(|part| part["finish_reason"].is_null()));
            if let Value::Array(ids) = &choice["token_ids"] {
                let parts = parts.iter().flat_map(|part| part["token_ids"].as_array().unwrap());
                assert!(parts.eq(ids), "{case}");
            }
        }
    }
}

/// The object `field` of a stream's parts with their lists joined; `null` if no part has it.
fn merged(parts: &[&Value], field: &str) -> Value {
    let mut whole = parts[0][field].clone();
    for part in &parts[1..] {
        for (name, list) in part[field].as_object().into_iter().flatten() {
            whole[name].as_array_mut().unwrap().extend(list.as_array().unwrap().iter().cloned());
        }
    }
    whole
}

#[tokio::test]
async fn characters_of_many_tokens_are_never_split() {
    let text = "naïve 世界 🦀👩‍👩‍👧 done";
    let server = Setup::scripted(text).start().await;
    let num_tokens = tokenizer().encode(text, false).unwrap().len();
    let body = json!({"prompt": [5], "max_tokens": num_tokens, "ignore_eos": true, "return_token_ids": true});
    let events = server.stream("/v1/completions", body).await;
    let parts = choices_of(&events, 0);
    let joined: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
    assert_eq!(joined, text);
    assert!(parts.iter().all(|part| !part["text"].as_str().unwrap().contains('\u{fffd}')));
    // The test means something only if a character did take several tokens.
    assert!(parts.iter().any(|part| part["token_ids"].as_array().unwrap().len() > 1));
}

#[tokio::test]
async fn stop_strings_end_the_text_over_token_borders() {
    let server = Setup::scripted("one two three four five").start().await;
    for (stop, include, expected) in [
        (json!("ee fo"), false, "one two thr"),
        (json!(["zzz", "three"]), false, "one two "),
        (json!(["zzz", "three"]), true, "one two three"),
        (json!([]), false, "one two three four five"),
    ] {
        let body = json!({
            "prompt": [5], "max_tokens": 40, "stop": stop, "include_stop_str_in_output": include, "ignore_eos": true,
            "seed": 0,
        });
        let whole = server.complete(body.clone()).await;
        let choice = &whole["choices"][0];
        assert!(choice["text"].as_str().unwrap().starts_with(expected), "{choice}");
        let events = server.stream("/v1/completions", body).await;
        let parts = choices_of(&events, 0);
        let joined: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
        assert_eq!(joined, choice["text"]);
        if stop != json!([]) {
            assert_eq!(choice["text"], expected);
            assert_eq!(choice["finish_reason"], "stop");
            let reason = stop.as_array().map_or(&stop, |stops| &stops[1]);
            assert_eq!(choice["stop_reason"], *reason);
            assert_eq!(parts.last().unwrap()["stop_reason"], *reason);
        }
    }
    // The engine was told to stop: nothing runs on.
    server.idle().await;
    assert_eq!(server.model.engine.stats().num_used_blocks, 0);
}

#[tokio::test]
async fn stop_tokens_and_end_tokens_have_no_text() {
    let server = Setup::scripted("one two!").start().await;
    let ids = tokenizer().encode("one two!", false).unwrap();
    let stop = ids[ids.len() - 1];
    let body = json!({"prompt": [5], "stop_token_ids": [stop], "ignore_eos": true, "return_token_ids": true});
    let choice = &server.complete(body).await["choices"][0];
    assert_eq!(choice["text"], tokenizer().decode(&ids[..ids.len() - 1], true).unwrap());
    assert_eq!(choice["token_ids"], json!(ids));
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));

    // The tokenizer's own end token, and another of generation_config.json.
    let end = tokenizer().eos_token_id().unwrap();
    let eos = *tokenizer().eos_token_ids().iter().find(|id| **id != end).unwrap();
    let mut setup = Setup::scripted("one");
    setup.fake.script.push(end);
    let ends = setup.start().await;
    *setup.fake.script.last_mut().unwrap() = eos;
    let server = setup.start().await;
    for (server, reason) in [(&ends, Value::Null), (&server, json!(eos))] {
        for body in [json!({"prompt": [5]}), json!({"prompt": [5], "echo": true, "logprobs": 0})] {
            let choice = &server.complete(body.clone()).await["choices"][0];
            assert!(choice["text"].as_str().unwrap().ends_with("one"));
            assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &reason));
            let events = server.stream("/v1/completions", body).await;
            assert_eq!(choices_of(&events, 0).last().unwrap()["stop_reason"], reason);
        }
        let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let choice = &server.ask("/v1/chat/completions", chat).await["choices"][0];
        assert_eq!((&choice["message"]["content"], &choice["stop_reason"]), (&json!("one"), &reason));
    }
    // It is the model's end token, whatever else it is.
    for (ignore_eos, reason) in [(false, Value::Null), (true, json!(end))] {
        let body = json!({"prompt": [5], "stop_token_ids": [end], "ignore_eos": ignore_eos});
        let choice = &ends.complete(body).await["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &reason));
    }
    let shown = json!({"prompt": [5], "include_stop_str_in_output": true, "skip_special_tokens": false});
    let choice = &server.complete(shown).await["choices"][0];
    let tokenizer = tokenizer();
    assert_eq!(choice["text"], format!("one{}", tokenizer.decode(&[eos], false).unwrap()));
}

#[tokio::test]
async fn logprobs_have_openais_shape() {
    let server = Setup::default().start().await;
    let body = json!({"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 3, "logprobs": 2});
    let choice = &server.complete(body).await["choices"][0];
    let logprobs = &choice["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 3);
    let mut offset = 0;
    for (at, token) in tokens.iter().enumerate() {
        let name = token.as_str().unwrap();
        // Greedy: the token itself is the most likely one.
        let top = logprobs["top_logprobs"][at].as_object().unwrap();
        assert_eq!(top[name], logprobs["token_logprobs"][at]);
        assert!(top.values().all(|value| value.as_f64() <= logprobs["token_logprobs"][at].as_f64()));
        assert!((1..=3).contains(&top.len()));
        assert_eq!(logprobs["text_offset"][at], offset);
        offset += name.chars().count();
    }
    let body = json!({"prompt": [5], "max_tokens": 1, "logprobs": 0, "return_tokens_as_token_ids": true});
    let choice = &server.complete(body).await["choices"][0];
    assert!(choice["logprobs"]["tokens"][0].as_str().unwrap().starts_with("token_id:"));
}

/// A character of several tokens is the last one's: names make the text, wherever it ends, and offsets are places in it.
#[tokio::test]
async fn names_of_tokens_make_the_text() {
    let text = "naïve 世界 🦀👩‍👩‍👧 done";
    let server = Setup::scripted(text).start().await;
    let num_tokens = tokenizer().encode(text, false).unwrap().len();
    let names =
        |tokens: &Value| tokens.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    let mut unfinished = 0;
    for max_tokens in 1..=num_tokens {
        let body = json!({"prompt": [5], "max_tokens": max_tokens, "ignore_eos": true, "logprobs": 2});
        let choice = &server.complete(body.clone()).await["choices"][0];
        let (shown, logprobs) = (choice["text"].as_str().unwrap(), &choice["logprobs"]);
        let names: Vec<String> = names(&logprobs["tokens"]);
        assert_eq!(names.concat(), shown);
        assert!(text.starts_with(shown));
        unfinished += usize::from(names.iter().any(String::is_empty));
        let offsets = names.iter().scan(0, |end, name| {
            let start = *end;
            *end += name.chars().count();
            Some(start)
        });
        assert_eq!(logprobs["text_offset"], json!(offsets.collect::<Vec<usize>>()));
        for (at, name) in names.iter().enumerate() {
            assert_eq!(logprobs["top_logprobs"][at][name], logprobs["token_logprobs"][at]);
        }
        let events = server.stream("/v1/completions", body).await;
        assert_eq!(merged(&choices_of(&events, 0), "logprobs"), *logprobs);
    }
    // The test means something only if a character did take several tokens.
    assert!(unfinished > 0);
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": num_tokens, "ignore_eos": true,
        "logprobs": true, "top_logprobs": 1});
    let choice = &server.ask("/v1/chat/completions", chat).await["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let names: String = content.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!((names.as_str(), &choice["message"]["content"]), (text, &json!(text)));
    let bytes = content.iter().flat_map(|token| token["bytes"].as_array().unwrap());
    assert!(bytes.map(|byte| byte.as_u64().unwrap()).eq(text.bytes().map(u64::from)));
}

#[tokio::test]
async fn echo_puts_the_prompt_first() {
    let server = Setup::default().start().await;
    let ids = tokenizer().encode("Hello there", true).unwrap();
    for prompt in [json!("Hello there"), json!(ids)] {
        let body = json!({"prompt": prompt, "echo": true, "temperature": 0, "max_tokens": 4, "logprobs": 1});
        let choice = &server.complete(body).await["choices"][0];
        let generated = oracle_text(&ids, 4);
        let prompt_text = tokenizer().decode(&ids, false).unwrap();
        assert_eq!(choice["text"], format!("{prompt_text}{generated}"));
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), ids.len() + oracle(&ids, 4).0.len());
        assert!(logprobs[0].is_null());
        let expected = expected_prompt_logprobs(&Setup::default().fake.info, &ids, 1);
        for (got, expected) in logprobs[1..].iter().zip(&expected) {
            assert_eq!(got.as_f64().unwrap() as f32, expected.logprobs.as_ref().unwrap().logprob);
        }
    }
    let only = server.complete(json!({"prompt": "Hello there", "echo": true, "max_tokens": 0})).await;
    assert_eq!(only["choices"][0]["text"], "Hello there");
    let body = json!({"prompt": ids, "echo": true, "max_tokens": 0, "return_token_ids": true});
    assert_eq!(server.complete(body).await["choices"][0]["token_ids"], json!([]));
}

/// The prompt is scored once for both.
#[tokio::test]
async fn echo_and_prompt_logprobs_have_as_many_alternatives_as_each_was_asked_for() {
    let server = Setup::default().start().await;
    for (logprobs, of_prompt) in [(2, 0), (0, 3)] {
        let body = json!({"prompt": [5, 6, 7], "echo": true, "max_tokens": 1, "temperature": 0, "logprobs": logprobs,
            "prompt_logprobs": of_prompt});
        let both = &server.complete(body).await["choices"][0];
        let body = json!({"prompt": [5, 6, 7], "echo": true, "max_tokens": 1, "temperature": 0, "logprobs": logprobs});
        assert_eq!(both["logprobs"], server.complete(body).await["choices"][0]["logprobs"]);
        let body = json!({"prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0, "prompt_logprobs": of_prompt});
        assert_eq!(both["prompt_logprobs"], server.complete(body).await["choices"][0]["prompt_logprobs"]);
    }
}

#[tokio::test]
async fn prompt_logprobs_have_vllms_shape() {
    let server = Setup::default().start().await;
    let prompt = [5, 6, 7, 8];
    let answer = server.complete(json!({"prompt": prompt, "prompt_logprobs": 2, "max_tokens": 1})).await;
    let got = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!(got.len(), prompt.len());
    assert!(got[0].is_null());
    let expected = expected_prompt_logprobs(&Setup::default().fake.info, &prompt, 2);
    for (got, expected) in got[1..].iter().zip(&expected) {
        let logprobs = expected.logprobs.as_ref().unwrap();
        let own = &got[expected.token_id.to_string()];
        assert_eq!(own["logprob"].as_f64().unwrap() as f32, logprobs.logprob);
        assert_eq!(own["rank"], json!(logprobs.rank));
        assert_eq!(got[logprobs.top[1].0.to_string()]["rank"], 2);
    }
}

/// The first answer alone asks for scores; the others find the prompt in the cache, which a request that scores may not.
#[tokio::test]
async fn a_prompt_is_scored_once_for_all_its_answers() {
    let server = Setup::default().start().await;
    let prompts: [Vec<u32>; 2] = [(5..85).collect(), (105..185).collect()];
    let alone = |prompt: &[u32], field: Value| {
        let mut body = json!({"prompt": prompt, "max_tokens": 2, "seed": 1, "temperature": 0});
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        server.complete(body)
    };
    let cases = [
        (json!({"prompt_logprobs": 2}), "prompt_logprobs"),
        (json!({"echo": true, "logprobs": 2}), "logprobs"),
        (json!({"echo": true, "logprobs": 2, "prompt_logprobs": 1}), "prompt_logprobs"),
    ];
    for (salt, (field, shown)) in ["a", "b", "c"].into_iter().zip(cases) {
        let hits = server.model.engine.stats().prefix_cache_hits;
        let mut body =
            json!({"prompt": prompts, "n": 4, "max_tokens": 2, "seed": 1, "temperature": 0, "cache_salt": salt});
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        let answer = server.complete(body).await;
        assert_eq!(server.model.engine.stats().prefix_cache_hits - hits, 2 * 3 * 64, "{field}");
        // What the first answer found.
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        for (choice, index) in answer["choices"].as_array().unwrap().iter().zip(0..) {
            let alone = alone(&prompts[index / 4], field.clone()).await;
            assert_eq!(choice[shown], alone["choices"][0][shown], "{field} {index}");
        }
    }
}

#[tokio::test]
async fn usage_tells_the_cached_tokens() {
    let server = Setup::default().start().await;
    let prompt: Vec<u32> = (0..40).map(|i| 5 + i % 50).collect();
    let body =
        json!({"prompt": prompt, "max_tokens": 2, "ignore_eos": true, "stream_options": {"include_usage": true}});
    for cached in [0, 32] {
        let events = server.stream("/v1/completions", body.clone()).await;
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["prompt_tokens"], 40);
        assert_eq!(last["usage"]["completion_tokens"], 2);
        assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
        assert!(before.iter().all(|event| event["usage"].is_null()));
    }
    let mut body = body;
    body["stream_options"]["continuous_usage_stats"] = true.into();
    let events = server.stream("/v1/completions", body).await;
    let counts = events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap());
    assert!(counts.is_sorted());
    let plain = server.stream("/v1/completions", json!({"prompt": [5], "max_tokens": 1})).await;
    assert!(plain.iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test]
async fn the_models_defaults_hold_where_the_request_is_silent() {
    let mut setup = Setup::default();
    setup.defaults.temperature = Some(0.0);
    let server = setup.start().await;
    let choice = &server.complete(json!({"prompt": [5, 6], "max_tokens": 9})).await["choices"][0];
    assert_eq!(choice["text"], oracle_text(&[5, 6], 9));
    let sampled = server.complete(json!({"prompt": [5, 6], "max_tokens": 9, "temperature": 1.0})).await;
    assert_ne!(sampled["choices"][0]["text"], choice["text"]);
}

#[tokio::test]
async fn the_default_length_shrinks_to_the_room_there_is() {
    let server = Setup::default().start().await;
    let prompt = vec![5; 250];
    let body = json!({"prompt": prompt, "ignore_eos": true});
    let answer = server.complete(body).await;
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}
