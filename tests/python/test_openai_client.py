"""The official OpenAI client against the real server: every call that the API offers, as a user writes it."""

import openai
import pytest

from conftest import MODEL

MESSAGES = [{"role": "user", "content": "Hello, who are you?"}]


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_completion_of_text_and_tokens(client):
    text = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0)
    assert text.usage.completion_tokens <= 8
    assert text.usage.total_tokens == text.usage.prompt_tokens + text.usage.completion_tokens
    assert text.choices[0].finish_reason in ("length", "stop")
    again = client.completions.create(model=MODEL, prompt=["Once upon a time", "The"], max_tokens=8, temperature=0)
    assert len(again.choices) == 2
    assert again.choices[0].text == text.choices[0].text
    tokens = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=3, temperature=0)
    assert tokens.usage.prompt_tokens == 3


def test_completion_stream_equals_the_whole(client):
    ask = dict(model=MODEL, prompt="The quick brown fox", max_tokens=24, temperature=0)
    whole = client.completions.create(**ask)
    chunks = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completion_logprobs_and_echo(client):
    answer = client.completions.create(
        model=MODEL, prompt="The fox", max_tokens=4, temperature=0, logprobs=3, echo=True
    )
    choice = answer.choices[0]
    assert choice.text.startswith("The fox")
    count = answer.usage.total_tokens
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == count
    assert choice.logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs[1:])


def test_chat(client):
    reply = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=12, temperature=0)
    assert reply.choices[0].message.role == "assistant"
    assert reply.usage.completion_tokens <= 12
    parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    same = client.chat.completions.create(model=MODEL, messages=parts, max_tokens=12, temperature=0)
    assert same.choices[0].message.content == reply.choices[0].message.content


def test_chat_stream_equals_the_whole(client):
    ask = dict(model=MODEL, messages=MESSAGES, max_tokens=24, seed=7, n=2)
    whole = client.chat.completions.create(**ask)
    texts = ["", ""]
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_chat_stream_helper(client):
    ask = dict(model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0)
    whole = client.chat.completions.create(**ask)
    with client.chat.completions.stream(**ask) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert text == whole.choices[0].message.content
        assert stream.current_completion_snapshot.choices[0].message.role == "assistant"


def test_chat_logprobs(client):
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=3, temperature=0, logprobs=True, top_logprobs=4
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 4
        # Greedy: the token is the most likely one.
        assert token.logprob == token.top_logprobs[0].logprob


def test_a_seed_repeats_and_vllms_parameters_pass(client):
    ask = dict(model=MODEL, messages=MESSAGES, max_tokens=16, seed=11, temperature=1.0)
    extra = {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True}
    replies = [client.chat.completions.create(**ask, extra_body=extra) for _ in range(2)]
    assert replies[0].choices[0].message.content == replies[1].choices[0].message.content
    assert replies[0].usage.completion_tokens == 16


def test_the_prefix_cache_shows_in_usage(client):
    prompt = list(range(5, 69))
    ask = dict(model=MODEL, prompt=prompt, max_tokens=1, temperature=0)
    client.completions.create(**ask)
    assert client.completions.create(**ask).usage.prompt_tokens_details.cached_tokens == 32


def test_errors_are_the_clients_own_exceptions(server, client):
    with pytest.raises(openai.NotFoundError) as not_found:
        client.completions.create(model="gpt-4", prompt="x")
    assert not_found.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=MODEL, prompt="x", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format={"type": "xml"})
    with pytest.raises(openai.AuthenticationError):
        server.client(api_key="wrong").models.list()


def test_a_stream_can_be_left(client):
    stream = client.completions.create(
        model=MODEL, prompt="x", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert client.models.list().data
