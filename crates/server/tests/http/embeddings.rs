//! `/v1/embeddings`, `/score` and `/rerank` on the fake executor, whose hidden states are known.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use vllm_apple_engine::fake::expected_pooled;
use vllm_apple_executor::Pooling;
use vllm_apple_model::Pooler;
use vllm_apple_model::load::pooler::Matryoshka;

use crate::support::{Setup, patiently, tokenizer, with};

const SIZE: usize = 8;

fn plain(pooling: Pooling) -> Pooler {
    Pooler { pooling, normalize: false, matryoshka: Matryoshka::No, max_tokens: None }
}

fn setup(pooler: Pooler) -> Setup {
    Setup::embedder(SIZE, pooler)
}

/// The elements of an embedding, as a client reads them.
fn floats(embedding: &Value) -> Vec<f32> {
    match embedding {
        Value::String(text) => {
            let bytes = STANDARD.decode(text).unwrap();
            bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
        }
        list => list.as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect(),
    }
}

fn embeddings(answer: &Value) -> Vec<Vec<f32>> {
    let data = answer["data"].as_array().unwrap();
    assert!(data.iter().enumerate().all(|(i, item)| item["index"] == i && item["object"] == "embedding"));
    data.iter().map(|item| floats(&item["embedding"])).collect()
}

fn of_length_one(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    vector.iter().map(|value| (f64::from(*value) / length) as f32).collect()
}

#[tokio::test]
async fn every_form_of_input_and_encoding_is_the_models_vector() {
    for pooling in [Pooling::Last, Pooling::First, Pooling::Mean] {
        let setup = setup(plain(pooling));
        let server = setup.start().await;
        let expected = |ids: &[u32]| expected_pooled(&setup.fake.info, ids, pooling);
        let of_text = |text: &str| expected(&tokenizer().encode(text, true).unwrap());
        let ask = |input: Value| server.ask("/v1/embeddings", json!({"input": input}));
        let answer = ask(json!("The quick brown fox")).await;
        assert_eq!(embeddings(&answer), [of_text("The quick brown fox")]);
        let num_tokens = tokenizer().encode("The quick brown fox", true).unwrap().len();
        assert_eq!((&answer["object"], &answer["usage"]["prompt_tokens"]), (&json!("list"), &json!(num_tokens)));
        assert_eq!(answer["usage"]["total_tokens"], num_tokens);
        // Longer than a step, and more of them than a step takes.
        let long: Vec<u32> = (0..200).map(|i| i * 7 % 400).collect();
        let many: Vec<Vec<u32>> = (0..40).map(|i| long[..1 + 5 * i as usize].to_vec()).collect();
        assert_eq!(embeddings(&ask(json!(many)).await), many.iter().map(|ids| expected(ids)).collect::<Vec<_>>());
        assert_eq!(embeddings(&ask(json!(long)).await), [expected(&long)]);
        assert_eq!(embeddings(&ask(json!(["a b", "c"])).await), [of_text("a b"), of_text("c")]);
        let body = json!({"input": long, "encoding_format": "base64"});
        let encoded = server.ask("/v1/embeddings", body).await;
        assert!(encoded["data"][0]["embedding"].is_string());
        assert_eq!(embeddings(&encoded), [expected(&long)]);
        server.idle().await;
    }
}

#[tokio::test]
async fn vectors_are_normalised_and_cut_as_asked() {
    let any = Pooler { normalize: true, matryoshka: Matryoshka::Any, ..plain(Pooling::Last) };
    let server = setup(any).start().await;
    let raw = expected_pooled(&setup(plain(Pooling::Last)).fake.info, &[5, 6, 7], Pooling::Last);
    let ask = |more: Value| server.ask("/v1/embeddings", with(json!({"input": [5, 6, 7]}), more));
    assert_eq!(embeddings(&ask(json!({})).await), [of_length_one(&raw)]);
    assert_eq!(embeddings(&ask(json!({"use_activation": false})).await)[0], raw);
    assert_eq!(embeddings(&ask(json!({"dimensions": 3})).await), [of_length_one(&raw[..3])]);
    assert_eq!(embeddings(&ask(json!({"dimensions": 3, "use_activation": false})).await), [raw[..3].to_vec()]);
    for dimensions in [0, SIZE + 1] {
        let refused = server.post("/v1/embeddings", json!({"input": "a", "dimensions": dimensions})).await;
        assert_eq!(refused.status(), 400);
    }
    let sizes = Pooler { matryoshka: Matryoshka::Of(vec![2, 4]), ..plain(Pooling::Last) };
    let server = setup(sizes).start().await;
    assert_eq!(server.post("/v1/embeddings", json!({"input": "a", "dimensions": 4})).await.status(), 200);
    let refused: Value =
        server.post("/v1/embeddings", json!({"input": "a", "dimensions": 3})).await.json().await.unwrap();
    assert!(refused["error"]["message"].as_str().unwrap().contains("one of [2, 4]"), "{refused}");
}

