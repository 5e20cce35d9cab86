//! A client of the completions endpoint, which blocks its thread: what other programs see of the server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;

use serde_json::{Value, json};

/// What is asked.
#[derive(Debug, Clone)]
pub struct Ask {
    pub prompt: Vec<u32>,
    pub max_tokens: usize,
    /// Drawn with this seed; without one, greedy.
    pub seed: Option<u64>,
}

/// What is answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    tokens: Vec<Value>,
    text: String,
    logprobs: Vec<Value>,
}

impl Answer {
    /// Takes a choice, or a part of one, in.
    fn take(&mut self, choice: &Value) {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        self.tokens.extend(list(&choice["token_ids"]));
        self.text.push_str(choice["text"].as_str().unwrap_or_default());
        self.logprobs.extend(list(&choice["logprobs"]["token_logprobs"]));
    }

    /// The answer, if it has so many tokens.
    fn complete(self, ask: &Ask) -> Result<Self, String> {
        match self.tokens.len() == ask.max_tokens && self.logprobs.len() == ask.max_tokens {
            true => Ok(self),
            false => Err(format!("{} of {} tokens came", self.tokens.len(), ask.max_tokens)),
        }
    }
}

/// Connections to one server.
pub struct Client {
    agent: ureq::Agent,
    base: String,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        // What is on this machine is not asked of a proxy.
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build();
        Self { agent: config.into(), base: format!("http://{address}") }
    }

    /// The answer in one piece.
    pub fn whole(&self, ask: &Ask) -> Result<Answer, String> {
        let mut body = self.post(ask, false)?;
        let text = body.read_to_string().map_err(|error| error.to_string())?;
        let all: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let mut answer = Answer::default();
        answer.take(&all["choices"][0]);
        answer.complete(ask)
    }

    /// The answer put together from its events.
    pub fn streamed(&self, ask: &Ask) -> Result<Answer, String> {
        let mut answer = Answer::default();
        for event in events(self.post(ask, true)?) {
            answer.take(&event?["choices"][0]);
        }
        answer.complete(ask)
    }

    /// Leaves after so many events; whether that was before the end.
    pub fn leave(&self, ask: &Ask, after: usize) -> bool {
        let Ok(body) = self.post(ask, true) else { return false };
        let mut seen = Answer::default();
        for event in events(body).take(after) {
            match event {
                Ok(event) => seen.take(&event["choices"][0]),
                Err(_) => return false,
            }
        }
        seen.tokens.len() < ask.max_tokens
    }

    /// The status of the health check; 0 if there is no answer.
    pub fn health(&self) -> u16 {
        self.agent.get(format!("{}/health", self.base)).call().map_or(0, |response| response.status().as_u16())
    }

    fn post(&self, ask: &Ask, stream: bool) -> Result<ureq::Body, String> {
        let body = json!({
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": if ask.seed.is_some() { 1.0 } else { 0.0 },
            "seed": ask.seed,
            "ignore_eos": true,
            "logprobs": 1,
            "return_token_ids": true,
            "stream": stream,
        });
        let request = self.agent.post(format!("{}/v1/completions", self.base)).content_type("application/json");
        let response = request.send(body.to_string()).map_err(|error| error.to_string())?;
        let (parts, mut body) = response.into_parts();
        match parts.status.as_u16() {
            200 => Ok(body),
            status => Err(format!("status {status}: {}", body.read_to_string().unwrap_or_default())),
        }
    }
}

/// The events of a stream, up to its last.
fn events(body: ureq::Body) -> impl Iterator<Item = Result<Value, String>> {
    let lines = BufReader::new(body.into_reader()).lines();
    let data = lines.filter_map(|line| match line {
        Ok(line) => line.strip_prefix("data: ").map(|data| Ok(data.to_owned())),
        Err(error) => Some(Err(error.to_string())),
    });
    let data = data.take_while(|data| !matches!(data, Ok(data) if data == "[DONE]"));
    data.map(|data| serde_json::from_str(&data?).map_err(|error| error.to_string()))
}
