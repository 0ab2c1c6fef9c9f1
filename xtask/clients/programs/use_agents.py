"""OpenAI's agents on both of OpenAI's APIs; responses is their default: text, a stream, typed answers, and tools whose
results go back."""

import asyncio

from agents import (
    Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool,
    set_tracing_disabled,
)
from common import Client, key, model, prompt, tokens, url
from openai import AsyncOpenAI
from pydantic import BaseModel


class Forecast(BaseModel):
    rain: bool


@function_tool
def weather(days: int) -> str:
    """The weather for some days."""
    return f"rain for {days} days"


async def use(surface, kind):
    client = AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
    served = kind(model=model, openai_client=client)
    settings = ModelSettings(max_tokens=tokens)
    # The agents treat a response that was cut at its limit as an error, and the demo model seldom ends a response by
    # itself.
    sentence = ModelSettings(max_tokens=tokens, extra_body={"stop": ["."]})
    plain = Agent(name="plain", instructions="Be brief.", model=served, model_settings=sentence)
    agents = Client("openai-agents", surface)
    with agents.tries("text"):
        first = await Runner.run(plain, prompt)
        assert first.final_output
        # The conversation is continued twice: with the items of the first answer, and with the stored response.
        turns = [*first.to_input_list(), {"role": "user", "content": prompt}]
        assert (await Runner.run(plain, turns)).final_output
        if kind is OpenAIResponsesModel:
            assert (await Runner.run(plain, prompt, previous_response_id=first.last_response_id)).final_output
    with agents.tries("stream"):
        streamed = Runner.run_streamed(plain, prompt)
        kinds = {event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"}
        assert {"response.created", "response.output_text.delta"} <= kinds and streamed.final_output, kinds
    with agents.tries("form"):
        typed = Agent(name="typed", model=served, model_settings=settings, output_type=Forecast)
        assert (await Runner.run(typed, prompt)).final_output.rain in (True, False)
    # The agents reset `tool_choice` after a call.
    forced = ModelSettings(max_tokens=tokens, tool_choice="required", parallel_tool_calls=False)
    options = {"name": "caller", "model": served, "model_settings": forced, "tools": [weather]}
    with agents.tries("call"):
        outcome = await Runner.run(Agent(tool_use_behavior="stop_on_first_tool", **options), prompt)
        assert "rain for" in outcome.final_output, outcome.final_output
    with agents.tries("result"):
        turns = [*outcome.to_input_list(), {"role": "user", "content": prompt}]
        assert (await Runner.run(plain, turns)).final_output


async def main():
    set_tracing_disabled(True)
    await use("responses", OpenAIResponsesModel)
    await use("chat completions", OpenAIChatCompletionsModel)


asyncio.run(main())
