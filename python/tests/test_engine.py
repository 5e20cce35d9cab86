"""What vLLM computes on the engine: goldens, batches against single requests, sampling, structured output, refusals, sleep, abort."""

import json
import math
import random
import re
import shutil
import struct
from inspect import signature
from types import SimpleNamespace

import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.core import EngineCore

from vllm_apple import compat
from vllm_apple.v1.attention.backends import apple
from vllm_apple.v1.worker import worker as module

from conftest import DEMO, GOLDEN, golden, start

# vLLM's own class, which 0.12 does not have.
REFUSAL = type(compat.refusal(""))
GREEDY = {"temperature": 0.0, "ignore_eos": True}


def prompt(token_ids):
    return {"prompt_token_ids": list(token_ids)}


def generate(llm, token_ids, **params):
    """The only output of one request."""
    return llm.generate(prompt(token_ids), SamplingParams(**params), use_tqdm=False)[0].outputs[0]


def tokens(llm, token_ids, **params):
    return list(generate(llm, token_ids, **params).token_ids)


def test_vllm_runs_on_this_platform():
    from vllm.platforms import current_platform

    assert type(current_platform).__module__ == "vllm_apple.platform"


@pytest.mark.parametrize("model", ["qwen2", "llama", "mixtral", "gemma3", "gpt-oss"])
def test_greedy_tokens_are_the_goldens(llm, model):
    prompts = golden(model)["prompts"]
    params = [SamplingParams(**GREEDY, max_tokens=len(p["greedy"])) for p in prompts]
    outputs = llm(model).generate([prompt(p["token_ids"]) for p in prompts], params, use_tqdm=False)
    assert len(outputs) == len(prompts) > 0
    for output, expected in zip(outputs, prompts, strict=True):
        assert list(output.outputs[0].token_ids) == expected["greedy"]


def test_layers_may_read_the_cache_of_an_earlier_one(tmp_path):
    """As `kv_sharing_target_layer_name` in vLLM: the last layer has no keys and values of its own, and vLLM gives it no blocks."""
    from safetensors.torch import load_file, save_file

    model = tmp_path / "llama-shared-cache"
    shutil.copytree(GOLDEN / "models/llama", model)
    config = json.loads((model / "config.json").read_text())
    layers = config["num_hidden_layers"]
    (model / "config.json").write_text(json.dumps(config | {"num_kv_shared_layers": 1}))
    [weights] = model.glob("*.safetensors")
    own = re.compile(rf"model\.layers\.{layers - 1}\.self_attn\.[kv]_proj")
    save_file({name: tensor for name, tensor in load_file(weights).items() if not own.match(name)}, weights)
    shared = start(model)
    assert [len(spec) for spec in shared.collective_rpc("get_kv_cache_spec")] == [layers - 1]
    together = shared.generate([prompt(range(10, 30)), prompt(range(10, 60))], SamplingParams(**GREEDY, max_tokens=8), use_tqdm=False)
    alone = [tokens(shared, range(10, end), **GREEDY, max_tokens=8) for end in (30, 60)]
    assert [list(output.outputs[0].token_ids) for output in together] == alone
    assert apple.describe_sharing(1) == " (and 1 that read the KV cache of an earlier one)"


def test_the_demo_model_answers(llm):
    for turn in json.loads((GOLDEN / "demo.json").read_text())["conversation"][:2]:
        output = generate(llm("demo", dtype="bfloat16", max_model_len=1024), turn["prompt_token_ids"], temperature=0.0, max_tokens=64)
        assert output.text == turn["assistant"]
        assert output.finish_reason == "stop"


def bits(logprobs):
    """Log-probabilities with every bit, by position and token."""
    return [{t: (struct.pack("d", e.logprob), e.rank) for t, e in row.items()} if row else None for row in logprobs or []]


def mixed_requests():
    """Thirty requests of many lengths, kinds and shared beginnings."""
    rng = random.Random(7)
    beginning = [rng.randrange(3, 500) for _ in range(48)]
    for i in range(30):
        own = [rng.randrange(3, 500) for _ in range(rng.randrange(1, 90))]
        params = {"max_tokens": rng.randrange(20, 60), "ignore_eos": True, "logprobs": i % 4, "temperature": 0.0}
        if i % 3 == 1:
            params |= {"temperature": 0.9, "seed": i, "top_p": 0.9, "top_k": 40}
        if i % 5 == 2:
            params |= {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}
        if i % 7 == 3:
            params |= {"prompt_logprobs": 2}
        yield (beginning if i % 2 else []) + own, params


