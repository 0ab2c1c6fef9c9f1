"""OpenAI's own client on chat completions: a typed answer, a strict tool by its pydantic helper, and both at once."""

import json

from common import Client, key, model, picture, prompt, question, seen_in_messages, sees, tokens, url
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field


class Forecast(BaseModel):
    rain: bool
    degrees: int = Field(ge=-60, le=60)


class Weather(BaseModel):
    days: int = Field(ge=1, le=9)


client = OpenAI(base_url=url, api_key=key, max_retries=0)
said = [{"role": "user", "content": prompt}]
tools = [pydantic_function_tool(Weather)]
# The demo model repeats itself. Unless `parallel_tool_calls` is false, it can write calls up to the limit, which raises
# an exception.
one_call = {"tools": tools, "parallel_tool_calls": False}


def parse(**more):
    return client.chat.completions.parse(**{"model": model, "messages": said, "max_tokens": tokens, **more}).choices[0].message


def create(**more):
    """For free text: `parse` raises where a text reaches the limit, and a random one may."""
    return client.chat.completions.create(**{"model": model, "messages": said, "max_tokens": tokens, **more}).choices[0].message


chat = Client("openai", "chat completions", "openai (Python)")
with chat.tries("text"):
    assert create().content
with chat.tries("stream"):
    streamed = client.chat.completions.create(model=model, messages=said, max_tokens=tokens, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
with chat.tries("form"):
    assert -60 <= parse(response_format=Forecast).parsed.degrees <= 60
with chat.tries("call"):
    called = parse(tool_choice="required", **one_call)
    assert 1 <= called.tool_calls[0].function.parsed_arguments.days <= 9
with chat.tries("streamed call"):
    with client.chat.completions.stream(
        model=model, messages=said, max_tokens=tokens, tool_choice="required", **one_call
    ) as stream:
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert 1 <= json.loads(call.function.arguments)["days"] <= 9
with chat.tries("result"):
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "rain"}
    turns = [*said, called.model_dump(exclude_none=True, exclude={"parsed"}), result]
    assert create(messages=turns, tools=tools, tool_choice="none").content
with chat.tries("a tool beside a form"):
    message = parse(response_format=Forecast, **one_call)
    assert message.parsed or message.tool_calls[0].function.parsed_arguments
if sees:
    with chat.tries("a picture"):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
        parts = [image, {"type": "text", "text": question}]
        seen = create(messages=[{"role": "user", "content": parts}], max_tokens=12, temperature=0).content
        # The model must get the same prompt through another API.
        assert seen and seen == seen_in_messages(), (seen, seen_in_messages())