#[tokio::test]
async fn texts_are_cut_off_where_they_are_asked_to_be() {
    let setup = setup(plain(Pooling::Mean));
    let server = setup.start().await;
    let text = "The quick brown fox jumps over the lazy dog";
    let ids = tokenizer().encode(text, true).unwrap();
    let expected = |ids: &[u32]| [expected_pooled(&setup.fake.info, ids, Pooling::Mean)];
    let ask = |input: Value, more: Value| server.ask("/v1/embeddings", with(json!({"input": input}), more));
    let right = json!({"truncate_prompt_tokens": 4});
    let left = json!({"truncate_prompt_tokens": 4, "truncation_side": "left"});
    for input in [json!(text), json!(ids)] {
        assert_eq!(embeddings(&ask(input.clone(), right.clone()).await), expected(&ids[..4]));
        assert_eq!(embeddings(&ask(input.clone(), left.clone()).await), expected(&ids[ids.len() - 4..]));
        assert_eq!(embeddings(&ask(input, json!({"truncate_prompt_tokens": -1})).await), expected(&ids));
    }
    // Far longer than the model's length, which is 256.
    let answer = ask(json!("fox ".repeat(20_000)), json!({"truncate_prompt_tokens": -1})).await;
    assert_eq!(answer["usage"]["prompt_tokens"], 256);
    for tokens in [0, -2, 257] {
        let body = json!({"input": text, "truncate_prompt_tokens": tokens});
        let refused: Value = server.post("/v1/embeddings", body).await.json().await.unwrap();
        assert_eq!(refused["error"]["param"], "truncate_prompt_tokens", "{refused}");
    }
}

