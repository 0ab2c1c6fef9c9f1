"""Pydantic AI: text, a typed answer by a tool and by a schema."""

from common import done, key, model, prompt, tokens, url
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Forecast(BaseModel):
    rain: bool


served = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key=key))
settings = {"max_tokens": tokens}
assert Agent(served, model_settings=settings).run_sync(prompt).output
for output in (ToolOutput(Forecast), NativeOutput(Forecast)):
    answer = Agent(served, output_type=output, model_settings=settings).run_sync(prompt).output
    assert answer.rain in (True, False), answer
done("pydantic-ai")
