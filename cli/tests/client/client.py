"""Drives `autoplace serve` with OpenAI's own client: `client.py URL MODEL [demo]`. Any difference from the API raises an exception."""

import asyncio
import json
import sys

import openai

# `demo` says that the model is ours, whose next tokens are seldom nearly equally likely.
url, model, *demo = sys.argv[1:]
options = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 120}
client = openai.OpenAI(**options)
# With these options, equal requests are computed in the same way, whatever earlier requests have left in the cache.
alike = {"extra_body": {"cache_prompt": False}, "temperature": 0}
# A real model's answer to this message is longer than the 16 tokens that `chat` asks for.
said = [{"role": "system", "content": "Tell stories."}, {"role": "user", "content": "Tell a long story of the sea."}]


def models():
    assert [it.id for it in client.models.list()] == [model]


def chat():
    whole = client.chat.completions.create(model=model, messages=said, max_tokens=16, **alike)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length", choice
    assert whole.usage.completion_tokens == 16
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 16

    streamed = list(
        client.chat.completions.create(
            model=model, messages=said, max_tokens=16, stream=True, stream_options={"include_usage": True}, **alike
        )
    )
    text = "".join(it.choices[0].delta.content or "" for it in streamed if it.choices)
    assert text == choice.message.content, (text, choice.message.content)
    assert streamed[-1].usage.completion_tokens == 16 and streamed[-1].choices == []
    assert [it.choices[0].finish_reason for it in streamed if it.choices][-1] == "length"

    # The message that the client assembles from a stream equals the message of a whole answer.
    with client.chat.completions.stream(model=model, messages=said, stop=[text[-1]], **alike) as stream:
        together = stream.get_final_completion().choices[0]
    assert together.message.content == text[: text.index(text[-1])] and together.finish_reason == "stop"

    several = client.chat.completions.create(model=model, messages=said, n=3, max_tokens=8, seed=7, temperature=1)
    assert [it.index for it in several.choices] == [0, 1, 2]
    assert len({it.message.content for it in several.choices}) > 1, "each has a seed of its own"


def logprobs():
    answer = client.chat.completions.create(model=model, messages=said, max_tokens=4, logprobs=True, top_logprobs=3, **alike)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 4 and all(len(it.top_logprobs) == 3 for it in tokens)
    assert b"".join(bytes(it.bytes) for it in tokens).decode() == answer.choices[0].message.content
    answer = client.completions.create(model=model, prompt="In the", max_tokens=4, logprobs=2).choices[0].logprobs
    assert len(answer.tokens) == len(answer.token_logprobs) == len(answer.text_offset) == 4


def structured():
    schema = {
        "type": "object", "additionalProperties": False, "required": ["day", "count"],
        "properties": {"day": {"enum": ["monday", "friday"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    }
    form = {"type": "json_schema", "json_schema": {"name": "visit", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(model=model, messages=said, response_format=form)
    visit = json.loads(answer.choices[0].message.content)
    assert visit["day"] in ("monday", "friday") and 0 <= visit["count"] <= 99
    assert answer.choices[0].finish_reason == "stop"


def completions():
    whole = client.completions.create(model=model, prompt="In the beginning", max_tokens=12, **alike)
    chunks = client.completions.create(model=model, prompt="In the beginning", max_tokens=12, stream=True, **alike)
    assert "".join(it.choices[0].text for it in chunks) == whole.choices[0].text
    several = client.completions.create(model=model, prompt=["In the", "And it"], n=2, max_tokens=2)
    assert [it.index for it in several.choices] == [0, 1, 2, 3], several
    stopped = client.completions.create(model=model, prompt="And", max_tokens=200, temperature=0, stop=["e"])
    assert "e" not in stopped.choices[0].text and stopped.choices[0].finish_reason == "stop"


def embeddings():
    texts = ["The tide comes in.", "The tide goes out."]
    # The client asks for base64 by default.
    packed = client.embeddings.create(model=model, input=texts)
    plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
    assert [it.index for it in packed.data] == [0, 1]
    for one, other in zip(packed.data, plain.data):
        assert len(one.embedding) == len(other.embedding) > 1
        assert all(abs(a - b) < 1e-6 for a, b in zip(one.embedding, other.embedding))
    assert packed.usage.total_tokens == packed.usage.prompt_tokens > 0


def errors():
    def refused(kind, code, param, call):
        try:
            call()
        except kind as error:
            assert (error.code, error.param) == (code, param), error
        else:
            raise AssertionError(f"{kind} was expected")

    chat = client.chat.completions.create
    refused(openai.NotFoundError, "model_not_found", "model", lambda: chat(model="other", messages=said))
    refused(openai.BadRequestError, None, "messages", lambda: chat(model=model, messages=[]))
    refused(openai.BadRequestError, None, "temperature", lambda: chat(model=model, messages=said, temperature=-1))
    long = [{"role": "user", "content": "word " * 20000}]
    refused(openai.BadRequestError, "context_length_exceeded", "messages", lambda: chat(model=model, messages=long))
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    place = "messages[0].content[0].image_url"
    refused(openai.BadRequestError, "unsupported_parameter", place, lambda: chat(model=model, messages=image))


def prompt(number):
    return f"Chapter {number % 5}"


def apart(alone, other):
    """How much more likely the first token that differs was, in nats: `None` where the two texts are equal."""
    for at, (one, two) in enumerate(zip(alone.tokens, other.tokens)):
        if one != two:
            return abs(alone.token_logprobs[at] - alone.top_logprobs[at].get(two, float("-inf")))
    return None


async def many():
    """50 requests at once: each gets the answer that it gets alone."""
    # Batches of other sizes round differently, so a text may take another token where two are nearly equally likely.
    # With a small model that happens in most texts, in llama-server as here. More is not allowed to differ.
    greedy = {"max_tokens": 24, "temperature": 0, "logprobs": 5}
    alone = [client.completions.create(model=model, prompt=prompt(it), **greedy).choices[0].logprobs for it in range(5)]
    parallel = openai.AsyncOpenAI(**options)

    async def ask(number):
        answer = await parallel.completions.create(model=model, prompt=prompt(number), **greedy)
        return answer.choices[0].logprobs

    answers = await asyncio.gather(*(ask(it) for it in range(50)))
    gaps = [apart(alone[it % 5], answer) for it, answer in enumerate(answers)]
    assert all(gap is None or gap < 0.5 for gap in gaps), gaps

    async def stream(number):
        chunks = await parallel.completions.create(
            model=model, prompt=prompt(number), max_tokens=24, seed=number % 5, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def whole(number):
        answer = await parallel.completions.create(model=model, prompt=prompt(number), max_tokens=24, seed=number % 5)
        return answer.choices[0].text

    # The seeds of requests do not mix: the same request, alone and beside others, is sampled alike.
    alone = [await whole(it) for it in range(5)]
    answers = await asyncio.gather(*((whole if it % 2 else stream)(it) for it in range(50)))
    assert all(answers), "an answer is empty"
    same = sum(answers[it] == alone[it % 5] for it in range(50))
    print(f"{same} of 50 sampled texts are what they are alone", file=sys.stderr)
    if demo:
        assert same > 25, f"{same} of 50 are what they are alone"


for step in (models, chat, logprobs, structured, completions, embeddings, errors):
    step()
asyncio.run(many())
print("all as the API has it")
