"""Pydantic AI on three APIs: its name `openai:` speaks responses, `openai-chat:` chat completions, and `anthropic:`
messages. Text, a stream, typed answers by a tool and by a schema, and a tool whose result goes back."""

import asyncio
import os

from common import Client, key, model, prompt, tokens, url

os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY=key)
os.environ.update(ANTHROPIC_BASE_URL=url.removesuffix("/v1"), ANTHROPIC_API_KEY=key)

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput


class Forecast(BaseModel):
    rain: bool


async def stream(agent):
    async with agent.run_stream(prompt) as answer:
        return "".join([text async for text in answer.stream_text(delta=True)])


def use(surface, prefix, name):
    settings = {"max_tokens": tokens, "parallel_tool_calls": False}
    served = f"{prefix}:{model}"
    plain = Agent(served, model_settings=settings)
    assert name in type(plain.model).__name__, plain.model
    pydantic_ai = Client("pydantic-ai-slim", surface, "pydantic-ai")
    with pydantic_ai.tries("text"):
        first = plain.run_sync(prompt)
        assert first.output
        assert plain.run_sync(prompt, message_history=first.all_messages()).output
    with pydantic_ai.tries("stream"):
        assert asyncio.run(stream(plain))
    # Pydantic AI requests a form only from those of Anthropic's models whose names it knows.
    if prefix != "anthropic":
        with pydantic_ai.tries("form"):
            answer = Agent(served, output_type=NativeOutput(Forecast), model_settings=settings).run_sync(prompt).output
            assert answer.rain in (True, False), answer
    with pydantic_ai.tries("call"):
        called = Agent(served, output_type=ToolOutput(Forecast), model_settings=settings).run_sync(prompt)
        assert called.output.rain in (True, False), called
    with pydantic_ai.tries("result"):
        assert plain.run_sync(prompt, message_history=called.all_messages()).output


use("responses", "openai", "Responses")
use("chat completions", "openai-chat", "Chat")
use("messages", "anthropic", "Anthropic")
