"""Anthropic's Python library."""

import anthropic
import pytest
from anthropic import beta_tool

from conftest import ANSWER, API_KEY, MODEL, QUESTION, SUNNY, WEATHER, Report, get_weather

# The library has no argument for it.
GREEDY = {"temperature": 0}


@pytest.fixture
def client(url):
    return anthropic.Anthropic(base_url=url, api_key=API_KEY, max_retries=0)


def asked(question):
    return dict(model=MODEL, max_tokens=256, messages=[{"role": "user", "content": question}], extra_body=GREEDY)


def test_whole_and_streamed(client):
    message = client.messages.create(**asked(QUESTION))
    assert [block.text for block in message.content] == [ANSWER]
    assert message.stop_reason == "end_turn"
    with client.messages.stream(**asked(QUESTION)) as stream:
        assert "".join(stream.text_stream) == ANSWER
    assert stream.get_final_message().usage.output_tokens == message.usage.output_tokens
    counted = client.messages.count_tokens(model=MODEL, messages=asked(QUESTION)["messages"])
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_a_conversation_takes_what_came(client):
    first = client.messages.create(**asked(QUESTION))
    ask = asked(QUESTION)
    # As the library hands it out, with `citations` and `parsed_output`.
    ask["messages"] += [{"role": "assistant", "content": first.content}, {"role": "user", "content": QUESTION}]
    assert client.messages.create(**ask).content[0].text == ANSWER


@pytest.mark.parametrize("streams", [False, True])
def test_the_loop_of_tools(client, streams):
    def weather(city: str) -> str:
        """Get the weather in a city."""
        return str(get_weather(city)).replace("'", '"')

    tool = beta_tool(weather, name="get_weather")
    runner = client.beta.messages.tool_runner(**asked(WEATHER), tools=[tool], stream=streams)
    if streams:
        messages = [stream.get_final_message() for stream in runner]
    else:
        messages = list(runner)
    assert messages[0].stop_reason == "tool_use"
    assert messages[-1].content[0].text == SUNNY


def test_parsed(client):
    ask = asked(WEATHER)
    assert isinstance(client.messages.parse(**ask, output_format=Report).parsed_output, Report)
