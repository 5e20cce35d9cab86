"""What log-probabilities count: a grammar's mask. Not `allowed_token_ids`, `bad_words` and biases, which vLLM applies after it has them."""

import math

import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

SETTINGS = {"backend": "xgrammar", "disable_any_whitespace": True}
PROMPT = {"prompt_token_ids": list(range(10, 30))}


@pytest.fixture
def model(llm):
    return llm("demo", dtype="bfloat16", max_model_len=1024, structured_outputs_config=SETTINGS, async_scheduling=False)


def generate(model, **params):
    """The only output of one greedy request."""
    return model.generate(PROMPT, SamplingParams(temperature=0.0, **params), use_tqdm=False)[0].outputs[0]


def first(model, **params):
    """The first token, and its position's log-probabilities and ranks, best first."""
    output = generate(model, max_tokens=1, **params)
    return output.token_ids[0], {token: (entry.logprob, entry.rank) for token, entry in output.logprobs[0].items()}


def possible(row):
    return {token: entry for token, entry in row.items() if entry[0] > -math.inf}


def test_probabilities_are_among_what_the_grammar_allows(model):
    tokenizer = model.get_tokenizer()
    token, row = first(model, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]), logprobs=8)
    # The beginnings of both words that are tokens.
    words = {tokenizer.decode([token]) for token in possible(row)}
    assert words <= {"y", "ye", "yes", "n", "no"}
    assert {"y", "n"} <= words
    assert sum(math.exp(logprob) for logprob, _ in row.values()) == pytest.approx(1.0, abs=1e-5)
    assert row[token] == (max(logprob for logprob, _ in row.values()), 1)
    # The list is as long as without a grammar.
    assert len(row) == 8
    assert all(logprob == -math.inf for entry, (logprob, _) in row.items() if entry not in possible(row))


def test_other_requests_of_the_step_have_their_own(model):
    held = SamplingParams(temperature=0.0, max_tokens=6, logprobs=8, structured_outputs=StructuredOutputsParams(regex="[ab]{6}"))
    free = SamplingParams(temperature=0.0, max_tokens=6, logprobs=5, prompt_logprobs=3)
    alone = [model.generate(PROMPT, params, use_tqdm=False)[0] for params in (free, held)]
    together = model.generate([PROMPT] * 3, [free, held, free], use_tqdm=False)
    for output, expected in zip(together, [alone[0], alone[1], alone[0]], strict=True):
        assert output.outputs[0].logprobs == expected.outputs[0].logprobs
        assert output.prompt_logprobs == expected.prompt_logprobs


def test_what_else_forbids_tokens_does_not_count(model):
    tokenizer = model.get_tokenizer()
    best, free = first(model, logprobs=20)
    ranked = list(free)
    assert ranked[0] == best
    # The third and the fourth alone are allowed, and keep what they have among all.
    token, row = first(model, logprobs=20, allowed_token_ids=[ranked[3], ranked[2]])
    assert (token, row) == (ranked[2], free)
    # Without log-probabilities they are the same tokens.
    assert generate(model, max_tokens=1, allowed_token_ids=[ranked[3], ranked[2]]).token_ids[0] == ranked[2]
    # A word that must not come, however likely it is made: a token is the whole word.
    texts = {token: tokenizer.decode([token]).strip() for token in ranked}
    word = next(token for token in ranked if tokenizer.encode(texts[token], add_special_tokens=False) == [token])
    assert first(model, logprobs=20, logit_bias={word: 50.0}) == (word, free)
    expected = next(token for token in ranked if token != word)
    assert first(model, logprobs=20, logit_bias={word: 50.0}, bad_words=[texts[word]]) == (expected, free)


def test_a_grammar_and_what_else_forbids_tokens(model):
    asked = {"structured_outputs": StructuredOutputsParams(regex="[a-e]"), "logprobs": 8}
    best, held = first(model, **asked)
    ranked = list(possible(held))
    assert len(ranked) == 5
    # Of the five letters: the grammar counts, the others do not.
    token, row = first(model, **asked, allowed_token_ids=[ranked[1], ranked[4], 77])
    assert (token, row) == (ranked[1], held)
    word = model.get_tokenizer().decode([best])
    token, row = first(model, **asked, bad_words=[word], logit_bias={ranked[3]: 50.0})
    assert (token, row) == (ranked[3], held)