def outcome(output):
    only = output.outputs[0]
    return list(only.token_ids), bits(only.logprobs), bits(output.prompt_logprobs)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_mixed_requests_equal_each_alone_bit_for_bit(llm, async_scheduling):
    """Chunked prefill beside decodes, prefix hits, and preemption for want of blocks."""
    requests = list(mixed_requests())
    # Blocks for three to four of the requests at a time; a step takes a part of most prompts.
    tight = start(
        GOLDEN / "models/qwen2",
        num_gpu_blocks_override=28,
        block_size=16,
        max_num_batched_tokens=32,
        enable_prefix_caching=True,
        async_scheduling=async_scheduling,
        disable_log_stats=False,
    )
    together = tight.generate([prompt(p) for p, _ in requests], [SamplingParams(**params) for _, params in requests], use_tqdm=False)
    alone = llm(enable_prefix_caching=False)
    for output, (token_ids, params) in zip(together, requests, strict=True):
        expected = alone.generate(prompt(token_ids), SamplingParams(**params), use_tqdm=False)[0]
        assert outcome(output) == outcome(expected)
        assert len(output.outputs[0].token_ids) == params["max_tokens"]
    metrics = {m.name: m.value for m in tight.get_metrics() if hasattr(m, "value")}
    assert metrics["vllm:num_preemptions"] >= 10
    assert metrics["vllm:prefix_cache_hits"] > 0


def log_softmax(logits):
    largest = max(logits)
    log_sum = math.log(sum(math.exp(x - largest) for x in logits)) + largest
    return [x - log_sum for x in logits]


def test_prompt_logprobs_are_those_of_the_golden_logits(llm):
    from safetensors.numpy import load_file

    logits = load_file(GOLDEN / "logits/qwen2.safetensors")
    for chunk in (None, 16):
        model = llm(max_num_batched_tokens=chunk) if chunk else llm()
        for index, expected in enumerate(golden("qwen2")["prompts"]):
            token_ids, first = expected["token_ids"], expected["first_position"]
            params = SamplingParams(**GREEDY, max_tokens=1, prompt_logprobs=3)
            output = model.generate(prompt(token_ids), params, use_tqdm=False)[0]
            assert len(output.prompt_logprobs) == len(token_ids)
            for position in range(first, len(token_ids) - 1):
                row = log_softmax(logits[f"prompt.{index}"][position - first].tolist())
                found = output.prompt_logprobs[position + 1]
                assert token_ids[position + 1] in found
                assert len(found) >= 3
                for token, entry in found.items():
                    assert entry.logprob == pytest.approx(row[token], abs=2e-3)
                    assert entry.rank == 1 + sum(x > row[token] for x in row)


def test_logprobs_of_the_output(llm):
    output = generate(llm(), range(10, 30), **GREEDY, max_tokens=5, logprobs=4)
    for token, row in zip(output.token_ids, output.logprobs, strict=True):
        assert row[token].rank == 1
        assert sorted(entry.rank for entry in row.values()) == [1, 2, 3, 4]
        assert row[token].logprob == max(entry.logprob for entry in row.values())
    # Sampled beyond the alternatives: its own log-probability is there too.
    output = generate(llm(), range(10, 30), temperature=2.0, seed=1, max_tokens=20, logprobs=1, ignore_eos=True)
    assert any(len(row) == 2 and row[token].rank > 1 for token, row in zip(output.token_ids, output.logprobs, strict=True))


def test_seeds_repeat_and_differ(llm):
    draw = {"temperature": 1.5, "max_tokens": 24, "ignore_eos": True}
    first = tokens(llm(), range(10, 30), **draw, seed=3)
    assert tokens(llm(), range(10, 30), **draw, seed=3) == first
    assert tokens(llm(), range(10, 30), **draw, seed=4) != first
    assert tokens(llm(), range(10, 30), **draw) != tokens(llm(), range(10, 30), **draw)


def test_penalties_and_bias(llm):
    plain = tokens(llm(), range(10, 30), **GREEDY, max_tokens=40)
    assert len(set(plain)) < 40
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 3.0}):
        assert len(set(tokens(llm(), range(10, 30), **GREEDY, max_tokens=40, **penalty))) > len(set(plain))
    assert tokens(llm(), range(10, 30), **GREEDY, max_tokens=3, logit_bias={77: 100.0}) == [77] * 3
    for ban in (-100.0, -math.inf):
        assert plain[0] not in tokens(llm(), range(10, 30), **GREEDY, max_tokens=40, logit_bias={plain[0]: ban})


