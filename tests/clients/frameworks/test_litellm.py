"""LiteLLM: one call for many servers, by its names of OpenAI-compatible ones."""

import json

import litellm
import pytest

from conftest import ANSWER, API_KEY, MODEL, QUESTION, SUNNY, WEATHER, Report, get_weather


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def ask(url, request):
    base = url if request.param == "anthropic" else f"{url}/v1"
    return dict(model=f"{request.param}/{MODEL}", api_base=base, api_key=API_KEY, temperature=0, max_tokens=256, num_retries=0)


def said(question):
    return [{"role": "user", "content": question}]


def test_whole_and_streamed(ask):
    assert litellm.completion(**ask, messages=said(QUESTION)).choices[0].message.content == ANSWER
    chunks = litellm.completion(**ask, messages=said(QUESTION), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER


def test_a_form(ask):
    reply = litellm.completion(**ask, messages=said(WEATHER), response_format=Report)
    assert Report.model_validate_json(reply.choices[0].message.content)


def test_the_loop_of_tools(ask):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": get_weather.__doc__, "parameters": schema}
    tools = [{"type": "function", "function": function}]
    messages = said(WEATHER)
    message = litellm.completion(**ask, messages=messages, tools=tools).choices[0].message
    # With what the library adds to it, such as `provider_specific_fields`.
    messages.append(message.model_dump())
    for call in message.tool_calls:
        result = json.dumps(get_weather(**json.loads(call.function.arguments)))
        messages.append({"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": result})
    reply = litellm.completion(**ask, messages=messages, tools=tools).choices[0].message
    assert reply.content == SUNNY
    messages += [reply.model_dump(), *said(QUESTION)]
    assert litellm.completion(**ask, messages=messages, tools=tools).choices[0].message.content == ANSWER


def test_responses(url):
    ask = dict(model=f"openai/{MODEL}", api_base=f"{url}/v1", api_key=API_KEY, temperature=0, max_output_tokens=64)
    assert litellm.responses(**ask, input=QUESTION).output[0].content[0].text == ANSWER
