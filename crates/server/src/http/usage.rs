//! OpenAI's `usage` of completions and chat. Knows numbers of tokens, no endpoint.

use serde_json::{Value, json};

/// Of a request. A prompt counts once, however many answers it gets.
pub struct Usage {
    /// Of each prompt.
    prompt_tokens: Vec<usize>,
    /// Answers to each.
    pub n: usize,
    /// Of each choice.
    choices: Vec<ChoiceUsage>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ChoiceUsage {
    tokens: usize,
    /// Of the prompt.
    cached_tokens: usize,
    /// Where they are counted.
    reasoning_tokens: Option<usize>,
}

impl Usage {
    /// Nothing has come yet. `reasoning_tokens` are none, or are not counted.
    pub fn new(prompt_tokens: Vec<usize>, n: usize, reasoning_tokens: Option<usize>) -> Self {
        let none = ChoiceUsage { reasoning_tokens, ..ChoiceUsage::default() };
        let choices = vec![none; prompt_tokens.len() * n];
        Self { prompt_tokens, n, choices }
    }

    /// What has come of a choice.
    pub fn set(&mut self, index: usize, tokens: usize, cached_tokens: usize, reasoning_tokens: Option<usize>) {
        self.choices[index] = ChoiceUsage { tokens, cached_tokens, reasoning_tokens };
    }

    /// Of all.
    pub fn total(&self) -> Value {
        // The first answer of each prompt says what of the prompt was cached before the request.
        let cached_tokens = self.choices.iter().step_by(self.n).map(|choice| choice.cached_tokens).sum();
        let tokens = self.choices.iter().map(|choice| choice.tokens).sum();
        let reasoning_tokens = self.choices.iter().map(|choice| choice.reasoning_tokens).sum();
        usage(self.prompt_tokens.iter().sum(), ChoiceUsage { tokens, cached_tokens, reasoning_tokens })
    }

    /// Of one choice.
    pub fn of_choice(&self, index: usize) -> Value {
        usage(self.prompt_tokens[index / self.n], self.choices[index])
    }
}

fn usage(prompt_tokens: usize, of: ChoiceUsage) -> Value {
    let mut usage = json!({
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + of.tokens,
        "completion_tokens": of.tokens,
        "prompt_tokens_details": {"cached_tokens": of.cached_tokens},
    });
    if let Some(reasoning_tokens) = of.reasoning_tokens {
        usage["completion_tokens_details"] = json!({"reasoning_tokens": reasoning_tokens});
    }
    usage
}