def test_allowed_tokens_bad_words_and_min_tokens(llm):
    model = llm()
    plain = tokens(model, range(10, 30), **GREEDY, max_tokens=10)
    allowed = tokens(model, range(10, 30), **GREEDY, max_tokens=10, allowed_token_ids=[5, 6, 7])
    assert set(allowed) <= {5, 6, 7}
    # A token that is the whole word, and the second of two.
    tokenizer = model.get_tokenizer()
    word = next(t for t in plain if tokenizer.encode(tokenizer.decode([t]).strip(), add_special_tokens=False) == [t])
    banned = tokens(model, range(10, 30), **GREEDY, max_tokens=10, bad_words=[tokenizer.decode([word]).strip()])
    assert word not in banned
    stop = plain[2]
    short = generate(model, range(10, 30), temperature=0.0, max_tokens=10, stop_token_ids=[stop])
    assert (list(short.token_ids), short.stop_reason) == (plain[: plain.index(stop) + 1], stop)
    held = generate(model, range(10, 30), temperature=0.0, max_tokens=10, stop_token_ids=[stop], min_tokens=8)
    assert len(held.token_ids) >= 8
    assert stop not in held.token_ids[:7]


def test_stop_strings_and_many_answers(llm):
    model = llm("demo", dtype="bfloat16", max_model_len=1024)
    told = model.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=40), use_tqdm=False)[0].outputs[0].text
    stop = told.split()[4]
    params = SamplingParams(temperature=0.0, max_tokens=40, stop=[stop])
    output = model.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0]
    assert output.text == told[: told.index(stop)]
    assert output.stop_reason == stop
    params = SamplingParams(n=4, temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    answers = [model.generate("Once upon a time", params, use_tqdm=False)[0].outputs for _ in range(2)]
    texts = [[output.text for output in outputs] for outputs in answers]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 4


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_structured_output_obeys(llm, async_scheduling):
    # Or a small model writes spaces for ever.
    settings = {"backend": "xgrammar", "disable_any_whitespace": True}
    shared = {"structured_outputs_config": settings, "async_scheduling": async_scheduling}
    model = llm("demo", dtype="bfloat16", max_model_len=1024, **shared)
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    asked = [
        StructuredOutputsParams(choice=["yes", "no"]),
        StructuredOutputsParams(regex=r"[a-c]{3}-[0-9]{2}"),
        StructuredOutputsParams(json=schema),
        None,
    ]
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=60, structured_outputs=s) for i, s in enumerate(asked)]
    choice, regex, obeyed, free = model.generate(["Is it so?"] * 4, params, use_tqdm=False)
    assert choice.outputs[0].text in ("yes", "no")
    letters, digits = regex.outputs[0].text.split("-")
    assert (len(letters), set(letters) <= set("abc"), len(digits), digits.isdecimal()) == (3, True, 2, True)
    answer = json.loads(obeyed.outputs[0].text)
    assert set(answer) == {"name", "age"}
    assert 0 <= answer["age"] <= 99
    # A free request beside them is not held by their masks.
    alone = model.generate("Is it so?", params[3], use_tqdm=False)[0]
    assert free.outputs[0].text == alone.outputs[0].text


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "logprobs"),
        ({"temperature": 1000.0}, "temperature must be"),
        ({"allowed_token_ids": [100_000]}, "allowed_token_ids"),
        ({"prompt_logprobs": 1, "skip_reading_prefix_cache": False}, "skip_reading_prefix_cache"),
    ],
)
def test_a_refused_request_leaves_the_engine_serving(llm, params, reason):
    before = tokens(llm(), range(10, 30), **GREEDY, max_tokens=4)
    with pytest.raises((REFUSAL, ValueError), match=reason):
        tokens(llm(), range(10, 30), max_tokens=4, **params)
    assert tokens(llm(), range(10, 30), **GREEDY, max_tokens=4) == before


