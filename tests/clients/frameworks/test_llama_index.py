"""LlamaIndex with its class for servers that are like OpenAI's."""

import asyncio
import json

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from conftest import ANSWER, API_KEY, MODEL, QUESTION, SUNNY, WEATHER, Report, get_weather


@pytest.fixture
def model(url):
    says = dict(is_chat_model=True, is_function_calling_model=True, context_window=4096, max_tokens=256, max_retries=0)
    return OpenAILike(model=MODEL, api_base=f"{url}/v1", api_key=API_KEY, temperature=0, **says)


def test_whole_and_streamed(model):
    assert model.complete(QUESTION).text == ANSWER
    messages = [ChatMessage(role="user", content=QUESTION)]
    assert model.chat(messages).message.content == ANSWER
    assert "".join(chunk.delta for chunk in model.stream_chat(messages)) == ANSWER


@pytest.mark.parametrize("calls", [True, False], ids=["call", "schema"])
def test_an_object(model, calls):
    structured = model.model_copy(update={"should_use_structured_outputs": not calls}).as_structured_llm(Report)
    assert isinstance(structured.complete(WEATHER).raw, Report)


def weather(city: str) -> str:
    # The library writes other results as Python does.
    return json.dumps(get_weather(city))


def test_an_agent(model):
    async def run():
        agent = FunctionAgent(llm=model, tools=[FunctionTool.from_defaults(weather, "get_weather", get_weather.__doc__)])
        return str(await agent.run(WEATHER))

    assert asyncio.run(run()) == SUNNY
