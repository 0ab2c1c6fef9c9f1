"""Pydantic AI by its name `openai:`, which speaks responses: text, a stream, a typed answer by a tool and by a schema."""

import asyncio
import os

from common import done, key, model, prompt, tokens, url

os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY=key)

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput


class Forecast(BaseModel):
    rain: bool


served = f"openai:{model}"
settings = {"max_tokens": tokens, "parallel_tool_calls": False}
plain = Agent(served, model_settings=settings)
assert "Responses" in type(plain.model).__name__, plain.model
first = plain.run_sync(prompt)
assert first.output
assert plain.run_sync(prompt, message_history=first.all_messages()).output


async def stream():
    async with plain.run_stream(prompt) as answer:
        return "".join([text async for text in answer.stream_text(delta=True)])


assert asyncio.run(stream())
for output in (ToolOutput(Forecast), NativeOutput(Forecast)):
    answer = Agent(served, output_type=output, model_settings=settings).run_sync(prompt).output
    assert answer.rain in (True, False), answer
done("pydantic-ai (responses)")
