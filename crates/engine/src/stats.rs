//! A snapshot of the engine's state and totals, for metrics. It knows no clock: times are taken by the handle's thread.

/// The engine's state now and its totals since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct EngineStats {
    /// Requests that are part of every step.
    pub num_running: usize,
    /// Requests that wait for room, preempted ones among them.
    pub num_waiting: usize,
    /// Blocks of the KV cache that requests hold, as a fraction of all.
    pub kv_cache_usage: f64,
    /// Blocks of the KV cache that requests hold.
    pub num_used_blocks: usize,
    /// Blocks of the KV cache.
    pub num_blocks: usize,
    /// Tokens that were looked up in the prefix cache, in total.
    pub prefix_cache_queries: u64,
    /// Tokens of these that were found, in total.
    pub prefix_cache_hits: u64,
    /// How often a request lost its blocks to an older one, in total.
    pub num_preemptions: u64,
    /// Prompt tokens of requests that reached their first output token, in total.
    pub prompt_tokens: u64,
    /// Output tokens, in total.
    pub generation_tokens: u64,
    /// How often a request had drafts, in total.
    pub num_drafts: u64,
    /// Drafts that were computed, in total.
    pub num_draft_tokens: u64,
    /// Drafts of these that were right, in total.
    pub num_accepted_tokens: u64,
    /// Steps that were run, failed ones included, in total.
    pub num_steps: u64,
    /// Steps that failed, in total.
    pub num_failed_steps: u64,
    /// Tokens that the last step computed.
    pub last_step_tokens: usize,
    /// Requests in the last step.
    pub last_step_requests: usize,
}
