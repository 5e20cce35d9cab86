//! What takes the place of flags that others have and this program has not: of vLLM 0.33's `serve`, llama-server and mlx_lm.server, and some of SGLang's.
//! It knows names, no command line.

/// Flags, between spaces, and what to do instead. A `*` stands for any letters; a whole name comes before names with one,
/// and of these the longest.
const INSTEAD: &[(&str, &str)] = &[
    // Which model.
    (
        "--model -m --hf-repo -hf -hfr --model-url -mu --docker-repo -dr --hf-file -hff",
        "name the model without a flag, such as `serve ORG/NAME`, `serve ORG/NAME:Q4_K_M` or `serve FILE.gguf`",
    ),
    ("--embd-gemma-default --fim-* --gpt-oss-* --vision-*", "name the model, such as `serve ORG/NAME`"),
    ("--models-* --no-models-autoload", "a server has one model: start one for each"),
    ("--alias -a", "use --served-model-name"),
    ("--tags", "leave it out: a model has names here, by --served-model-name, and no tags"),
    ("--hf-token -hft", "set HF_TOKEN"),
    ("--offline", "set HF_HUB_OFFLINE=1"),
    (
        "--download-dir --cache-list -cl",
        "downloads are where Hugging Face's programs keep theirs: HF_HUB_CACHE names another place",
    ),
    ("--code-revision --trust-remote-code --no-trust-remote-code", "leave it out: no code of a checkpoint is run"),
    ("--tokenizer-revision --tokenizer-mode", "leave it out: --tokenizer names a directory with tokenizer.json"),
    (
        "--config-format --load-format --model-impl --model-loader-extra-config --ignore-patterns --pt-load-map-location",
        "leave it out: what the files are is seen from them",
    ),
    (
        "--hf-config-path --hf-overrides --model-class-overrides --override-kv --rope-* --yarn-*",
        "change the checkpoint's config.json: nothing overrides it",
    ),
    (
        "--disable-sliding-window --enable-sliding-window --swa-full",
        "leave it out: layers look as far back as config.json says",
    ),
    (
        "--quantization-config --allow-deprecated-quantization --no-allow-deprecated-quantization",
        "use --quantization; what a checkpoint is quantised with is seen from it",
    ),
    (
        "--safetensors-* --use-tqdm-on-load --no-use-tqdm-on-load --check-tensors --load-mode -lm --lazy-mode -lzm",
        "leave it out: there is one way to read weights",
    ),
    (
        "--skip-tokenizer-init --no-skip-tokenizer-init",
        "leave it out: there is no server without a tokenizer, but prompts may be token ids",
    ),
    ("--task", "use --runner pooling or --runner generate"),
    (
        "--embedding --embeddings --rerank --reranking",
        "use --runner pooling, whose server answers at /v1/embeddings, /score and /rerank",
    ),
    (
        "--pooling --embd-normalize",
        "use --pooler-config, such as {\"pooling_type\": \"MEAN\", \"use_activation\": false}",
    ),
    // How much of it.
    (
        "--ctx-size -c --max-seq-len --context-length --max-kv-size --kv-unified-per-slot",
        "use --max-model-len, which is of each request: requests take the memory of the tokens that they have",
    ),
    ("--fit* -fit*", "leave it out: --max-model-len and the cache are fitted to the memory that there is"),
    ("--batch-size -b --prefill-step-size --max-num-scheduled-tokens", "use --max-num-batched-tokens"),
    ("--ubatch-size -ub", "use --max-num-batched-tokens: a step is not divided"),
    (
        "--parallel -np --max-concurrency --max-num-active-seqs --decode-concurrency --prompt-concurrency",
        "use --max-num-seqs",
    ),
    ("--max-num-queued-reqs --max-num-queued-tokens", "use --max-waiting, beyond which requests are refused"),
    (
        "--gpu-memory-utilization --device-memory-utilization --num-gpu-blocks-override --max-total-tokens --mem-fraction-static",
        "use --kv-cache-memory, such as --kv-cache-memory 4GiB; without it the free memory decides",
    ),
    (
        "--cache-type-k -ctk --cache-type-v -ctv --kv-bits --kv-group-size --quantized-kv-start",
        "use --kv-cache-dtype, which is of keys and values",
    ),
    ("--kv-cache-dtype-skip-layers", "leave it out: --kv-cache-dtype is of all layers"),
    ("--no-cache-prompt --disable-radix-cache", "use --no-enable-prefix-caching"),
    (
        "--cache-* --prompt-cache-* --lookup-cache-* -lcs -lcd -cram --ctx-checkpoints -ctxcp --swa-checkpoints --checkpoint-min-step -cms \
         --no-cache-idle-slots --prefix-* --swa-bounded-replay --no-swa-bounded-replay --kv-unified -kvu --no-kv-unified -no-kvu \
         --defrag-thold -dt --keep --slot* -sps --watermark --scheduler-reserve-full-isl --no-scheduler-reserve-full-isl \
         --disable-hybrid-kv-cache-manager --enable-hybrid-kv-cache-manager --kv-sharing-fast-prefill --no-kv-sharing-fast-prefill",
        "leave it out: one cache of blocks is shared by all requests, and equal beginnings are found in it as long as there is room",
    ),
    (
        "--context-shift --no-context-shift",
        "leave it out: a request ends where --max-model-len does, and nothing is shifted out of it",
    ),
    // Where it is computed.
    (
        "--gpu-layers --n-gpu-layers -ngl --swap-space --mlock --no-mmap --kv-offload* --no-kv-offload -kvo -nkvo --cpu-offload-* --offload-* \
         --op-offload --no-op-offload --override-tensor -ot --cpu-moe -cmoe --n-cpu-* -ncmoe -ncffn --no-host",
        "use --device cpu or --device metal: weights and cache are in the memory of one device, all of them",
    ),
    ("-dev --list-devices", "use --device; `vllm-apple doctor` says what there is"),
    ("--device-ids --split-mode -sm --tensor-split -ts --main-gpu -mg", "leave it out: a Mac has one GPU"),
    (
        "--threads-batch -tb --threads-http --renderer-num-workers --api-server-count -asc",
        "use --threads, which is of the model; all else has threads of its own",
    ),
    (
        "--cpu-mask* -C -Cr -Cb -Crb --cpu-range* --cpu-strict* --prio* --poll --poll-batch --numa* --no-numa-bind",
        "leave it out: the system places the threads; --threads says how many there are",
    ),
    ("--repack --no-repack -nr", "leave it out: weights are laid out as the device's kernels read them"),
    (
        "--flash-attn -fa --attention-* -ac --linear-backend --moe-backend --gdn-* --kda-* --sparse-indexer-* --disable-cascade-attn \
         --enable-cascade-attn --monokernel --no-monokernel",
        "leave it out: there is one kernel of each kind for a device",
    ),
    (
        "--mamba-* --*-mamba-* --enable-mamba-* --disable-mamba-* --replayssm-* --use-replayssm --no-use-replayssm",
        "leave it out: no models with Mamba layers are served",
    ),
    (
        "--enforce-eager --no-enforce-eager --compilation-config -cc --cudagraph-* --no-cudagraph-metrics --max-cudagraph-capture-size \
         --max-seq-len-to-capture -O* --optimization-level --performance-mode --kernel-config --ir-op-priority --jit-monitor-* \
         --no-jit-monitor-verbose --enable-flashinfer-* --disable-flashinfer-* --warmup --no-warmup",
        "leave it out: kernels are compiled and tried out before the first request, and nothing while a model runs",
    ),
    (
        "--tensor-parallel-size -tp --pipeline-parallel-size -pp --pipeline --data-parallel-* --no-data-parallel-* -dp* --dp-* \
         --decode-context-parallel-size -dcp --dcp-* --no-dcp-q-replicate --cp-kv-cache-interleave-size --prefill-context-parallel-size -pcp \
         --enable-expert-parallel --disable-expert-parallel -ep --expert-* --enable-ep-* --disable-ep-* --enable-elastic-ep \
         --disable-elastic-ep --elastic-* --enable-eplb --disable-eplb --eplb-config --enable-dbo --disable-dbo --dbo-* --all2all-backend \
         --enable-hc-sp --disable-hc-sp --enable-batch-sharded-sampling --disable-batch-sharded-sampling --enable-nccl-* --disable-nccl-* \
         --disable-custom-all-reduce --enable-custom-all-reduce --distributed-* --cpu-distributed-* --master-* --nnodes --node-rank \
         --headless --ray-* --no-ray-* --worker-* --max-parallel-loading-workers --enable-shm-tensor-arena --disable-shm-tensor-arena \
         --enable-fault-tolerance --disable-fault-tolerance --fault-tolerance-config --rpc --kv-transfer-config --kv-events-config --ec-* \
         --weight-transfer-config --enable-scale-out --disable-scale-out --tokens-only --no-tokens-only --aggregate-engine-logging",
        "leave it out: a server is one engine on one machine; docs/SCALING.md says how several work together",
    ),
    // How requests share it.
    (
        "--enable-chunked-prefill --disable-chunked-prefill --no-cont-batching -nocb --cont-batching -cb --async-scheduling \
         --no-async-scheduling --long-prefill-* --no-long-prefill-* --prefill-schedule-interval",
        "leave it out: prompts come in chunks of --max-num-batched-tokens, beside all others' tokens, with the same results",
    ),
    ("--scheduling-policy --scheduler-cls", "leave it out: requests are served first come, first served"),
    ("--stream-interval", "leave it out: tokens are sent as they come"),
    (
        "--model-draft -md --draft* --num-draft-tokens --spec-* --no-spec-* -sc --*-draft -hfd -hfrd -td -tbd -Cd -Crd -Cbd -ctkd -ctvd -otd \
         -cmoed -ncmoed -devd -ngld",
        "use --speculative-config, whose drafts are of what was said before: there are no models for drafts",
    ),
    // How answers are drawn.
    ("--temp", "use --temperature, or `temperature` in a request"),
    ("--predict --n-predict", "use --max-tokens, or `max_tokens` in a request"),
    (
        "-n",
        "use --max-tokens, or `max_tokens` in a request; where it was the number of machines, docs/SCALING.md says how several work together",
    ),
    ("--repeat-penalty", "use --repetition-penalty, or `repetition_penalty` in a request"),
    ("-s", "use --seed"),
    ("--reverse-prompt", "use --stop, or `stop` in a request"),
    (
        "-r",
        "use --stop, or `stop` in a request; where it was the rank of a machine, docs/SCALING.md says how several work together",
    ),
    ("--special -sp", "use --keep-special-tokens, or `skip_special_tokens: false` in a request"),
    ("--logit-bias -l", "say it in a request: `logit_bias`"),
    ("--grammar* --json-schema* -j -jf", "say it in a request: docs/API.md has the fields of structured output"),
    (
        "--samplers --sampler-seq --sampling-seq --top-nsigma --top-n-sigma --xtc-* --typical --typical-p --repeat-last-n --dry-* \
         --adaptive-* --dynatemp-* --mirostat* --backend-sampling -bs --use-fp64-gumbel --no-use-fp64-gumbel --enable-trace-replay \
         --disable-trace-replay --logits-processors --watermark-config",
        "there is no such way of sampling here; a request has `temperature`, `top_p`, `top_k`, `min_p` and the penalties",
    ),
    ("--override-generation-config", "say it in a request, or change the checkpoint's generation_config.json"),
    ("--max-logprobs --logprobs-mode", "leave it out: a token has 20 at most, before penalties and temperature"),
    (
        "--return-tokens-as-token-ids --no-return-tokens-as-token-ids",
        "say it in a request: `return_tokens_as_token_ids`",
    ),
    (
        "--structured-outputs-config --guided-decoding-backend",
        "leave it out: there is one implementation, and every request may ask for it",
    ),
    ("--tool-strict-level", "say it in a request: `strict` of a tool"),
    // What requests say and answers show.
    ("--jinja --no-jinja", "leave it out: chat templates are always rendered so"),
    ("--chat-template-file", "use --chat-template, which takes a file or the template itself"),
    ("--use-default-chat-template", "leave it out: the checkpoint's template is the default"),
    (
        "--chat-template-kwargs --chat-template-args --default-chat-template-kwargs",
        "say it in a request: `chat_template_kwargs`",
    ),
    ("--chat-template-content-format", "leave it out: the template shows whether it reads texts or parts"),
    ("--response-role", "leave it out: answers are the assistant's"),
    ("--system-prompt", "say it in a request: a message of the role `system`"),
    (
        "--prompt -p --file -f --binary-file -bf --escape -e --no-escape",
        "use `vllm-apple generate`, whose --prompt or --input it is, or say it in a request",
    ),
    ("--prefill-assistant --no-prefill-assistant", "say it in a request: `continue_final_message`"),
    (
        "--enable-reasoning --reasoning-format",
        "use --reasoning-parser, where the chat template does not show the format",
    ),
    (
        "--reasoning -rea --reasoning-effort* --anthropic-disabled-thinking-effort",
        "say it in a request: `enable_thinking` or `reasoning_effort`",
    ),
    (
        "--reasoning-budget* --reasoning-config",
        "there is no budget of thoughts alone: `max_tokens` in a request is of thoughts and answer",
    ),
    ("--reasoning-preserve --no-reasoning-preserve", "leave it out: the chat template decides which thoughts it shows"),
    (
        "--skip-chat-parsing --no-skip-chat-parsing",
        "use /v1/completions, which answers with the text as it is: in chat, thoughts and calls are always told apart",
    ),
    (
        "--tool-parser-plugin --reasoning-parser-plugin --io-processor-plugin",
        "no code is loaded: --tool-call-parser and --reasoning-parser have the formats that are known",
    ),
    (
        "--exclude-tools-when-tool-choice-none --no-exclude-tools-when-tool-choice-none",
        "leave `tools` out of such a request",
    ),
    (
        "--tool-server --tools --tools-runtime --mcp-* --agent -ag --no-agent -no-ag",
        "leave it out: the client runs the tools",
    ),
    ("--cohere-* --no-cohere-*", "leave it out: there is no such API here; docs/API.md has those that there are"),
    (
        "--enable-prompt-tokens-details --disable-prompt-tokens-details --enable-server-load-tracking --disable-server-load-tracking \
         --metrics --sse-*",
        "leave it out: so it is always: `prompt_tokens_details` in `usage`, /metrics, /load, and signs of life in a stream that waits",
    ),
    (
        "--enable-force-include-usage --disable-force-include-usage",
        "say it in a request: `stream_options: {\"include_usage\": true}`",
    ),
    (
        "--enable-prompt-embeds --return-sampling-mask --no-return-sampling-mask --disable-prompt-embeds --spm-infill \
         --enable-return-routed-experts --disable-return-routed-experts --aux-output-config --diffusion-config -dc --engram-config \
         --additional-config --control-vector*",
        "there is no such thing here",
    ),
    ("--fingerprint-*", "leave it out: answers have no `system_fingerprint`"),
    (
        "--enable-request-id-headers --disable-request-id-headers",
        "leave it out: answers have their id in the body, and no header",
    ),
    // Adapters, images and sounds.
    (
        "--lora* --enable-lora --disable-lora --max-lora* --max-cpu-loras --*-lora --*-loras --*-lora-format --adapter-path",
        "merge the adapter into the checkpoint: adapters are not loaded",
    ),
    (
        "--limit-mm-per-prompt --mmproj* --no-mmproj* -mm* --language-model-only --no-language-model-only --mm-* --no-mm-* --enable-mm-* \
         --disable-mm-* --media-* --allowed-local-media-path --allowed-media-domains --interleave-mm-strings --no-interleave-mm-strings \
         --skip-mm-profiling --no-skip-mm-profiling --video-* --image* --audio* --mtmd-* --trust-request-mm-kwargs \
         --no-trust-request-mm-kwargs --disable-chunked-mm-input --enable-chunked-mm-input --enable-flash-late-interaction \
         --disable-flash-late-interaction",
        "leave it out: only text is read",
    ),
    // How the server listens.
    ("--uds --grpc* --reuse-port", "a server listens at one address, by HTTP: --host and --port"),
    ("--config", "write the flags on the command line: no file of them is read"),
    (
        "--ssl-* --enable-ssl-* --disable-ssl-* --root-path --api-prefix --middleware --h11-* --timeout -to",
        "put a proxy before the server: docs/SECURITY.md says what it must do",
    ),
    ("--api-key-file", "use --api-key, or VLLM_API_KEY"),
    ("--cors-origins", "use --allowed-origins, a list in JSON"),
    ("--cors-methods --cors-headers", "use --allowed-methods or --allowed-headers, lists in JSON"),
    ("--cors-credentials --no-cors-credentials", "use --allow-credentials"),
    (
        "--path --ui* --no-ui* --webui* --no-webui* --props --disable-fastapi-docs --enable-fastapi-docs --enable-offline-docs \
         --disable-offline-docs",
        "leave it out: there are no pages and no settings that can be changed, but /openapi.json",
    ),
    (
        "--sleep-* --no-sleep-* --enable-sleep-mode --disable-sleep-mode --enable-cumem-allocator --disable-cumem-allocator",
        "there is no sleep: end the server, and start it again",
    ),
    // What it says of itself.
    (
        "--disable-log-* --enable-log-* --log-* --no-log-* --logging-config --uvicorn-log-level --disable-uvicorn-access-log \
         --enable-uvicorn-access-log --disable-access-log-for-endpoints --verbose -v -lv --verbosity --max-log-len \
         --enable-logging-iteration-details --disable-logging-iteration-details --fail-on-environ-validation --no-fail-on-environ-validation",
        "set VLLM_LOGGING_LEVEL, or RUST_LOG; requests that are answered are not logged, and /metrics counts them",
    ),
    (
        "--otlp-* --slots --no-slots --collect-detailed-traces --show-hidden-metrics-for-version --enable-per-request-metrics \
         --disable-per-request-metrics --per-request-* --kv-cache-metrics* --no-kv-cache-metrics --custom-histogram-buckets \
         --enable-layerwise-* --disable-layerwise-* --enable-mfu-metrics --disable-mfu-metrics --profiler-config --watchdog-config --perf \
         --no-perf",
        "leave it out: what is measured is at /metrics, and `vllm-apple bench` measures the model",
    ),
    ("--completion-bash", "there are no completion scripts"),
    ("--version", "it stands alone: `vllm-apple --version`"),
    ("--usage", "use --help"),
];

