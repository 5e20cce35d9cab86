//! The life of a server: clients that go away, shutting down, and an engine that dies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::json;
use tokio::net::TcpListener;
use vllm_apple::generation::{Finish, Generation, GenerationRequest, SamplingOptions};
use vllm_apple::http::{App, AppConfig, ServeError, router, serve};
use vllm_apple::served::ServedModel;
use vllm_apple_engine::fake::Fault;

use crate::support::{Setup, choices_of, events, patiently, tokenizer};

/// What is left of a stream, as text and as events.
async fn to_its_end(stream: impl futures_util::Stream<Item = String>) -> (String, Vec<serde_json::Value>) {
    let text: String = patiently(stream.collect()).await;
    let events = events(&text);
    (text, events)
}

#[tokio::test]
async fn clients_that_leave_mid_stream_leave_no_block_allocated() {
    let server = Setup::endless().start().await;
    for _ in 0..25 {
        let clients = futures_util::future::join_all((0..8).map(|_| server.open_stream())).await;
        assert!(server.model.engine.stats().num_used_blocks > 0);
        drop(clients);
    }
    server.idle().await;
    let stats = server.model.engine.stats();
    assert_eq!((stats.num_used_blocks, stats.kv_cache_usage), (0, 0.0));
    let metrics = server.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("finished_reason=\"abort\""), "{metrics}");
    assert!(
        metrics.lines().any(|line| line.contains("finished_reason=\"abort\"") && line.ends_with(" 200")),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_client_that_stops_waiting_for_a_whole_answer_aborts_it() {
    let server = Setup::endless().start().await;
    let url = format!("{}/v1/completions", server.url);
    let body = json!({"prompt": [5, 6, 7], "ignore_eos": true, "max_tokens": 90_000});
    let request = tokio::spawn(server.client.post(url).json(&body).send());
    patiently(async {
        while server.model.engine.stats().num_running == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    request.abort();
    server.idle().await;
    assert_eq!(server.model.engine.stats().num_used_blocks, 0);
}

/// hyper reads nothing more while it answers if it has read ahead, so that it would not see the end.
#[tokio::test]
async fn a_client_that_leaves_after_sending_more_than_its_request_aborts_it() {
    let server = Setup::endless().start().await;
    let address = server.url.strip_prefix("http://").unwrap();
    let body = json!({"prompt": [5, 6, 7], "ignore_eos": true, "max_tokens": 90_000}).to_string();
    for more in ["", "\r\n", "G", "POST /v1/completions HTTP/1.1\r\n"] {
        let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
        let mut client = std::net::TcpStream::connect(address).unwrap();
        let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}{more}", body.len());
        std::io::Write::write_all(&mut client, request.as_bytes()).unwrap();
        patiently(async {
            while server.model.engine.stats().num_running == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        drop(client);
        let left = Instant::now();
        server.idle().await;
        assert!(left.elapsed() < Duration::from_secs(30), "{more:?}: it was answered to its end");
    }
    assert_eq!(server.model.engine.stats().num_used_blocks, 0);
}

/// Else they would all come at the end, counted nowhere.
#[tokio::test]
async fn tokens_without_text_come_in_pieces() {
    let mut setup = Setup::default();
    setup.fake.script = vec![tokenizer().eos_token_id().unwrap(); 100];
    let server = setup.start().await;
    let body = json!({"prompt": [5], "ignore_eos": true, "max_tokens": 100, "return_token_ids": true});
    let events = server.stream("/v1/completions", body).await;
    let lens = choices_of(&events, 0).into_iter().map(|part| part["token_ids"].as_array().unwrap().len());
    assert_eq!(lens.collect::<Vec<_>>(), [16, 16, 16, 16, 16, 16, 4]);
}

#[tokio::test]
async fn a_whole_answer_counts_as_it_grows() {
    let mut setup = Setup::endless();
    setup.config.max_request_memory = 64 << 10;
    let server = setup.start().await;
    let ask = async |max_tokens: u32| {
        let body = json!({"prompt": [5], "ignore_eos": true, "max_tokens": max_tokens});
        let request = server.client.post(format!("{}/v1/completions", server.url)).json(&body);
        request.send().await.unwrap().json::<serde_json::Value>().await.unwrap()
    };
    assert_eq!(ask(100).await["usage"]["completion_tokens"], 100);
    assert_eq!(ask(5_000).await["error"]["code"], "request_too_large");
    server.idle().await;
    assert_eq!(ask(100).await["usage"]["completion_tokens"], 100);
}

#[tokio::test]
async fn a_stop_string_frees_the_blocks_while_the_answer_is_still_held() {
    let mut setup = Setup::endless();
    setup.fake.script = tokenizer().encode("one two three", false).unwrap();
    let model = setup.model();
    let options = SamplingOptions { stop: ["two".to_owned()].into(), ignore_eos: true, ..Default::default() };
    let request = GenerationRequest::new(&model, vec![5, 6, 7].into(), &options);
    let mut generation = Generation::start(Arc::clone(&model), request, Instant::now()).unwrap();
    let whole = patiently(generation.collect()).await.unwrap();
    assert_eq!(whole.finish, Some(Finish::StopString("two".to_owned())));
    patiently(async {
        while model.engine.stats().num_used_blocks > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(patiently(generation.next()).await.is_none());
}

/// The others wait for the first one's log-probabilities, which never come.
#[tokio::test]
async fn answers_end_although_the_first_does_not_score_their_prompt() {
    let setup = Setup::endless();
    let options = SamplingOptions { prompt_logprobs: Some(1), ignore_eos: true, ..Default::default() };
    let start = |model: &Arc<ServedModel>| {
        let request = GenerationRequest::new(model, vec![5; 1000].into(), &options);
        Generation::start_all(model, &request, 3, Instant::now()).unwrap()
    };
    let model = setup.model();
    let mut aborted = start(&model);
    model.engine.abort_all();
    for generation in &mut aborted {
        let whole = patiently(generation.collect()).await.unwrap();
        assert_eq!((whole.finish, whole.prompt_logprobs), (Some(Finish::Abort), None));
    }
    // A client has no more interest in the first.
    let mut rest = start(&model).split_off(1);
    for generation in &mut rest {
        let delta = patiently(generation.next()).await.unwrap().unwrap();
        assert_eq!((delta.tokens.is_empty(), delta.prompt_logprobs), (false, None));
    }
    let mut failing = setup.clone();
    failing.fake.faults = vec![(0, Fault::Forward)];
    // The others are not in its step.
    failing.fake.info.max_num_seqs = 1;
    let mut failed = start(&failing.model());
    let (first, others) = failed.split_first_mut().unwrap();
    assert!(patiently(first.collect()).await.is_err());
    assert!(patiently(others[0].next()).await.unwrap().is_ok_and(|delta| delta.prompt_logprobs.is_none()));
}

#[tokio::test]
async fn a_stream_that_nobody_reads_counts_and_ends_alone() {
    let mut setup = Setup::endless();
    setup.config.max_request_memory = 512 << 10;
    let app = App::new(setup.config.clone());
    let model = setup.model();
    app.set_model(Arc::clone(&model));
    let ask = |max_tokens: u32| {
        let body = json!({"prompt": [5], "stream": true, "ignore_eos": true, "max_tokens": max_tokens, "logprobs": 20});
        let request = axum::http::Request::post("/v1/completions").header("content-type", "application/json");
        tower::ServiceExt::oneshot(
            router(Arc::clone(&app)),
            request.body(axum::body::Body::from(body.to_string())).unwrap(),
        )
    };
    let collect = async |response: axum::response::Response| {
        let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        events(std::str::from_utf8(&bytes).unwrap())
    };
    let beside = tokio::spawn(collect(ask(3_000).await.unwrap()));
    let unread = ask(90_000).await.unwrap();
    let beside = patiently(beside).await.unwrap();
    assert!(beside.iter().all(|event| event.get("error").is_none()), "{:?}", beside.last());
    patiently(async {
        while model.engine.stats().num_running > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let num_tokens = model.engine.stats().generation_tokens - 3_000;
    assert!((500..3_000).contains(&num_tokens), "{num_tokens} tokens in 512 KiB");
    // What had come before can still be read.
    let events = collect(unread).await;
    assert_eq!(events.last().unwrap()["error"]["code"], "out_of_request_memory");
    assert!(events.len() > 300, "{}", events.len());
    // Nothing stays counted.
    assert!(collect(ask(100).await.unwrap()).await.iter().all(|event| event.get("error").is_none()));
}

#[tokio::test]
async fn shutting_down_finishes_what_runs_and_refuses_the_rest() {
    let mut setup = Setup::endless();
    setup.fake.info.max_model_len = 400;
    let server = setup.start().await;
    let body = json!({"prompt": [5], "stream": true, "ignore_eos": true, "max_tokens": 300, "return_token_ids": true});
    let response = server.post("/v1/completions", body).await;
    server.stop.send(()).unwrap();
    patiently(async {
        // Either the server says that it goes, or it is gone.
        let url = format!("{}/v1/completions", server.url);
        let ask = || server.client.post(&url).json(&json!({"prompt": [5], "max_tokens": 1})).send();
        while ask().await.is_ok_and(|response| response.status() != 503) {}
    })
    .await;
    let text = patiently(response.text()).await.unwrap();
    let ids =
        events(&text).iter().map(|event| event["choices"][0]["token_ids"].as_array().unwrap().len()).sum::<usize>();
    assert_eq!(ids, 300);
    patiently(server.end).await.unwrap().unwrap();
}

#[tokio::test]
async fn probes_are_told_that_the_server_takes_no_more() {
    let server = Setup::endless().start().await;
    let mut running = server.open_stream().await;
    server.stop.send(()).unwrap();
    let health = || server.client.get(format!("{}/health", server.url)).send();
    let refused = patiently(async {
        loop {
            match health().await.unwrap() {
                response if response.status() == 200 => tokio::task::yield_now().await,
                response => return response,
            }
        }
    })
    .await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(refused.json::<serde_json::Value>().await.unwrap()["error"]["code"], "shutting_down");
    assert_eq!(server.model.engine.health(), Ok(()), "it goes on meanwhile");
    server.model.engine.abort_all();
    patiently(async { while running.next().await.is_some() {} }).await;
    patiently(server.end).await.unwrap().unwrap();
}

#[tokio::test]
async fn requests_that_do_not_end_in_time_are_ended() {
    for timeout in [Duration::ZERO, Duration::from_millis(200)] {
        let mut setup = Setup::endless();
        setup.config.shutdown_timeout = Some(timeout);
        let server = setup.start().await;
        let stream = server.open_stream().await;
        server.stop.send(()).unwrap();
        let (text, events) = to_its_end(stream).await;
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "abort", "{text}");
        patiently(server.end).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn shutting_down_while_loading_ends_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let end = serve(listener, App::new(AppConfig::default()), std::future::pending(), async {}).await;
    assert!(end.is_ok());
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_ends_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let load = async { Err("the file is gone".to_owned()) };
    let end = serve(listener, App::new(AppConfig::default()), load, std::future::pending()).await;
    assert!(matches!(end, Err(ServeError::Load(reason)) if reason == "the file is gone"));
}

#[tokio::test]
async fn a_failed_step_fails_its_requests_and_not_the_server() {
    let mut setup = Setup::default();
    setup.fake.faults = vec![(0, Fault::Forward), (3, Fault::Sample)];
    let server = setup.start().await;
    let body = json!({"prompt": [5], "max_tokens": 8, "ignore_eos": true});
    let response = server.post("/v1/completions", body.clone()).await;
    assert_eq!(response.status(), 500);
    let error: serde_json::Value = response.json().await.unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("fake fault"), "{error}");
    // The second request fails after its stream has begun: the error is an event.
    let events = server.stream("/v1/completions", body.clone()).await;
    assert!(events.last().unwrap()["error"]["message"].as_str().unwrap().contains("sampling fault"), "{events:?}");
    server.complete(body).await;
    assert_eq!(server.get("/health").await.status(), 200);
}

#[tokio::test]
async fn a_dead_engine_tells_its_clients_and_ends_the_server() {
    for fault in [Fault::Fatal, Fault::Panic] {
        let mut setup = Setup::endless();
        setup.fake.faults = vec![(20, fault)];
        let server = setup.start().await;
        let stream = server.open_stream().await;
        let (text, events) = to_its_end(stream).await;
        let error = &events.last().unwrap()["error"];
        assert_eq!(error["code"], "engine_dead", "{text}");
        let reason = server.model.engine.health().unwrap_err();
        assert!(reason.contains("fake"), "{reason}");
        let end = patiently(server.end).await.unwrap();
        assert!(matches!(end, Err(ServeError::EngineDied(_))), "{end:?}");
        // What a probe sees until the process is gone.
        let app = App::new(AppConfig::default());
        app.set_model(Arc::clone(&server.model));
        let request = axum::http::Request::get("/health").body(axum::body::Body::empty()).unwrap();
        let health = tower::ServiceExt::oneshot(router(app), request).await.unwrap();
        assert_eq!(health.status(), 503);
    }
}
