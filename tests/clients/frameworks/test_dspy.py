"""DSPy: plain requests, and a signature with the adapter of JSON."""

import dspy
import pytest

from conftest import API_KEY, MODEL, Report


@pytest.fixture
def model(url):
    return dspy.LM(f"hosted_vllm/{MODEL}", api_base=f"{url}/v1", api_key=API_KEY, temperature=0, max_tokens=300, cache=False)


class Ask(dspy.Signature):
    """Say how the weather is."""

    question: str = dspy.InputField()
    report: Report = dspy.OutputField()


def test_plain(model):
    assert model("What is the capital of Norway?") == ["The capital of Norway is Oslo."]


def test_an_object(model):
    # The library asks models that it does not know for no form by itself.
    schema = {"type": "object", "properties": {"report": Report.model_json_schema()}, "required": ["report"]}
    form = {"type": "json_schema", "json_schema": {"name": "ask", "schema": schema | {"additionalProperties": False}}}
    with dspy.context(lm=model.copy(response_format=form), adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(Ask)(question="What is the weather in Oslo?").report, Report)
