//! What is counted and timed, under vLLM's metric names, in Prometheus' text format. Knows no request's content.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use vllm_apple_engine::{EngineHandle, EngineStats, RequestTimes};

/// Content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How old a text may be that is shown again: writing it takes a tenth of that.
const RECENT: Duration = Duration::from_millis(20);

/// Bucket bounds in seconds, as vLLM's.
const FIRST_TOKEN_BUCKETS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKEN_BUCKETS: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const REQUEST_BUCKETS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// Bucket bounds in tokens: vLLM's for a model of 100,000.
const TOKENS_BUCKETS: [f64; 16] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finished {
    finished_reason: &'static str,
}

/// Why a request ends, in the order of the counters.
const ENDS: [&str; 4] = ["stop", "length", "abort", "error"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: String,
}

/// The server's metrics. Counters of the engine are read when asked for; times are recorded as outputs arrive.
pub struct Metrics {
    registry: Registry,
    request_success: Family<Finished, Counter>,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    time_per_output_token: Histogram,
    e2e_request_latency: Histogram,
    request_queue_time: Histogram,
    request_prefill_time: Histogram,
    request_decode_time: Histogram,
    request_inference_time: Histogram,
    request_generation_tokens: Histogram,
    refused: Family<Refused, Counter>,
    /// What was written last, and when.
    recent: Mutex<Option<(Instant, String)>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Metrics of the model served as `model_name` by `engine`.
    pub fn new(model_name: &str, engine: EngineHandle) -> Self {
        let mut registry = Registry::default();
        // vLLM labels every metric with the model and the number of the engine, of which there is one here.
        let labels = [("model_name", model_name), ("engine", "0")];
        let labels = labels.map(|(name, value)| (name.into(), value.to_owned().into()));
        let labelled = registry.sub_registry_with_labels(labels.into_iter());
        labelled.register_collector(Box::new(EngineCollector(engine)));
        let request_success = Family::<Finished, Counter>::default();
        labelled.register(
            "vllm:request_success",
            "Finished requests by the reason that ended them",
            request_success.clone(),
        );
        // From the start on: whoever counts what is new would not see the first of a kind.
        for finished_reason in ENDS {
            drop(request_success.get_or_create(&Finished { finished_reason }));
        }
        let refused = Family::<Refused, Counter>::default();
        labelled.register(
            "vllm:admission_rejections",
            "Requests refused for want of room, by the code of the error",
            refused.clone(),
        );
        let mut histogram = |name: &str, help: &str, buckets: &[f64]| {
            let histogram = Histogram::new(buckets.iter().copied());
            labelled.register(name, help, histogram.clone());
            histogram
        };
        Self {
            request_success,
            time_to_first_token: histogram(
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to its first token",
                &FIRST_TOKEN_BUCKETS,
            ),
            inter_token_latency: histogram(
                "vllm:inter_token_latency_seconds",
                "Between two tokens of a request",
                &TOKEN_BUCKETS,
            ),
            time_per_output_token: histogram(
                "vllm:request_time_per_output_token_seconds",
                "Mean time per token of a request after its first",
                &TOKEN_BUCKETS,
            ),
            e2e_request_latency: histogram(
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to its end",
                &REQUEST_BUCKETS,
            ),
            request_queue_time: histogram(
                "vllm:request_queue_time_seconds",
                "From a request's arrival in the engine to its first step",
                &REQUEST_BUCKETS,
            ),
            request_prefill_time: histogram(
                "vllm:request_prefill_time_seconds",
                "From a request's first step to its first token",
                &REQUEST_BUCKETS,
            ),
            request_decode_time: histogram(
                "vllm:request_decode_time_seconds",
                "From a request's first token to its last",
                &REQUEST_BUCKETS,
            ),
            request_inference_time: histogram(
                "vllm:request_inference_time_seconds",
                "From a request's first step to its last token",
                &REQUEST_BUCKETS,
            ),
            request_generation_tokens: histogram(
                "vllm:request_generation_tokens",
                "Tokens generated for a request",
                &TOKENS_BUCKETS,
            ),
            refused,
            registry,
            recent: Mutex::default(),
        }
    }

    /// A request was refused for want of room, with an error of this code.
    pub fn refused(&self, code: &str) {
        self.refused.get_or_create(&Refused { reason: code.to_owned() }).inc();
    }

