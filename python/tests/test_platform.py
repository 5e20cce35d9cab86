"""When the plugin is active, and what it says when it is not. It loads no model."""

import argparse
import json
import logging
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import huggingface_hub
import psutil
import pytest
import vllm.envs
import vllm.platforms
from vllm import EngineArgs, SamplingParams

import vllm_apple
from vllm_apple import _engine, compat, envs
from vllm_apple.engine import options, params
from vllm_apple.platform import ApplePlatform
from vllm_apple.v1.attention.backends import apple

from conftest import GOLDEN, readable


def test_the_variable_decides(monkeypatch):
    assert vllm_apple.register() == vllm_apple.PLATFORM
    monkeypatch.setenv("VLLM_PLATFORM", "cuda")
    assert vllm_apple.register() is None
    # Without it, only where vLLM would choose no other accelerator.
    monkeypatch.setenv("VLLM_PLATFORM", "")
    monkeypatch.setattr(compat, "other_platforms", list)
    assert vllm_apple.register() == vllm_apple.PLATFORM
    said = []
    monkeypatch.setattr(logging.getLogger("vllm.apple"), "warning", lambda message, *args: said.append(message % args))
    monkeypatch.setattr(compat, "other_platforms", lambda: ["cuda"])
    assert vllm_apple.register() is None
    assert said == ["vllm-apple stands back for cuda: VLLM_PLATFORM=apple chooses it"]


def test_other_platforms_are_those_that_vllm_would_load(monkeypatch):
    ours, other = SimpleNamespace(name="apple", value="vllm_apple:register"), SimpleNamespace(name="other", value="other_platform:register")
    monkeypatch.setattr(compat, "entry_points", lambda group: [ours, other] if group == "vllm.platform_plugins" else [])
    monkeypatch.setattr(vllm.platforms, "builtin_platform_plugins", {"cpu": lambda: "vllm.platforms.cpu.CpuPlatform"})
    for allowed, found in ((None, ["other"]), (["apple", "other"], ["other"]), (["apple"], []), ([""], [])):
        monkeypatch.setattr(vllm.envs, "VLLM_PLUGINS", allowed, raising=False)
        assert compat.other_platforms() == found


