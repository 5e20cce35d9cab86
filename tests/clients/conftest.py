"""The bundled model behind the real server, for libraries of clients. Knows what is asked of it, no library."""

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from server import API_KEY, Server

MODEL = "small"
QUESTION = "What is the capital of Norway?"
ANSWER = "The capital of Norway is Oslo."
WEATHER = "What is the weather in Oslo?"
SUNNY = "It is sunny and 18 degrees in Oslo."


class Report(BaseModel):
    """The weather of a city."""

    # What a schema leaves open, a model of this size fills without end.
    model_config = ConfigDict(extra="forbid")

    city: Literal["Oslo", "Bergen"]
    degrees: int = Field(ge=-40, le=50)
    words: list[Literal["sunny", "rainy", "windy"]] = Field(min_length=1, max_length=3)


class Said(BaseModel):
    """What the model says, in the object that it writes where nothing holds it to another."""

    answer: str


class City(BaseModel):
    """The weather in a city."""

    city: str


def get_weather(city: str) -> dict:
    """Get the weather in a city."""
    assert city == "Oslo"
    return {"temperature": 18, "condition": "sunny"}


@pytest.fixture(scope="session")
def url(tmp_path_factory):
    """Where the server answers, without `/v1`."""
    cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    server = Server("--api-key", API_KEY, "--enable-tokenizer-info-endpoint", model=None, environment=cache)
    # The first request of many clients is not sent a second time.
    server.wait_until_ready()
    yield server.url
    server.process.terminate()
    assert server.process.wait(timeout=120) == 0