#[tokio::test]
async fn scores_are_cosines_and_ranks_their_order() {
    let setup = setup(plain(Pooling::Last));
    let server = setup.start().await;
    let vector =
        |text: &str| expected_pooled(&setup.fake.info, &tokenizer().encode(text, true).unwrap(), Pooling::Last);
    let score = |a: &str, b: &str| {
        let pairs = vector(a).into_iter().zip(vector(b)).map(|(a, b)| f64::from(a) * f64::from(b));
        let length = |text: &str| vector(text).iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        pairs.sum::<f64>() / (length(a) * length(b))
    };
    let scores = |answer: &Value| -> Vec<f64> {
        answer["data"].as_array().unwrap().iter().map(|item| item["score"].as_f64().unwrap()).collect()
    };
    let near = |got: &[f64], expected: &[f64]| {
        // A cosine is rounded to f32.
        assert!(got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
    };
    let documents = ["a fox", "the dog", "quick brown"];
    let each = documents.map(|document| score("fox", document));
    for (path, one, other) in [("/score", "queries", "documents"), ("/v1/score", "text_1", "text_2")] {
        near(&scores(&server.ask(path, json!({one: "fox", other: documents})).await), &each);
        let body = json!({one: documents, other: documents});
        near(&scores(&server.ask(path, body).await), &[1.0; 3]);
    }
    near(&scores(&server.ask("/score", json!({"queries": "fox", "items": "the dog"})).await), &each[1..2]);
    near(&scores(&server.ask("/score", json!({"data_1": "fox", "data_2": "a fox"})).await), &each[..1]);
    let mut order = [0, 1, 2];
    order.sort_by(|&a: &usize, &b| each[b].total_cmp(&each[a]));
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let ranked = server.ask(path, json!({"query": "fox", "documents": documents, "top_n": 2})).await;
        let results = ranked["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        for (result, &index) in results.iter().zip(&order) {
            assert_eq!((&result["index"], &result["document"]["text"]), (&json!(index), &json!(documents[index])));
            near(&[result["relevance_score"].as_f64().unwrap()], &[each[index]]);
        }
    }
    let idle = json!({"query": "fox", "documents": documents, "use_activation": false, "truncation_side": "left"});
    let answer = server.post("/rerank", idle).await;
    assert_eq!(answer.headers()["x-fields-without-effect"], "truncation_side, use_activation");
    let short = json!({"query": "fox", "documents": documents, "return_documents": false});
    let ranked = server.ask("/rerank", short).await;
    assert!(ranked["results"].as_array().unwrap().len() == 3 && ranked["results"][0].get("document").is_none());
    assert!(ranked["usage"]["prompt_tokens"].as_u64().unwrap() > 4);
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = setup(plain(Pooling::Last)).start().await;
    let vocab_size = tokenizer().vocab_size() as u32;
    for (path, body, param) in [
        ("/v1/embeddings", json!({}), "input"),
        ("/v1/embeddings", json!({"input": [5, vocab_size]}), "input"),
        ("/v1/embeddings", json!({"input": [[5], []]}), "input[1]"),
        ("/v1/embeddings", json!({"input": [[5], vec![5; 257]]}), "input[1]"),
        ("/v1/embeddings", json!({"input": vec!["a"; 2049]}), "input"),
        ("/v1/embeddings", json!({"input": vec![vec![5]; 70_000]}), "input"),
        ("/v1/embeddings", json!({"input": "a", "encoding_format": "bytes"}), "encoding_format"),
        ("/v1/embeddings", json!({"input": "a", "dimensions": 4}), "dimensions"),
        ("/v1/embeddings", json!({"input": "a", "normalize": true}), "normalize"),
        ("/v1/embeddings", json!({"input": "a", "embed_dtype": "float16"}), "embed_dtype"),
        ("/v1/embeddings", json!({"input": "a", "dimension": 4}), "dimension"),
        ("/score", json!({"queries": ["a", "b"], "documents": ["a", "b", "c"]}), "queries"),
        ("/score", json!({"queries": "a"}), "queries"),
        ("/score", json!({"queries": "a", "documents": []}), "documents"),
        ("/score", json!({"queries": "a", "documents": "b", "instruction": "Be near."}), "instruction"),
        ("/rerank", json!({"query": "a"}), "documents"),
        ("/rerank", json!({"query": "a", "documents": ["a", "fox ".repeat(300)]}), "documents[1]"),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Hi"}]}), "model"),
        ("/v1/completions", json!({"prompt": "Hi"}), "model"),
        ("/v1/responses", json!({"input": "Hi"}), "model"),
    ] {
        let response = server.post(path, body).await;
        let status = response.status();
        let refused: Value = response.json().await.unwrap();
        assert_eq!((status.as_u16(), &refused["error"]["param"]), (400, &json!(param)), "{path}: {refused}");
    }
    let kept: Value = server.get("/v1/responses/resp_1").await.json().await.unwrap();
    assert_eq!(kept["error"]["code"], "unsupported_task", "{kept}");
    let generates = Setup::default().start().await;
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "Hi"})),
        ("/score", json!({"queries": "a", "documents": "b"})),
        ("/rerank", json!({"query": "a", "documents": "b"})),
    ] {
        let refused: Value = generates.post(path, body).await.json().await.unwrap();
        assert_eq!(refused["error"]["code"], "unsupported_task", "{path}: {refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("--runner pooling"));
    }
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_prompts_with_it() {
    let mut setup = setup(plain(Pooling::Mean));
    setup.fake.step_time = std::time::Duration::from_millis(20);
    let server = setup.start().await;
    let body = json!({"input": vec![vec![5; 200]; 500]});
    let asking = server.post("/v1/embeddings", body);
    // Long enough to begin; the whole would take half a minute.
    let left = tokio::time::timeout(std::time::Duration::from_millis(300), asking).await;
    assert!(left.is_err());
    patiently(server.idle()).await;
    let metrics = server.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("finished_reason=\"abort\""), "{metrics}");
    let steps = server.model.engine.stats().num_steps;
    assert!(steps < 500, "{steps}");
}

#[tokio::test]
async fn numbers_that_are_none_are_an_error_of_their_request() {
    let mut setup = setup(plain(Pooling::Last));
    setup.fake.faults = vec![(0, vllm_apple_engine::fake::Fault::Row)];
    let server = setup.start().await;
    let failed = server.post("/v1/embeddings", json!({"input": "a"})).await;
    assert_eq!(failed.status(), 500);
    assert!(failed.text().await.unwrap().contains("hidden states is NaN"));
    assert_eq!(server.post("/v1/embeddings", json!({"input": "a"})).await.status(), 200);
}