def test_the_command_line_takes_the_plugins_names():
    """With vLLM 0.12's list of its own; later versions have none."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    group = parser.add_argument_group("model")
    group.add_argument("--quantization", "-q", choices=["awq", "fp8"])
    for _ in range(2):
        ApplePlatform.pre_register_and_update(parser)
    for name in ("int8", "int4", "mlx", "awq"):
        assert parser.parse_args(["--quantization", name]).quantization == name
        assert parser.parse_args(["-q", name]).quantization == name
    with pytest.raises(argparse.ArgumentError, match="invalid choice: 'int5'"):
        parser.parse_args(["--quantization", "int5"])
    assert "{awq,fp8,int8,int4,mlx}" in parser.format_help()


def test_a_command_line_without_a_list_of_methods_stays():
    free, none = argparse.ArgumentParser(), argparse.ArgumentParser()
    free.add_argument("--quantization")
    for parser in (free, none, None):
        ApplePlatform.pre_register_and_update(parser)
    assert free.parse_args(["--quantization", "anything"]).quantization == "anything"


def test_another_platform_is_an_error(monkeypatch):
    from vllm.platforms.cpu import CpuPlatform

    vllm_apple.check_platform()
    monkeypatch.setattr(vllm.platforms, "_current_platform", CpuPlatform())
    with pytest.raises(RuntimeError, match="VLLM_PLATFORM=apple, but vLLM runs on vllm"):
        vllm_apple.check_platform()
    monkeypatch.setenv("VLLM_PLATFORM", "")
    vllm_apple.check_platform()


def test_a_name_that_is_no_platforms_is_an_error(monkeypatch):
    from vllm.platforms.cpu import CpuPlatform

    monkeypatch.setattr(vllm.platforms, "_current_platform", CpuPlatform())
    other = SimpleNamespace(name="other", value="other_platform:register")
    monkeypatch.setattr(compat, "entry_points", lambda group: [other] if group == "vllm.platform_plugins" else [])
    for asked in ("cpu", "cuda", "other"):
        monkeypatch.setenv("VLLM_PLATFORM", asked)
        vllm_apple.check_platform()
    for asked in ("Apple", "metal", "apple "):
        monkeypatch.setenv("VLLM_PLATFORM", asked)
        with pytest.raises(RuntimeError, match=f"VLLM_PLATFORM='{asked}' is no platform: it may be apple, .*cpu.*, other"):
            vllm_apple.check_platform()


def test_a_variable_that_keeps_vllm_from_asking_is_named(monkeypatch):
    from vllm.platforms.cpu import CpuPlatform

    said = []
    monkeypatch.setattr(logging.getLogger("vllm.apple"), "warning", said.append)
    monkeypatch.setattr(vllm.platforms, "_current_platform", CpuPlatform())
    for asked, target in (("", ""), ("", "empty"), ("cpu", "cpu")):
        monkeypatch.setenv("VLLM_PLATFORM", asked)
        monkeypatch.setenv("VLLM_TARGET_DEVICE", target)
        vllm_apple.check_platform()
    assert said == []
    monkeypatch.setenv("VLLM_PLATFORM", "")
    vllm_apple.check_platform()
    [warning] = said
    assert "because of VLLM_TARGET_DEVICE=cpu" in warning
    assert "VLLM_PLATFORM=apple" in warning
    # Processes that vLLM has started say nothing.
    monkeypatch.setattr(vllm_apple, "parent_process", object)
    vllm_apple.check_platform()
    assert len(said) == 1


def test_vllm_calls_the_check():
    """With a plugin that fails to register, as vLLM would otherwise not say."""
    code = "import vllm_apple.compat as c; c.prepare = lambda: 1 / 0\nfrom vllm.plugins import load_general_plugins; load_general_plugins()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode != 0
    assert "vllm-apple: the plugin cannot be registered: ZeroDivisionError" in done.stderr
    assert "RuntimeError: VLLM_PLATFORM=apple, but vLLM runs on" in done.stderr


def test_variables_are_checked(monkeypatch):
    assert envs.VLLM_METAL_ATTENTION is True
    for name, bad in (("VLLM_METAL_ATTENTION", "yes"), ("VLLM_METAL_SCRATCH_POOL_MB", "0"), ("VLLM_APPLE_THREADS", "x")):
        monkeypatch.setenv(name, bad)
        with pytest.raises(ValueError, match=f"{name}.*{bad}"):
            getattr(envs, name)


def test_the_device_is_chosen_as_documented(monkeypatch):
    for asked, use_engine, device in (
        ("", "1", "auto"),
        ("", "0", "cpu"),
        ("auto", "0", "cpu"),
        ("software-metal", "", "software-metal"),
    ):
        monkeypatch.setenv("VLLM_APPLE_DEVICE", asked)
        monkeypatch.setenv("VLLM_APPLE_USE_ENGINE", use_engine)
        assert options.device() == device


def test_what_of_the_device_is_ignored_is_said(monkeypatch):
    said = []
    monkeypatch.setattr(options.logger, "warning", said.append)
    monkeypatch.setattr(options.logger, "info", said.append)
    monkeypatch.setenv("VLLM_APPLE_USE_ENGINE", "0")
    for asked in ("cpu", "metal", ""):
        monkeypatch.setenv("VLLM_APPLE_DEVICE", asked)
        options.device()
    assert said == [
        "VLLM_APPLE_USE_ENGINE=0 is ignored: the Metal kernels are asked for",
        "VLLM_APPLE_USE_ENGINE=0: computing on the CPU",
    ]


def configure(model="qwen2", **settings):
    return EngineArgs(model=str(readable(GOLDEN / "models" / model)), dtype="float32", max_model_len=64, **settings).create_engine_config()


def test_large_machines_have_steps_of_the_same_size(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=512 << 30))
    tokens, requests = EngineArgs.get_batch_defaults(1)
    assert max(tokens.values()) <= 8192
    assert min(tokens.values()) == 2048
    assert set(requests.values()) == {256}


def test_blocks_have_32_tokens_unless_asked():
    assert configure().cache_config.block_size == 32
    assert configure(block_size=16).cache_config.block_size == 16


def test_sleep_needs_no_allocator_of_cudas(monkeypatch):
    """vLLM 0.22 asks a function of its own."""
    from vllm.config import model

    compat.sleep_without_an_allocator()
    monkeypatch.setattr(model, "is_cumem_allocator_available", lambda: False, raising=False)
    compat.sleep_without_an_allocator()
    assert model.is_cumem_allocator_available()


def test_asynchronous_scheduling_is_for_those_who_ask():
    assert configure().scheduler_config.async_scheduling is False
    assert configure(async_scheduling=True).scheduler_config.async_scheduling is True


def test_engines_of_a_mixture_of_experts_are_independent(monkeypatch):
    monkeypatch.setenv("VLLM_APPLE_THREADS", "2")
    assert not getattr(configure("mixtral", data_parallel_size=2).model_config, "is_moe", False)


def test_the_token_of_the_hub_is_vllms(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "of the environment")
    assert options.engine_options(configure())["token"] == "of the environment"
    assert options.engine_options(configure(hf_token="given"))["token"] == "given"


def test_weights_are_of_the_revision_and_in_the_cache_of_the_configuration(monkeypatch):
    class Resolved(str):
        """As `huggingface_hub.ResolvedRevision`, which older versions do not have."""

        resolved = "0123abcd"

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "/where/vllm/reads")
    config = configure()
    asked = options.engine_options(config)
    assert (asked["revision"], asked["download_dir"]) == (None, "/where/vllm/reads")
    config.load_config.download_dir = "/elsewhere"
    for revision, expected in (("v1", "v1"), (Resolved("v1"), "0123abcd")):
        config.model_config.revision = revision
        asked = options.engine_options(config)
        assert (asked["revision"], asked["download_dir"]) == (expected, "/elsewhere")


@pytest.mark.parametrize(
    ("part", "name", "value", "reason"),
    [
        ("", "aux_output_config", SimpleNamespace(enabled=True), "--enable-return-routed-experts"),
        ("model_config", "enable_return_routed_experts", True, "--enable-return-routed-experts"),
        ("", "weight_transfer_config", object(), "--weight-transfer-config"),
        ("model_config", "model_class_overrides", {"A": "b:C"}, "--model-class-overrides"),
        ("model_config", "model_impl", "transformers", "--model-impl transformers"),
        ("", "profiler_config", SimpleNamespace(profiler="torch"), "--profiler-config (`vllm-apple bench` measures the engine)"),
    ],
)
def test_what_would_change_results_is_refused(part, name, value, reason):
    config = configure()
    assert options.refusals(config) == []
    changed = getattr(config, part) if part else config
    object.__setattr__(changed, name, value)
    assert options.refusals(config) == [reason]


def test_what_is_around_vllm_is_refused(monkeypatch):
    config = configure(cpu_offload_gb=0)
    monkeypatch.setattr(vllm.envs, "VLLM_USE_MODELSCOPE", True, raising=False)
    monkeypatch.setattr(options, "entry_points", lambda group: [SimpleNamespace(value=f"{group}:All")])
    modelscope, processors = options.refusals(config)
    assert modelscope == "VLLM_USE_MODELSCOPE"
    assert "vllm.logits_processors:All" in processors
    with pytest.raises(ValueError, match="--cpu-offload-gb"):
        configure(cpu_offload_gb=1)
    monkeypatch.setenv("VLLM_APPLE_THREADS", "2")
    with pytest.raises(ValueError, match="--enable-expert-parallel"):
        configure("mixtral", data_parallel_size=2, enable_expert_parallel=True)


def test_no_request_may_be_longer_than_a_window_that_is_turned_off(monkeypatch):
    """The engine has the window from the checkpoint, whatever vLLM is told."""
    model = str(readable(GOLDEN / "models/mistral"))
    settings = {"model": model, "dtype": "float32", "disable_sliding_window": True}
    window = json.loads((GOLDEN / "models/mistral/config.json").read_text())["sliding_window"]
    assert EngineArgs(**settings).create_engine_config().model_config.max_model_len == window
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    configure("mistral")
    with pytest.raises(ValueError, match="--disable-sliding-window with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"):
        EngineArgs(**settings, max_model_len=256).create_engine_config()


def test_what_is_lowered_or_ignored_is_said(monkeypatch):
    from vllm_apple import platform

    said = []
    for module in (options, platform):
        monkeypatch.setattr(module.logger, "info", lambda message, *args: said.append(message % args))
    config = configure(max_logprobs=-1, distributed_executor_backend="mp", async_scheduling=False)
    assert config.model_config.max_logprobs == 20
    assert config.parallel_config.distributed_executor_backend == "uni"
    assert len(said) == 2
    assert "--distributed-executor-backend mp" in said[0]
    assert "--max-logprobs -1" in said[1]


def test_settings_of_vllms_own_computing_are_said_to_be_ignored(monkeypatch):
    config = configure()
    assert compat.ignored(config) == []
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    object.__setattr__(config, "attention_config", SimpleNamespace(backend="FLASH_ATTN"))
    object.__setattr__(config, "kernel_config", SimpleNamespace(moe_backend="triton", linear_backend="auto"))
    assert compat.ignored(config) == [
        "--attention-backend",
        "--moe-backend",
        "VLLM_CPU_KVCACHE_SPACE (here: --kv-cache-memory-bytes)",
    ]


def test_the_platform_itself_refuses_what_the_engine_cannot_do():
    """Newer versions of vLLM refuse some of this before they ask."""

    def refusal(tokens=(1, 2), **asked):
        try:
            params.check(SamplingParams(max_tokens=4, **asked), list(tokens), 512)
        except type(compat.refusal("")) as error:
            return str(error)
        return ""

    assert refusal() == ""
    assert refusal(stop_token_ids=[-1]) == ""
    assert "the prompt contains token -1" in refusal(tokens=(1, -1))
    assert "the prompt contains token 512" in refusal(tokens=(1, 512))
    assert "the prompt is empty" in refusal(tokens=())
    assert "logprobs must be from 0 to 20 with vllm-apple" in refusal(logprobs=21)
    assert "prompt_logprobs must be from 0 to 20 with vllm-apple" in refusal(prompt_logprobs=21)
    assert "allowed_token_ids contains 512" in refusal(allowed_token_ids=[512])
    assert refusal(logit_bias={5: -math.inf}) == ""
    for bias in (math.inf, 200.0, math.nan):
        assert "logit_bias must be" in refusal(logit_bias={5: bias})


def test_engines_of_one_machine_share_its_processor(monkeypatch):
    class Config:
        class parallel_config:  # noqa: N801
            data_parallel_size_local = 2

    assert 1 <= _engine.available_parallelism() <= os.cpu_count()
    monkeypatch.setenv("VLLM_APPLE_THREADS", "")
    monkeypatch.setattr(_engine, "available_parallelism", lambda: 8)
    options.share_processor(Config)
    assert envs.VLLM_APPLE_THREADS == 4
    # Engines that a process configures later have their own share.
    for engines, share in ((4, 2), (1, None), (2, 4)):
        Config.parallel_config.data_parallel_size_local = engines
        options.share_processor(Config)
        assert share == envs.VLLM_APPLE_THREADS
    # In one of the engines, what it was told stays.
    monkeypatch.setattr(options, "parent_process", object)
    Config.parallel_config.data_parallel_size_local = 1
    options.share_processor(Config)
    assert envs.VLLM_APPLE_THREADS == 4
    # And everywhere, what the user has set.
    monkeypatch.setattr(options, "parent_process", lambda: None)
    monkeypatch.setenv("VLLM_APPLE_THREADS", "3")
    for engines in (2, 1):
        Config.parallel_config.data_parallel_size_local = engines
        options.share_processor(Config)
        assert envs.VLLM_APPLE_THREADS == 3


def test_where_attention_is_computed_is_said(monkeypatch):
    assert apple.describe("cpu", 64, 16) == "on the CPU"
    assert apple.describe("metal", 64, 16) == "by the Metal kernels"
    assert "no heads of 512" in apple.describe("metal", 512, 16)
    assert "no heads of 20" in apple.describe("metal", 20, 16)
    assert "no blocks of 8" in apple.describe("metal", 64, 8)
    monkeypatch.setenv("VLLM_METAL_ATTENTION", "0")
    assert "VLLM_METAL_ATTENTION=0" in apple.describe("software-metal", 64, 16)


def test_unknown_versions_are_named(monkeypatch):
    assert compat.version_note() is None
    monkeypatch.setattr(compat, "version", lambda _: "0.34.1")
    assert "vLLM 0.34 is not among" in compat.version_note()
    # A clone that has none of vLLM's tags, one that has, and a directory without git.
    for version, found in (("0.1.dev1+g0123abc", compat.NEWEST), ("0.33.1.dev2+g0123abc", (0, 33)), ("dev", compat.NEWEST)):
        monkeypatch.setattr(compat, "version", lambda _, version=version: version)
        assert compat.vllm_version() == found
        assert compat.version_note() is None


def test_messages_name_vllms_settings():
    message = "raise `max_num_batched_tokens` or `metal_strict`"
    assert options.in_vllms_words(message) == "raise --max-num-batched-tokens or VLLM_METAL_STRICT"
