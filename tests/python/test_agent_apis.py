"""The APIs that agents speak, with the clients that they use: OpenAI's Responses and Anthropic's Messages."""

import json

import anthropic
import openai
import pytest

from conftest import API_KEY, MODEL

TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def claude(server):
    # Not its default of 10 minutes: a test that hangs should end.
    return anthropic.Anthropic(base_url=server.url, api_key=API_KEY, max_retries=20, timeout=120)


def test_a_response_and_its_stream(client):
    ask = dict(model=MODEL, input="Hello, who are you?", max_output_tokens=16, temperature=0)
    whole = client.responses.create(**ask)
    assert whole.usage.input_tokens + whole.usage.output_tokens == whole.usage.total_tokens
    assert whole.status in ("completed", "incomplete")
    with client.responses.stream(**ask) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == whole.output_text
    kinds = [event.type for event in client.responses.create(**ask, stream=True)]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}"
    # As chat answers it.
    messages = [{"role": "user", "content": ask["input"]}]
    chat = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=16, temperature=0)
    assert chat.choices[0].message.content == whole.output_text


def test_a_conversation_is_kept(client):
    first = client.responses.create(model=MODEL, input="Hi", max_output_tokens=8, temperature=0)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    ask = dict(model=MODEL, max_output_tokens=8, temperature=0)
    kept = client.responses.create(**ask, previous_response_id=first.id, input="And?")
    # The same, brought by the client.
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And?"},
    ]
    brought = client.responses.create(**ask, input=said, store=False)
    assert kept.output_text == brought.output_text
    assert kept.usage.input_tokens == brought.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(**ask, previous_response_id=first.id, input="And?")
    assert gone.value.param == "previous_response_id"


def test_a_response_keeps_to_a_schema(client):
    form = {
        "type": "json_schema",
        "name": "place",
        "schema": TOOL["schema"],
        "strict": True,
    }
    ask = dict(
        model=MODEL,
        input="Where?",
        max_output_tokens=64,
        temperature=0,
        text={"format": form},
    )
    assert json.loads(client.responses.create(**ask).output_text)["city"] in (
        "Oslo",
        "Rome",
    )


def test_what_a_response_cannot_do_is_refused(client):
    # Agents offer tools of OpenAI's servers with every request: the model is not shown them.
    ask = dict(model=MODEL, input="Hi", tools=[{"type": "web_search"}])
    answer = client.responses.with_raw_response.create(**ask, max_output_tokens=8)
    assert "tools.web_search" in answer.headers["x-fields-without-effect"]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ask, tool_choice={"type": "web_search"})
    assert refused.value.param.startswith("tool_choice")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="Hi", background=True)
    assert refused.value.param == "background"


def test_a_message_and_its_stream(claude, client):
    ask = dict(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello, who are you?"}],
        max_tokens=16,
    )
    ask["extra_body"] = {"temperature": 0}
    whole = claude.messages.create(**ask)
    assert whole.role == "assistant"
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with claude.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == last.content[0].text == whole.content[0].text
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert last.stop_reason == whole.stop_reason
    counted = claude.messages.count_tokens(model=MODEL, messages=ask["messages"]).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    chat = client.chat.completions.create(model=MODEL, messages=ask["messages"], max_tokens=16, temperature=0)
    assert chat.choices[0].message.content == text


def test_errors_are_anthropics_own_exceptions(server, claude):
    ask = dict(messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="claude", **ask)
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="this server has no tools of its own"):
        tool = {"type": "web_search_20250305", "name": "web_search"}
        claude.messages.create(model=MODEL, **ask, tools=[tool])
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong")
    with pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model=MODEL, **ask)


def test_a_stream_of_a_message_can_be_left(claude):
    ask = dict(model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=200)
    with claude.messages.create(**ask, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert claude.messages.count_tokens(model=MODEL, messages=ask["messages"]).input_tokens > 0


def test_functions_of_a_response(with_tools):
    tool = {"type": "function", "name": TOOL["name"], "parameters": TOOL["schema"], "strict": True}
    ask = dict(model=MODEL, input="Where?", tools=[tool], tool_choice="required", parallel_tool_calls=False)
    ask |= dict(max_output_tokens=150, temperature=0, extra_body={"presence_penalty": 1.0})
    whole = with_tools.responses.create(**ask)
    (call,) = whole.output
    assert json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    with with_tools.responses.stream(**ask) as stream:
        parts = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        assert stream.get_final_response().output[0].arguments == parts == call.arguments
    # The conversation goes on with what the client library holds, and with what the server keeps.
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    said = [{"role": "user", "content": "Where?"}, *whole.output, output]
    ask |= dict(tool_choice="none", max_output_tokens=4)
    brought = with_tools.responses.create(**ask | {"input": said})
    kept = with_tools.responses.create(**ask | {"input": [output]}, previous_response_id=whole.id)
    assert brought.output_text == kept.output_text
    assert brought.usage.input_tokens == kept.usage.input_tokens


def test_tools_of_a_message(with_tools):
    claude = anthropic.Anthropic(base_url=str(with_tools.base_url).removesuffix("/v1/"), api_key=API_KEY, timeout=120)
    tool = {"name": TOOL["name"], "input_schema": TOOL["schema"]}
    ask = dict(model=MODEL, messages=[{"role": "user", "content": "Where?"}], tools=[tool], max_tokens=150)
    ask |= dict(tool_choice={"type": "any", "disable_parallel_tool_use": True})
    ask |= dict(extra_body={"temperature": 0, "presence_penalty": 1.0})
    whole = claude.messages.create(**ask)
    (call,) = whole.content
    assert whole.stop_reason == "tool_use" and call.input["city"] in ("Oslo", "Rome")
    with claude.messages.stream(**ask) as stream:
        assert stream.get_final_message().content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    after = [*ask["messages"], {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    answer = claude.messages.create(**ask | {"messages": after, "tool_choice": {"type": "none"}, "max_tokens": 4})
    assert answer.usage.output_tokens <= 4