def test_prompts_outside_the_vocabulary_are_refused(llm):
    with pytest.raises((REFUSAL, ValueError), match="vocab"):
        tokens(llm(), [1, 100_000], max_tokens=4)
    assert len(tokens(llm(), [1], **GREEDY, max_tokens=4)) == 4


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"enable_lora": True}, "LoRA"),
        ({"kv_cache_dtype": "fp8"}, "kv-cache-dtype"),
        ({"hf_overrides": {"num_hidden_layers": 1}}, "hf-overrides"),
        ({"tensor_parallel_size": 2}, "parallelism"),
        ({"load_format": "gguf"}, "load-format|gguf"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_at_start(settings, reason):
    with pytest.raises((ValueError, RuntimeError), match=reason):
        start(GOLDEN / "models/qwen2", **settings)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_request_without_a_token_ends_alone(llm, async_scheduling):
    """`min_tokens` holds back the only token that is allowed: known within the step only."""
    model = llm(async_scheduling=async_scheduling)
    end = model.get_tokenizer().eos_token_id
    fine = SamplingParams(**GREEDY, max_tokens=6)
    # With log-probabilities, for which vLLM looks at each token.
    stuck = SamplingParams(temperature=0.0, max_tokens=6, min_tokens=4, allowed_token_ids=[end], logprobs=2)
    outputs = model.generate([prompt(range(10, 30))] * 3, [fine, stuck, fine], use_tqdm=False)
    expected = tokens(model, range(10, 30), **GREEDY, max_tokens=6)
    assert [list(outputs[i].outputs[0].token_ids) for i in (0, 2)] == [expected] * 2
    assert set(outputs[1].outputs[0].token_ids) == {end}
    # No token of the row is told to be possible.
    rows = outputs[1].outputs[0].logprobs
    assert [[(token, entry.logprob) for token, entry in row.items()] for row in rows] == [[(end, -math.inf)]] * len(rows)
    assert tokens(model, range(10, 30), **GREEDY, max_tokens=6) == expected


def test_the_log_says_that_a_grammar_leaves_no_token(llm, monkeypatch):
    said = []
    monkeypatch.setattr(module.logger, "error", lambda message, *args: said.append(message % args))
    settings = {"backend": "xgrammar", "disable_any_whitespace": True}
    model = llm("demo", dtype="bfloat16", max_model_len=1024, structured_outputs_config=settings, async_scheduling=False)
    end = model.get_tokenizer().eos_token_id
    # `min_tokens` holds back the only token that the grammar allows after the word.
    asked = {"structured_outputs": StructuredOutputsParams(choice=["yes"]), "temperature": 0.0, "min_tokens": 20, "max_tokens": 30}
    assert generate(model, [1, 2, 3], **asked, logprobs=1).token_ids[-1] == end
    [reason] = said
    assert "no token may be picked" in reason
    assert "grammar (`structured_outputs`)" in reason


def test_a_generation_config_that_vllm_ignores_may_be_wrong(llm, tmp_path):
    model = tmp_path / "qwen2-generation"
    shutil.copytree(GOLDEN / "models/qwen2", model)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 100_000], "repetition_penalty": 0}))
    expected = tokens(llm(), range(10, 30), **GREEDY, max_tokens=4)
    assert tokens(start(model, generation_config="vllm"), range(10, 30), **GREEDY, max_tokens=4) == expected


def worker_of(model):
    return model.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def test_what_sleep_interrupts_ends_and_what_comes_wakes():
    """vLLM 0.12 says that the engine sleeps, and goes on asking it. With `ignore_eos`, as others that end with an error."""
    model = start(GOLDEN / "models/qwen2", enable_prefix_caching=False)
    expected = tokens(model, range(10, 90), **GREEDY, max_tokens=8)
    engine, worker = model.llm_engine, worker_of(model)
    engine.add_request("interrupted", prompt(range(20, 60)), SamplingParams(**GREEDY, max_tokens=100))
    for _ in range(5):
        engine.step()
    worker.sleep()
    finished = []
    while engine.has_unfinished_requests():
        finished += [output for output in engine.step() if output.finished]
    assert finished[0].outputs[0].finish_reason == "stop"
    assert len(finished[0].outputs[0].token_ids) < 10
    worker.sleep()
    assert tokens(model, range(10, 90), **GREEDY, max_tokens=8) == expected
    worker.wake_up()
    assert tokens(model, range(10, 90), **GREEDY, max_tokens=8) == expected


