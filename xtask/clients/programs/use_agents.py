"""OpenAI's agents on chat completions: a typed answer beside a tool."""

import asyncio

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from common import done, key, model, prompt, tokens, url
from openai import AsyncOpenAI
from pydantic import BaseModel


class Forecast(BaseModel):
    rain: bool


@function_tool
def weather(days: int) -> str:
    """The weather for some days."""
    return f"rain for {days} days"


async def main():
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
    served = OpenAIChatCompletionsModel(model=model, openai_client=client)
    settings = ModelSettings(max_tokens=tokens)
    plain = Agent(name="plain", model=served, model_settings=settings)
    assert (await Runner.run(plain, prompt)).final_output
    typed = Agent(name="typed", model=served, model_settings=settings, output_type=Forecast)
    assert (await Runner.run(typed, prompt)).final_output.rain in (True, False)
    forced = ModelSettings(max_tokens=tokens, tool_choice="required")
    caller = Agent(
        name="caller", model=served, model_settings=forced, tools=[weather],
        tool_use_behavior="stop_on_first_tool",
    )
    outcome = await Runner.run(caller, prompt)
    assert "rain for" in outcome.final_output, outcome.final_output


asyncio.run(main())
done("openai-agents")