    /// The text that a Prometheus server reads.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// The same, at most some milliseconds old, and written for one reader at a time: whoever asks without end takes no more of the
    /// server's threads than that.
    pub async fn recent(&self) -> Result<String, fmt::Error> {
        let mut recent = self.recent.lock().await;
        if let Some((_, text)) = recent.as_ref().filter(|(written, _)| written.elapsed() < RECENT) {
            return Ok(text.clone());
        }
        let text = self.render()?;
        *recent = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

/// Times one request and counts its end: an abort if it is dropped before [`RequestTimer::finish`].
#[derive(Debug)]
pub struct RequestTimer {
    metrics: Arc<Metrics>,
    arrived: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    num_tokens: u32,
    finished: bool,
}

impl RequestTimer {
    /// Times a request that came in at `arrived`.
    pub fn new(metrics: Arc<Metrics>, arrived: Instant) -> Self {
        Self { metrics, arrived, first_token: None, last_token: None, num_tokens: 0, finished: false }
    }

    /// A token came out of the engine.
    pub fn token(&mut self, times: &RequestTimes) {
        let Some(now) = times.last_token else { return };
        match self.last_token.replace(now) {
            // Tokens of one step, which drafts make, come at one time: as in vLLM, it counts once.
            Some(before) if before == now => {}
            Some(before) => self.metrics.inter_token_latency.observe((now - before).as_secs_f64()),
            None => {
                self.first_token = Some(now);
                self.metrics.time_to_first_token.observe((now - self.arrived).as_secs_f64());
            }
        }
        self.num_tokens += 1;
    }

    /// The request has ended for this reason.
    pub fn finish(&mut self, reason: &'static str, times: &RequestTimes) {
        self.finished = true;
        let metrics = &self.metrics;
        metrics.request_success.get_or_create(&Finished { finished_reason: reason }).inc();
        metrics.e2e_request_latency.observe(self.arrived.elapsed().as_secs_f64());
        if let Some(scheduled) = times.scheduled {
            metrics.request_queue_time.observe((scheduled - times.submitted).as_secs_f64());
        }
        if let (Some(scheduled), Some(first), Some(last)) = (times.scheduled, self.first_token, self.last_token) {
            metrics.request_prefill_time.observe((first - scheduled).as_secs_f64());
            metrics.request_decode_time.observe((last - first).as_secs_f64());
            metrics.request_inference_time.observe((last - scheduled).as_secs_f64());
            metrics.request_generation_tokens.observe(self.num_tokens.into());
        }
        if let (Some(first), Some(last), 2..) = (self.first_token, self.last_token, self.num_tokens) {
            let per_token = (last - first).as_secs_f64() / f64::from(self.num_tokens - 1);
            metrics.time_per_output_token.observe(per_token);
        }
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if !self.finished {
            self.metrics.request_success.get_or_create(&Finished { finished_reason: "abort" }).inc();
        }
    }
}

/// Reads the engine's own counters when metrics are asked for.
#[derive(Debug)]
struct EngineCollector(EngineHandle);

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats: EngineStats = self.0.stats();
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        gauge("vllm:num_requests_running", "Requests that are part of every step.", stats.num_running as f64)?;
        gauge("vllm:num_requests_waiting", "Requests that wait for room.", stats.num_waiting as f64)?;
        gauge("vllm:kv_cache_usage_perc", "Used part of the KV cache; 1 is all of it.", stats.kv_cache_usage)?;
        let mut counter = |name: &str, help: &str, value: u64| {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
        };
        counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", stats.prefix_cache_queries)?;
        counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits)?;
        counter("vllm:num_preemptions", "Requests that lost their blocks to others.", stats.num_preemptions)?;
        counter("vllm:prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens)?;
        counter("vllm:spec_decode_num_drafts", "Times that a request had drafts.", stats.num_drafts)?;
        counter("vllm:spec_decode_num_draft_tokens", "Drafts computed.", stats.num_draft_tokens)?;
        counter("vllm:spec_decode_num_accepted_tokens", "Drafts that were right.", stats.num_accepted_tokens)?;
        counter("vllm:generation_tokens", "Tokens generated.", stats.generation_tokens)
    }
}
