"""What is in the wheel, and that it is what the other tests run. It needs WHEEL_UNDER_TEST, which tools/test-vllm.sh sets."""

import os
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pytest

import vllm_apple

from conftest import ROOT

KERNELS = sorted((ROOT / "crates/metal/kernels").glob("*.metal"))
PROGRAM = Path(sysconfig.get_path("scripts")) / "vllm-apple"


@pytest.fixture(scope="module")
def wheel():
    with zipfile.ZipFile(os.environ["WHEEL_UNDER_TEST"]) as archive:
        yield {name: archive.read(name) for name in archive.namelist()}


def only(wheel, end):
    [name] = [name for name in wheel if name.endswith(end)]
    return wheel[name]


def test_one_wheel_serves_every_python():
    assert "-cp310-abi3-" in os.environ["WHEEL_UNDER_TEST"]


# Measuring a device is the program's.
@pytest.mark.parametrize(("binary", "without"), [("vllm_apple/_engine.abi3.so", ["roofline.metal"]), (".data/scripts/vllm-apple", [])])
def test_the_kernels_are_inside(wheel, binary, without):
    content = only(wheel, binary)
    kernels = [kernel for kernel in KERNELS if kernel.name not in without]
    assert len(kernels) > 15
    for kernel in kernels:
        assert kernel.read_bytes() in content, kernel.name


def test_the_license_is_inside(wheel):
    assert only(wheel, ".dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_every_module_is_inside_and_typed(wheel):
    package = ROOT / "python/vllm_apple"
    sources = [path for path in package.rglob("*") if path.suffix in (".py", ".pyi", ".typed")]
    assert len(sources) > 10
    for path in sources:
        assert wheel[f"vllm_apple/{path.relative_to(package)}"] == path.read_bytes()


def test_what_is_tested_is_what_is_in_the_wheel(wheel):
    installed = Path(vllm_apple.__file__).parent / "_engine.abi3.so"
    assert ROOT / "python" not in installed.parents
    assert installed.read_bytes() == only(wheel, "vllm_apple/_engine.abi3.so")
    assert PROGRAM.read_bytes() == only(wheel, ".data/scripts/vllm-apple")


def test_the_program_answers_without_python():
    command = [PROGRAM, "generate", "--prompt", "Once upon a time", "--max-tokens", "8", "--temperature", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert len(done.stdout.split()) > 3
