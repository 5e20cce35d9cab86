"""lm-eval: a task of its own data over the completions API, whose log-probabilities and tokenizer it asks the server for."""

import json

import pytest
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from conftest import API_KEY

FACTS = [("Norway", "Oslo"), ("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid")]
CHOICES = [capital for _, capital in FACTS]


@pytest.fixture
def tasks(tmp_path):
    rows = [{"country": country, "capital": capital, "choices": CHOICES} for country, capital in FACTS]
    data = tmp_path / "capitals.json"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    common |= {"doc_to_text": "The capital of {{country}} is"}
    choices = {"task": "capitals", "output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "capital"}
    said = {"task": "capitals_said", "output_type": "generate_until", "doc_to_target": "{{capital}}"}
    said |= {"generation_kwargs": {"until": ["."], "max_gen_toks": 8, "temperature": 0}}
    said |= {"metric_list": [{"metric": "exact_match"}]}
    return [common | choices, common | said]


def test_choices_and_generated_text(url, tasks, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    arguments = {
        "model": "small",
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "remote",
        "auth_token": API_KEY,
        "num_concurrent": 2,
        "max_length": 4096,
    }
    results = simple_evaluate("local-completions", arguments, tasks=tasks, task_manager=TaskManager())["results"]
    # The model knows capitals, as its own page says.
    assert results["capitals"]["acc,none"] == 1.0
    assert 0 <= results["capitals_said"]["exact_match,none"] <= 1
