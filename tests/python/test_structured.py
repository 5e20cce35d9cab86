"""Structured output, tools and unknown fields with the official OpenAI client: the model is random, so that only the server can keep its word."""

import json
from enum import Enum

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from conftest import MESSAGES_ALONE, MODEL, serve

MESSAGES = [{"role": "user", "content": "Who is Ann?"}]


class Colour(Enum):
    red = "red"
    green = "green"


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: Colour
    tall: bool
    marks: list[Colour] | None


TOOL = openai.pydantic_function_tool(Person, name="remember")


@pytest.fixture(scope="module")
def without_tools():
    yield from serve("--chat-template", MESSAGES_ALONE)


def test_an_answer_parses_into_its_type(client):
    for seed in range(3):
        reply = client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=Person, seed=seed, max_tokens=200, presence_penalty=1.0
        )
        assert isinstance(reply.choices[0].message.parsed, Person)


def test_a_stream_parses_into_its_type(client):
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Person, seed=1, max_tokens=200, presence_penalty=1.0
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)


def test_vllms_forms(client):
    ask = dict(model=MODEL, messages=MESSAGES, max_tokens=60, seed=3)
    for extra in [
        {"guided_choice": ["yes", "no"]},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"regex": "yes|no"}},
        {"guided_grammar": 'start: "yes" | "no"'},
    ]:
        assert client.chat.completions.create(**ask, extra_body=extra).choices[0].message.content in ("yes", "no")
    text = client.completions.create(model=MODEL, prompt="x", max_tokens=60, extra_body={"guided_regex": "[ab]{4}"})
    assert len(text.choices[0].text) == 4 and set(text.choices[0].text) <= {"a", "b"}


def test_a_call_that_is_required_parses(with_tools):
    ask = dict(model=MODEL, messages=MESSAGES, tools=[TOOL], max_tokens=150, presence_penalty=1.0, parallel_tool_calls=False)
    named = {"type": "function", "function": {"name": "remember"}}
    for choice, seed in [("required", 1), ("required", 2), (named, 3)]:
        reply = with_tools.chat.completions.parse(**ask, tool_choice=choice, seed=seed)
        message = reply.choices[0].message
        assert isinstance(message.tool_calls[0].function.parsed_arguments, Person)
        assert message.content is None
        arguments = ""
        for chunk in with_tools.chat.completions.create(**ask, tool_choice=choice, seed=seed, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                arguments += call.function.arguments or ""
        assert json.loads(arguments) == json.loads(message.tool_calls[0].function.arguments)
    # The conversation goes on with what the client library holds.
    after = [*MESSAGES, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}]
    with_tools.chat.completions.create(**{**ask, "messages": after, "max_tokens": 4})


def test_what_cannot_be_done_is_said(client, without_tools):
    ask = dict(model=MODEL, messages=MESSAGES, max_tokens=4)
    with pytest.raises(openai.BadRequestError, match="does not show tools"):
        without_tools.chat.completions.create(**ask, tools=[TOOL])
    with pytest.raises(openai.BadRequestError, match="did you mean `repetition_penalty`"):
        client.chat.completions.create(**ask, extra_body={"repetition_penalti": 1.1})
    with pytest.raises(openai.BadRequestError, match="cannot be held to"):
        client.chat.completions.create(**ask, extra_body={"guided_json": {"type": "nonsense"}})
    answer = client.chat.completions.with_raw_response.create(**ask, user="me", store=True)
    assert answer.headers["x-fields-without-effect"] == "store, user"
