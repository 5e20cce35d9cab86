//! Log-probabilities of answers that are held to a form: among the tokens that may come next. The form says which these are, so that
//! probabilities must add up to 1 wherever all of them are listed.

use serde_json::{Value, json};

use crate::support::Setup;

/// What stands for a probability of 0.
const NEVER: f64 = -9999.0;

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

/// How many of a position's alternatives may come, best first.
fn num_possible(values: &[f64]) -> usize {
    assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
    let num_possible = values.iter().take_while(|&&value| value > NEVER).count();
    assert!(values[num_possible..].iter().all(|&value| value == NEVER), "{values:?}");
    let total: f64 = values[..num_possible].iter().map(|value| value.exp()).sum();
    assert!((total - 1.0).abs() < 1e-5, "{values:?}");
    num_possible
}

#[tokio::test]
async fn alternatives_of_chat_are_those_that_the_form_allows() {
    let server = Setup::default().start().await;
    for temperature in [0.0, 1.0] {
        let body = json!({
            "messages": [{"role": "user", "content": "Is it so?"}], "temperature": temperature, "seed": 4, "max_tokens": 8,
            "structured_outputs": {"regex": "[ab]c"}, "logprobs": true, "top_logprobs": 5,
        });
        let answer = server.ask("/v1/chat/completions", body).await;
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(["ac", "bc"].contains(&text), "{text}");
        let tokens = choice["logprobs"]["content"].as_array().unwrap();
        let mut could_be_other = false;
        for token in tokens {
            let top = token["top_logprobs"].as_array().unwrap();
            // As many as were asked for, though fewer may come.
            assert_eq!(top.len(), 5, "{token}");
            let values: Vec<f64> = top.iter().map(|entry| number(&entry["logprob"])).collect();
            could_be_other |= num_possible(&values) > 1;
            let own = top.iter().find(|entry| entry["token"] == token["token"] && entry["bytes"] == token["bytes"]);
            assert_eq!(own.expect("what came could come")["logprob"], token["logprob"]);
            assert!(number(&token["logprob"]) > NEVER);
        }
        assert!(could_be_other && !tokens.is_empty(), "{tokens:?}");
    }
}

#[tokio::test]
async fn alternatives_of_completions_are_those_that_the_form_allows() {
    let server = Setup::default().start().await;
    let body = json!({
        "prompt": [5, 6, 7], "temperature": 0, "max_tokens": 8, "guided_regex": "[ab]c", "logprobs": 4,
        "return_tokens_as_token_ids": true,
    });
    let held = server.complete(body.clone()).await;
    let logprobs = &held["choices"][0]["logprobs"];
    for (own, top) in
        logprobs["token_logprobs"].as_array().unwrap().iter().zip(logprobs["top_logprobs"].as_array().unwrap())
    {
        let mut values: Vec<f64> = top.as_object().unwrap().values().map(number).collect();
        values.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(values.len(), 4, "{top}");
        num_possible(&values);
        // Greedy: nothing else that may come is likelier.
        assert_eq!(number(own), values[0]);
    }
    // A request beside it that has no form, and the scores of the prompt, are those of the logits.
    let free = json!({"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 2, "logprobs": 4, "prompt_logprobs": 3});
    let alone = server.complete(free.clone()).await;
    let mut both = body;
    both["prompt_logprobs"] = json!(3);
    let (held, beside) = tokio::join!(server.complete(both), server.complete(free));
    assert_eq!(beside["choices"][0]["logprobs"], alone["choices"][0]["logprobs"]);
    assert_eq!(held["choices"][0]["prompt_logprobs"], alone["choices"][0]["prompt_logprobs"]);
    assert!(alone["choices"][0]["prompt_logprobs"].is_array());
}
