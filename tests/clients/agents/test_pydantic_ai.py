"""Pydantic AI: an agent over each of the three APIs, its forms of output."""

import pytest
from anthropic import AsyncAnthropic
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from conftest import ANSWER, API_KEY, MODEL, QUESTION, SUNNY, WEATHER, Report, Said, get_weather

# Anthropic's library has no argument for it.
SETTINGS = {"extra_body": {"temperature": 0}, "max_tokens": 256}


@pytest.fixture(params=["chat", "responses", "messages"])
def model(url, request):
    if request.param == "messages":
        client = AsyncAnthropic(base_url=url, api_key=API_KEY, max_retries=0)
        return AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=API_KEY)
    return {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[request.param](MODEL, provider=provider)


def test_an_agent_and_its_memory(model):
    agent = Agent(model, tools=[get_weather], model_settings=SETTINGS)
    first = agent.run_sync(WEATHER)
    assert first.output == SUNNY
    assert agent.run_sync(QUESTION, message_history=first.all_messages()).output == ANSWER


def test_streamed(model):
    with Agent(model, model_settings=SETTINGS).run_stream_sync(QUESTION) as reply:
        assert [*reply.stream_text()][-1] == ANSWER


@pytest.mark.parametrize(("form", "kind"), [(ToolOutput, Report), (NativeOutput, Report), (PromptedOutput, Said)])
def test_forms(model, form, kind):
    if isinstance(model, AnthropicModel) and form is not ToolOutput:
        # The library knows by Claude's names which model takes a schema. Asked by the prompt alone, this one writes none.
        pytest.skip("the library has no such form for models of this name")
    agent = Agent(model, output_type=form(kind), model_settings=SETTINGS)
    assert isinstance(agent.run_sync(WEATHER).output, kind)
