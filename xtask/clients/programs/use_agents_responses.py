"""OpenAI's agents on responses, which is their default: text, a typed answer, and a tool whose result goes back."""

import asyncio

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
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
    served = OpenAIResponsesModel(model=model, openai_client=client)
    settings = ModelSettings(max_tokens=tokens)
    plain = Agent(name="plain", instructions="Be brief.", model=served, model_settings=settings)
    first = await Runner.run(plain, prompt)
    assert first.final_output
    # The conversation goes on with the items of the first answer, and with the stored response.
    assert (await Runner.run(plain, [*first.to_input_list(), {"role": "user", "content": prompt}])).final_output
    assert (await Runner.run(plain, prompt, previous_response_id=first.last_response_id)).final_output
    streamed = Runner.run_streamed(plain, prompt)
    kinds = {event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"}
    assert {"response.created", "response.output_text.delta"} <= kinds and streamed.final_output, kinds
    typed = Agent(name="typed", model=served, model_settings=settings, output_type=Forecast)
    assert (await Runner.run(typed, prompt)).final_output.rain in (True, False)
    # A tool is called once, and then the model answers with its result: the agents reset `tool_choice` after a call.
    forced = ModelSettings(max_tokens=tokens, tool_choice="required", parallel_tool_calls=False)
    caller = Agent(
        name="caller", model=served, model_settings=forced, tools=[weather],
        tool_use_behavior="stop_on_first_tool",
    )
    outcome = await Runner.run(caller, prompt)
    assert "rain for" in outcome.final_output, outcome.final_output


asyncio.run(main())
done("openai-agents (responses)")
