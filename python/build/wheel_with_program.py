"""Builds the wheel with maturin, and the program `vllm-apple` into it. It knows no other contents of the wheel.

The setting `profile` is Cargo's: `release` unless another is given. With the setting `program`, that file is taken instead of building one.
All other settings are maturin's.
"""

import json
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import *

PACKAGE = Path(__file__).resolve().parents[1]
# `tool.maturin.data`: what is in `scripts` comes to PATH.
SCRIPTS = PACKAGE / "program" / "scripts"


def _build_program(profile):
    if shutil.which("cargo") is None:
        raise SystemExit("vllm-apple is built with Rust, and there is no `cargo`: install it from https://rustup.rs")
    command = ["cargo", "build", "--profile", profile, "--locked", "--package", "vllm-apple"]
    command += ["--message-format", "json-render-diagnostics"]
    output = subprocess.run(command, cwd=PACKAGE, check=True, stdout=subprocess.PIPE, text=True).stdout
    programs = [message["executable"] for message in map(json.loads, output.splitlines()) if message.get("executable")]
    assert len(programs) == 1, programs
    return programs[0]


def _prepare(config_settings):
    """Puts the program where maturin finds it. What maturin is to be told."""
    settings = dict(config_settings or {})
    profile = settings.pop("profile", "release")
    program = settings.pop("program", None) or _build_program(profile)
    shutil.rmtree(SCRIPTS, ignore_errors=True)
    SCRIPTS.mkdir(parents=True)
    shutil.copy2(program, SCRIPTS / "vllm-apple")
    # Half of it is where lines of the source are.
    subprocess.run(["strip", "-S", SCRIPTS / "vllm-apple"], check=True)
    # Its own way to read its arguments, by any of the names that they have.
    arguments = maturin.get_maturin_pep517_args(settings)
    return settings | {"maturin.build-args": [*arguments, f"--profile={profile}", "--locked"]}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return maturin.build_wheel(wheel_directory, _prepare(config_settings), metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("the program needs the whole repository: build a wheel in it (`--wheel`)")


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return maturin.build_editable(wheel_directory, _prepare(config_settings), metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    settings = {name: value for name, value in (config_settings or {}).items() if name not in ("profile", "program")}
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
