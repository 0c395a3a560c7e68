#!/usr/bin/env python3
"""Checks a server of `bireme serve` with the client of the package openai.

check_openai.py BASE_URL    for example http://127.0.0.1:8000/v1
"""

import base64
import struct
import sys

import openai


def check_models(client):
    model = client.models.list().data[0]
    assert model.object == "model" and model.id
    return model.id


def check_completions(client, model):
    settings = dict(model=model, prompt="the", max_tokens=8, seed=3, temperature=0.9)
    whole = client.completions.create(**settings, logprobs=2, n=2)
    assert len(whole.choices) == 2 and whole.usage.completion_tokens == 16
    choice = whole.choices[0]
    assert choice.finish_reason == "length"
    assert len(choice.logprobs.tokens) == 8
    assert all(p <= 0 for p in choice.logprobs.token_logprobs)
    assert "".join(choice.logprobs.tokens) == choice.text
    stream = client.completions.create(**settings, stream=True)
    assert "".join(event.choices[0].text for event in stream) == choice.text
    echo = client.completions.create(model=model, prompt="the", max_tokens=0, echo=True)
    assert echo.choices[0].text == "the"


def check_embeddings(client, model):
    floats = client.embeddings.create(model=model, input=["a", "of"], encoding_format="float")
    # The client requests base64 by default and decodes it.
    decoded = client.embeddings.create(model=model, input=["a", "of"])
    for a, b in zip(floats.data, decoded.data):
        assert max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6
    text = client.embeddings.create(model=model, input="a", encoding_format="base64")
    values = text.data[0].embedding
    if isinstance(values, str):
        raw = base64.b64decode(values)
        values = struct.unpack(f"<{len(raw) // 4}f", raw)
    assert abs(values[0] - floats.data[0].embedding[0]) < 1e-6


def check_errors(client, model):
    try:
        client.completions.create(model=model, prompt="the", max_tokens=5, temperature=-1)
    except openai.BadRequestError as error:
        assert error.param == "temperature", error
    else:
        raise AssertionError("a negative temperature is accepted")
    try:
        client.completions.create(model=model, prompt="a" * 1000)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error
    else:
        raise AssertionError("a long prompt is accepted")


def main():
    client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
    model = check_models(client)
    check_completions(client, model)
    check_embeddings(client, model)
    check_errors(client, model)
    print("the openai client: all checks passed")


if __name__ == "__main__":
    main()
