"""Quantised checkpoints under vLLM, which has other methods for them with other limits: tokens, log-probabilities, refusals."""

import json
import shutil

import pytest
from safetensors.torch import load_file
from vllm import EngineArgs, SamplingParams

from conftest import GOLDEN, start

QUANTISED = GOLDEN / "quantised/models"
# What vLLM calls AWQ, GPTQ, compressed-tensors, FP8, ModelOpt and MXFP4, four of mixtures of experts; and MLX's, which it does not know.
NAMES = (
    *("awq", "gptq", "gptq-v2", "gptq-act-order", "fp8-tensor", "fp8-block", "mxfp4", "mlx-affine"),
    *("compressed-w4a16", "compressed-w8a16", "compressed-float", "compressed-act-order", "modelopt-nvfp4", "modelopt-mixed", "auto-round"),
)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_log_probabilities_are_the_goldens(name):
    record = json.loads((GOLDEN / f"quantised/logits/{name}.json").read_text())
    logits = load_file(GOLDEN / f"quantised/logits/{name}.safetensors")
    llm = start(QUANTISED / name, max_model_len=128, skip_tokenizer_init=True)
    for index, case in enumerate(record["prompts"]):
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=len(case["greedy"]), prompt_logprobs=3, detokenize=False)
        [output] = llm.generate({"prompt_token_ids": case["token_ids"]}, params, use_tqdm=False)
        assert list(output.outputs[0].token_ids) == case["greedy"]
        assert case["first_position"] == 0
        expected = logits[f"prompt.{index}"].log_softmax(-1)
        # The contract of logits in f32, which the sum over the vocabulary shares.
        tolerance = 1e-3 * record["logits_std"]
        for position, row in enumerate(output.prompt_logprobs[1:]):
            for token, found in row.items():
                assert abs(found.logprob - float(expected[position, token])) < tolerance, (index, position, token)


def configure(model, dtype="float32", **settings):
    args = EngineArgs(model=str(model), dtype=dtype, max_model_len=64, skip_tokenizer_init=True, **settings)
    return args.create_engine_config()


def changed(tmp_path, name, **fields):
    """The checkpoint, quantised in another way if one believes its config.json."""
    shutil.copytree(QUANTISED / name, tmp_path / name)
    path = tmp_path / name / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= fields
    path.write_text(json.dumps(config))
    return tmp_path / name


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("awq", "awq"),
        ("awq", "awq_marlin"),
        ("gptq", "gptq_marlin"),
        ("fp8-block", "fp8"),
        ("compressed-w4a16", "compressed-tensors"),
        ("modelopt-nvfp4", "modelopt_fp4"),
    ],
)
def test_a_method_is_what_the_checkpoint_must_be(name, asked):
    """With every type of activations, of which vLLM's own methods refuse some."""
    for dtype in ("bfloat16", "float16", "float32"):
        configure(QUANTISED / name, dtype, quantization=asked)
    with pytest.raises(ValueError, match=rf"--quantization must be absent or {name.split('-')[0]}.*, got int4"):
        configure(QUANTISED / name, quantization="int4")


FLOATS_OF_8_BITS = {"dynamic": False, "num_bits": 8, "type": "float"}


def test_a_cache_is_what_the_user_asks_for_not_what_modelopts_config_says(tmp_path):
    model = changed(tmp_path, "modelopt-nvfp4", kv_cache_scheme=FLOATS_OF_8_BITS)
    assert configure(model).cache_config.cache_dtype == "auto"
    with pytest.raises(ValueError, match="--kv-cache-dtype fp8"):
        configure(model, kv_cache_dtype="fp8")


def test_a_cache_is_what_the_user_asks_for_not_what_modelopts_own_file_says(tmp_path):
    model = changed(tmp_path, "modelopt-nvfp4")
    config = json.loads((model / "config.json").read_text())
    del config["quantization_config"]
    (model / "config.json").write_text(json.dumps(config))
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    beside = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": quantization}
    (model / "hf_quant_config.json").write_text(json.dumps(beside))
    assert configure(model).cache_config.cache_dtype == "auto"
    with pytest.raises(ValueError, match="--kv-cache-dtype fp8"):
        configure(model, kv_cache_dtype="fp8")


def test_what_the_engine_cannot_read_is_refused_before_it_is_loaded(tmp_path):
    for fields, reason in (
        ({"quant_method": "bitsandbytes"}, r"the weights are quantised \(bitsandbytes\), which is not supported; supported are awq"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "gptq's checkpoint_format marlin"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "compressed-tensors' format marlin-24"),
    ):
        model = changed(tmp_path / reason[:10], "awq", **fields)
        with pytest.raises(ValueError, match=reason):
            configure(model)


def test_floats_become_codes_at_load(monkeypatch):
    model = GOLDEN / "models/qwen2"
    prompt = {"prompt_token_ids": list(range(10, 30))}
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1, logprobs=1)

    def logprob(**settings):
        [output] = start(model, max_model_len=64, **settings).generate(prompt, params, use_tqdm=False)
        return next(iter(output.outputs[0].logprobs[0].values())).logprob

    exact = [logprob(), logprob(quantization="int8"), logprob(quantization="int4")]
    monkeypatch.setenv("VLLM_APPLE_ACTIVATION_DTYPE", "int8")
    assert len({*exact, logprob(quantization="int8"), logprob(quantization="int4")}) == 5
    with pytest.raises((ValueError, RuntimeError), match=r"VLLM_APPLE_ACTIVATION_DTYPE must be auto, .*--quantization int8 or int4"):
        start(model, max_model_len=64)


@pytest.mark.parametrize("name", ["fp8", "awq", "mxfp4"])
def test_what_vllm_makes_of_floats_is_refused_by_its_name(name):
    with pytest.raises(ValueError, match=rf"--quantization {name} for a checkpoint of floats: it makes int8 or int4 of one"):
        configure(GOLDEN / "models/qwen2", quantization=name)