def test_sleep_is_refused_where_it_would_keep_prefixes_that_are_lost(monkeypatch):
    """vLLM 0.12 sleeps without a pause, and forgets no prefix while a request holds blocks."""
    monkeypatch.setattr(EngineCore, "sleep", lambda self, level=1: self.model_executor.sleep(level))
    compat.refuse_sleep_that_keeps_prefixes()
    model = start(GOLDEN / "models/qwen2", enable_prefix_caching=True)
    expected = tokens(model, range(10, 90), **GREEDY, max_tokens=8)
    engine, worker = model.llm_engine, worker_of(model)
    core = engine.engine_core.engine_core
    engine.add_request("in flight", prompt(range(10, 90)), SamplingParams(**GREEDY, max_tokens=100))
    for _ in range(5):
        engine.step()
    with pytest.raises(RuntimeError, match="wait for the requests or abort them, or turn prefix caching off"):
        core.sleep()
    assert not worker.asleep
    engine.abort_request(["in flight"])
    core.sleep(level=2)
    assert worker.asleep
    # A second time, as vLLM allows.
    core.sleep()
    core.wake_up()
    assert tokens(model, range(10, 90), **GREEDY, max_tokens=8) == expected


def test_sleep_that_pauses_first_stays():
    sleep = EngineCore.sleep
    compat.refuse_sleep_that_keeps_prefixes()
    assert (EngineCore.sleep is sleep) == ("mode" in signature(sleep).parameters)


def test_the_worker_says_what_it_cannot(llm):
    worker = worker_of(llm())
    with pytest.raises(NotImplementedError, match="call sleep and wake_up"):
        worker.reload_weights()
    with pytest.raises(NotImplementedError, match="without arguments"):
        worker.reload_weights(weights_path="elsewhere")
    with pytest.raises(NotImplementedError, match="vllm-apple bench"):
        worker.profile(True)
    with pytest.raises(NotImplementedError, match="LoRA"):
        worker.add_lora(None)
    with pytest.raises(RuntimeError, match="copied"):
        worker.execute_model(SimpleNamespace(kv_cache_block_copies=[(1, 2)]))


@pytest.mark.parametrize(
    ("limit", "free", "expected", "warned"),
    [(1000, 1000, 900, False), (1000, 600, 540, True), (None, 990, 891, True), (None, 1100, 900, False)],
)
def test_memory_for_blocks(monkeypatch, limit, free, expected, warned):
    warnings = []
    monkeypatch.setattr(module.logger, "warning", lambda *args: warnings.append(args))
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: SimpleNamespace(total=1000))
    worker = object.__new__(module.AppleWorker)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=None, gpu_memory_utilization=0.9)
    worker.engine = SimpleNamespace(memory_limit=limit, available_memory=free, model_memory=100)
    assert worker.determine_available_memory() == expected - 100
    assert bool(warnings) == warned


def test_sleep_and_wake():
    model = start(GOLDEN / "models/qwen2", enable_sleep_mode=True)
    before = tokens(model, range(10, 90), **GREEDY, max_tokens=8)
    for level in (1, 2):
        model.sleep(level=level)
        model.wake_up()
        assert tokens(model, range(10, 90), **GREEDY, max_tokens=8) == before
    # As vLLM documents it for weights that have changed.
    model.sleep(level=2)
    model.wake_up(tags=["weights"])
    model.collective_rpc("reload_weights")
    model.wake_up(tags=["kv_cache"])
    assert tokens(model, range(10, 90), **GREEDY, max_tokens=8) == before


def test_abort_frees_the_blocks(llm):
    engine = llm("qwen2", enable_prefix_caching=False).llm_engine
    for request in ("a", "b"):
        engine.add_request(request, prompt(range(10, 60)), SamplingParams(**GREEDY, max_tokens=100, output_kind=0))
    for _ in range(5):
        engine.step()
    pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    used = pool.get_num_free_blocks()
    engine.abort_request(["a"])
    engine.step()
    assert pool.get_num_free_blocks() > used
    engine.abort_request(["b"])
    while engine.has_unfinished_requests():
        engine.step()


def test_gpu_memory_utilization_counts_the_model():
    """Blocks take what a share of the machine leaves."""
    import psutil

    share = 256 * 2**20 / psutil.virtual_memory().total
    model = start(DEMO, dtype="bfloat16", kv_cache_memory_bytes=None, gpu_memory_utilization=share)
    config = model.llm_engine.vllm_config.cache_config
    bytes_per_block = 7 * 2 * config.block_size * 2 * 64 * 2
    taken = config.num_gpu_blocks * bytes_per_block
    # The rest is weights, logits and activations.
    assert 100 * 2**20 < taken < 256 * 2**20 - 11 * 2**20
