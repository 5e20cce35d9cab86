"""OpenAI's Python library: what it adds to plain requests. Those are tested in tests/python."""

import asyncio

import openai
import pytest

from conftest import ANSWER, API_KEY, MODEL, QUESTION, WEATHER, Report, get_weather


@pytest.fixture
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0)


def test_parsed_chat(client):
    ask = dict(model=MODEL, messages=[{"role": "user", "content": WEATHER}], response_format=Report)
    assert isinstance(client.chat.completions.parse(**ask).choices[0].message.parsed, Report)
    with client.chat.completions.stream(**ask) as stream:
        kinds = {event.type for event in stream}
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(stream.get_final_completion().choices[0].message.parsed, Report)


def test_parsed_response(client):
    reply = client.responses.parse(model=MODEL, input=WEATHER, text_format=Report)
    assert isinstance(reply.output_parsed, Report)


def test_tools_of_classes(client):
    tool = openai.pydantic_function_tool(Report, name="report")
    ask = dict(model=MODEL, messages=[{"role": "user", "content": WEATHER}], tools=[tool], tool_choice="required")
    # Or it may call again and again.
    ask |= dict(parallel_tool_calls=False)
    [call] = client.chat.completions.parse(**ask).choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Report)


def test_what_came_goes_back_whole(client):
    """A message that the library read is sent again with all its fields, those that are none among them."""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": get_weather.__doc__,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    messages = [{"role": "user", "content": WEATHER}]
    ask = dict(model=MODEL, messages=messages, tools=[tool], temperature=0)
    message = client.chat.completions.create(**ask).choices[0].message
    messages += [message.model_dump(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18"}]
    messages += [client.chat.completions.create(**ask).choices[0].message.to_dict()]
    messages += [{"role": "user", "content": QUESTION}]
    assert client.chat.completions.create(**ask).choices[0].message.content == ANSWER


def test_without_blocking(url):
    async def answer():
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0)
        ask = dict(model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True)
        stream = await client.chat.completions.create(**ask)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(answer()) == ANSWER
