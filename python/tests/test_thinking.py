"""`thinking_token_budget`: what a model thinks, and what comes once that is spent."""

import pytest
from vllm import SamplingParams

if not hasattr(SamplingParams, "thinking_token_budget"):  # 0.12
    pytest.skip("this version of vLLM has no such budget", allow_module_level=True)

GREEDY = {"temperature": 0.0, "ignore_eos": True}
TEXT = list(range(20, 40))
SAID = 16


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def model(llm, request):
    from vllm.config.reasoning import ReasoningConfig

    reasoning = ReasoningConfig(reasoning_start_str="<think>", reasoning_end_str=" So:</think>")
    return llm("demo", dtype="bfloat16", max_model_len=1024, reasoning_config=reasoning, async_scheduling=request.param)


@pytest.fixture
def markers(model):
    """Of several tokens each."""
    [markers] = model.collective_rpc(lambda worker: worker.thinking_markers)
    assert min(map(len, markers.values())) > 1
    return markers


def generate(model, before, budget, **params):
    """The only output of one request."""
    asked = SamplingParams(**{"max_tokens": SAID} | GREEDY | params, thinking_token_budget=budget)
    return model.generate({"prompt_token_ids": before}, asked, use_tqdm=False)[0].outputs[0]


def say(model, before, budget=None, **params):
    return list(generate(model, before, budget, **params).token_ids)


def then(model, before):
    """What is said when `before` is there already, together with it."""
    return [*before, *say(model, before)]


def test_the_end_follows_a_spent_budget(model, markers):
    start, end = markers["start"], markers["forced_end"]
    begun = [*TEXT, *start]
    free = say(model, begun)
    for budget in (0, 1, 5):
        expected = then(model, [*begun, *free[:budget], *end])
        assert [*begun, *say(model, begun, budget)] == expected[: len(begun) + SAID]
    assert say(model, begun, SAID) == free
    # What the prompt has thought counts, and what it has of the end.
    for before, left in (
        ([*begun, *free[:2]], [*free[2:5], *end]),
        ([*begun, *free[:9]], end),
        ([*begun, *free[:9], *end[:1]], end[1:]),
    ):
        assert say(model, before, 5)[: len(left)] == left


def test_who_does_not_think_spends_nothing(model, markers, monkeypatch):
    start, end = markers["start"], markers["forced_end"]
    for before in (TEXT, [*TEXT, *start[:-1]], [*TEXT, *start, 50, *end], [*TEXT, *start, 50, *end, 51]):
        assert say(model, before, 0) == say(model, before)
    # A model ends its thinking without the sentence that is forced.
    monkeypatch.setitem(markers, "end", [77])
    before = [*TEXT, *start, 50, 77]
    assert say(model, before, 0) == say(model, before)
    assert say(model, [*before, *start], 0)[: len(end)] == end


def test_thinking_may_begin_in_the_answer(model, markers, monkeypatch):
    free = say(model, TEXT)
    place, begin = next((i, token) for i, token in enumerate(free) if token not in [*TEXT, *free[:i]] and i > 1)
    monkeypatch.setitem(markers, "start", [begin])
    end = markers["forced_end"]
    assert say(model, TEXT, 2)[: place + 3 + len(end)] == [*free[: place + 3], *end][:SAID]


def test_nothing_else_has_a_say_in_the_end(model, markers):
    begun, end = [*TEXT, *markers["start"]], markers["forced_end"]
    for params in (
        {"temperature": 2.0, "seed": 1},
        {"allowed_token_ids": [5, 6]},
        {"logit_bias": {5: 100.0}, "repetition_penalty": 2.0, "presence_penalty": 2.0},
        {"stop_token_ids": [end[-1]], "min_tokens": len(end) + 4},
    ):
        assert say(model, begun, 0, **params)[: len(end)] == end


def test_log_probabilities_are_those_without_the_budget(model, markers):
    begun, end = [*TEXT, *markers["start"]], markers["forced_end"]
    forced, free = (generate(model, begun, budget, max_tokens=1, logprobs=3) for budget in (0, None))
    [row], [expected] = forced.logprobs, free.logprobs
    assert list(forced.token_ids) == end[:1]
    assert row[end[0]].rank > 3
    assert {token: row[token].logprob for token in expected} == {token: entry.logprob for token, entry in expected.items()}


def test_others_of_the_step_think_on(model, markers):
    begun = [*TEXT, *markers["start"]]
    asked = [SamplingParams(**GREEDY, max_tokens=SAID, thinking_token_budget=budget) for budget in (None, 3, 0, None)]
    outputs = model.generate([{"prompt_token_ids": begun}] * len(asked), asked, use_tqdm=False)
    alone = [say(model, begun, params.thinking_token_budget) for params in asked]
    assert [list(output.outputs[0].token_ids) for output in outputs] == alone
