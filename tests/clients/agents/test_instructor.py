"""Instructor: an object out of a question, by each of its modes that speak OpenAI's or Anthropic's API."""

from collections.abc import Iterable

import anthropic
import instructor
import openai
import pytest
from instructor import Mode

from conftest import API_KEY, MODEL, WEATHER, City, Report, Said

ASK = dict(model=MODEL, messages=[{"role": "user", "content": WEATHER}], response_model=Report, temperature=0, max_retries=0)
HELD = [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS]


@pytest.fixture
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0)


@pytest.mark.parametrize("mode", HELD)
def test_by_openais_api(client, mode):
    assert isinstance(instructor.from_openai(client, mode=mode).chat.completions.create(**ASK), Report)


def test_any_object(client):
    # The schema stands in the prompt alone, which this model does not follow.
    said = instructor.from_openai(client, mode=Mode.JSON).chat.completions.create(**ASK | {"response_model": Said})
    assert isinstance(said, Said)


def test_several_calls(client):
    calls = instructor.from_openai(client, mode=Mode.PARALLEL_TOOLS)
    cities = list(calls.chat.completions.create(**ASK | {"response_model": Iterable[City]}))
    assert cities and all(isinstance(city, City) for city in cities)


def test_in_parts(client):
    parts = list(instructor.from_openai(client, mode=Mode.TOOLS).chat.completions.create_partial(**ASK))
    assert Report.model_validate(parts[-1].model_dump())


@pytest.mark.parametrize("mode", [Mode.ANTHROPIC_TOOLS, Mode.ANTHROPIC_REASONING_TOOLS])
def test_by_anthropics_api(url, mode):
    # The library has no argument for it.
    ask = {name: value for name, value in ASK.items() if name != "temperature"}
    client = anthropic.Anthropic(base_url=url, api_key=API_KEY, max_retries=0)
    assert isinstance(instructor.from_anthropic(client, mode=mode).messages.create(**ask, max_tokens=128), Report)
