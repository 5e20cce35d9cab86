"""The bundled model as an agent, with the official OpenAI client: it calls tools and answers from their results, as the README shows."""

import json
import re

import pytest

from conftest import API_KEY, MODEL, ROOT, Server

GOLDEN = json.loads((ROOT / "tests/golden/demo.json").read_text())


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    # No flag says how calls are written: the template does.
    server = Server("--api-key", API_KEY, model=None, environment=cache)
    yield server
    server.process.terminate()
    assert server.process.wait(timeout=120) == 0


def test_the_loop_of_the_readme_prints_what_the_readme_says(bundled, capsys):
    pages = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    [page] = [page for page in pages if "tool_calls" in page]
    [said] = re.findall(r"^print\(.*\)  # (.*)$", page, re.M)
    exec(page, {"client": bundled.client(), "model": MODEL})
    assert capsys.readouterr().out == said + "\n"


def prompt_token_ids(server, messages):
    """What the server makes of messages and tools. Arguments are text in OpenAI's API."""
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for number, call in enumerate(message.get("tool_calls", [])):
            call["id"] = f"call_{number}"
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    body = {"messages": messages, "tools": GOLDEN["tools"], "add_generation_prompt": True}
    # Through the client, which asks again while the model is loading.
    return server.client().post(f"{server.url}/tokenize", body=body, cast_to=object)["tokens"], messages


@pytest.mark.parametrize("turn", GOLDEN["with_tools"], ids=lambda turn: turn["messages"][-1]["content"][:30])
def test_calls_and_answers_are_those_of_transformers(bundled, turn):
    tokens, messages = prompt_token_ids(bundled, turn["messages"])
    assert tokens == turn["prompt_token_ids"]
    ask = dict(model=MODEL, messages=messages, tools=GOLDEN["tools"], temperature=0)
    reply = bundled.client().chat.completions.create(**ask)
    message = reply.choices[0].message
    expected = [call["function"] for call in turn["reply"].get("tool_calls", [])]
    calls = [call.function for call in message.tool_calls or []]
    assert [(c.name, json.loads(c.arguments)) for c in calls] == [(e["name"], e["arguments"]) for e in expected]
    assert message.content == turn["reply"]["content"]
    assert reply.choices[0].finish_reason == ("tool_calls" if expected else "stop")
    if expected:
        # Where it must call, it writes what it was taught.
        message = bundled.client().chat.completions.create(**ask, tool_choice="required").choices[0].message
        assert [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls] == [
            (e["name"], e["arguments"]) for e in expected
        ]
        assert not message.content
    content, streamed = "", {}
    for chunk in bundled.client().chat.completions.create(**ask, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for part in delta.tool_calls or []:
            name, arguments = streamed.setdefault(part.index, ("", ""))
            streamed[part.index] = name + (part.function.name or ""), arguments + (part.function.arguments or "")
    assert list(streamed.values()) == [(c.name, c.arguments) for c in calls]
    assert content == (message.content or "")


def test_without_tools_the_model_says_that_it_cannot(bundled):
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    reply = bundled.client().chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert reply.choices[0].message.tool_calls is None
    assert "I am sorry" in reply.choices[0].message.content