/// What to do instead of `flag`, a name without a value; vLLM's names may have `_` for `-`, and a key behind a point.
pub fn instead(flag: &str) -> Option<&'static str> {
    let name = flag.replace('_', "-");
    // vLLM takes them for what they were called before 0.33.
    let name = match (name.strip_prefix("--no-enable-"), name.strip_prefix("--no-disable-")) {
        (Some(rest), _) => format!("--disable-{rest}"),
        (_, Some(rest)) => format!("--enable-{rest}"),
        _ => name,
    };
    let key = name.split_once('.').map(|(name, _key)| name);
    whole(&name).or_else(|| key.and_then(whole)).or_else(|| by_part(&name))
}

fn whole(name: &str) -> Option<&'static str> {
    INSTEAD.iter().find(|(patterns, _)| patterns.split(' ').any(|pattern| pattern == name)).map(|(_, instead)| *instead)
}

/// By the longest of the patterns that it matches.
fn by_part(name: &str) -> Option<&'static str> {
    let matching = |pattern: &str| {
        let (begin, end) = pattern.split_once('*')?;
        let matches = name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end);
        matches.then_some(begin.len() + end.len())
    };
    let all = INSTEAD.iter().flat_map(|(patterns, instead)| patterns.split(' ').map(move |pattern| (pattern, instead)));
    let fitting = all.filter_map(|(pattern, instead)| Some((matching(pattern)?, *instead)));
    fitting.max_by_key(|(length, _)| *length).map(|(_, instead)| instead)
}
