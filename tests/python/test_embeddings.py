"""The official OpenAI client against a real server of embeddings: as transformers computes them, in the client's own encoding."""

import json

import openai
import pytest

from conftest import API_KEY, MODEL, ROOT, Server

EMBEDDERS = ROOT / "tests/golden/embedders"
# Of an element: the contract's thousandth of the deviation, which is 1/8 in a vector of 64 elements that is 1 long.
TOLERANCE = 1e-3 / 8


@pytest.fixture(scope="module")
def embedder():
    flags = ["--api-key", API_KEY, "--dtype", "float32", "--max-num-batched-tokens", "64"]
    server = Server(*flags, model=EMBEDDERS / "models/qwen3-last")
    yield server.client()
    server.process.terminate()
    assert server.process.wait(timeout=120) == 0


@pytest.fixture(scope="module")
def prompts():
    return json.loads((EMBEDDERS / "vectors/qwen3-last.json").read_text())["prompts"]


def vectors(answer):
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return [item.embedding for item in answer.data]


def assert_near(got, expected):
    assert len(got) == len(expected)
    assert max(abs(a - b) for a, b in zip(got, expected)) < TOLERANCE


def test_texts_and_tokens_are_as_transformers_computes_them(embedder, prompts):
    texts = [prompt for prompt in prompts if "text" in prompt]
    # The client asks for base64 unless it is told otherwise, and decodes it.
    answer = embedder.embeddings.create(model=MODEL, input=[prompt["text"] for prompt in texts])
    for got, prompt in zip(vectors(answer), texts, strict=True):
        assert_near(got, prompt["embedding"])
    assert answer.usage.prompt_tokens == sum(len(prompt["token_ids"]) for prompt in texts)
    ids = [prompt["token_ids"] for prompt in prompts]
    by_ids = vectors(embedder.embeddings.create(model=MODEL, input=ids, encoding_format="float"))
    for got, prompt in zip(by_ids, prompts, strict=True):
        assert_near(got, prompt["embedding"])
    for as_numbers, decoded in zip(by_ids, vectors(answer)):
        # Numbers are written with the digits that tell one float32 from the next.
        assert as_numbers == pytest.approx(decoded, rel=1e-7)
    one = embedder.embeddings.create(model=MODEL, input=texts[1]["text"], user="somebody")
    assert vectors(one) == [vectors(answer)[1]]


def test_more_texts_than_steps_take(embedder):
    texts = [f"Text number {i} of many." for i in range(300)]
    together = vectors(embedder.embeddings.create(model=MODEL, input=texts))
    assert together[7] == vectors(embedder.embeddings.create(model=MODEL, input=texts[7]))[0]


def test_a_text_that_is_cut_off_keeps_the_tokens_around_it(embedder):
    whole = embedder.embeddings.create(model=MODEL, input="The quick brown fox")
    cut = embedder.embeddings.create(
        model=MODEL, input="The quick brown fox jumps over", extra_body={"truncate_prompt_tokens": whole.usage.prompt_tokens}
    )
    assert vectors(cut) == vectors(whole)


def test_documents_are_ranked(embedder):
    body = {"model": MODEL, "query": "the fox", "documents": ["a dog", "the fox", "bread"], "top_n": 2}
    ranked = embedder.post("/rerank", body=body, cast_to=object)
    assert [result["index"] for result in ranked["results"]][0] == 1 and len(ranked["results"]) == 2


def test_what_cannot_be_done_is_an_error(embedder, client):
    with pytest.raises(openai.BadRequestError, match="Matryoshka"):
        embedder.embeddings.create(model=MODEL, input="a", dimensions=8)
    with pytest.raises(openai.BadRequestError, match="makes embeddings"):
        embedder.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.BadRequestError, match="generates text"):
        client.embeddings.create(model=MODEL, input="a")
