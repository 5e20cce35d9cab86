"""LangChain with `langchain-openai`: chat, structured output by all its methods, an agent."""

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from conftest import ANSWER, API_KEY, MODEL, QUESTION, SUNNY, WEATHER, Report, Said, get_weather


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def model(url, request):
    kwargs = dict(model=MODEL, base_url=f"{url}/v1", api_key=API_KEY, max_retries=0, temperature=0, max_tokens=256)
    # Or a model of this size may call again and again where it must.
    kwargs |= dict(model_kwargs={"parallel_tool_calls": False})
    return ChatOpenAI(**kwargs, use_responses_api=request.param)


def test_whole_and_streamed(model):
    assert model.invoke(QUESTION).text == ANSWER
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == ANSWER
    assert [reply.text for reply in model.batch([QUESTION] * 3)] == [ANSWER] * 3


@pytest.mark.parametrize(("method", "kind"), [("json_schema", Report), ("function_calling", Report), ("json_mode", Said)])
def test_structured_output(model, method, kind):
    assert isinstance(model.with_structured_output(kind, method=method).invoke(WEATHER), kind)


def test_an_agent(model):
    agent = create_agent(model, tools=[tool("get_weather")(get_weather)])
    messages = agent.invoke({"messages": [("user", WEATHER)]})["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[-1].text == SUNNY
    # What came is sent again, with all that the library keeps of it.
    messages = agent.invoke({"messages": [*messages, ("user", QUESTION)]})["messages"]
    assert messages[-1].text == ANSWER


# Held to a form from its first word, the model calls nothing. Without tools the library would send an empty list, which is refused.
@pytest.mark.parametrize(("strategy", "tools"), [(ToolStrategy, []), (ProviderStrategy, [get_weather])])
def test_an_agent_that_ends_with_a_form(model, strategy, tools):
    agent = create_agent(model, tools=tools, response_format=strategy(Report))
    assert isinstance(agent.invoke({"messages": [("user", WEATHER)]})["structured_response"], Report)


def test_completions(url):
    model = OpenAI(model=MODEL, base_url=f"{url}/v1", api_key=API_KEY, max_retries=0, temperature=0, max_tokens=8)
    assert model.invoke("Once upon a time") == "".join(model.stream("Once upon a time"))
