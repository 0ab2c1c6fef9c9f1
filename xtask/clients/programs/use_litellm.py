"""LiteLLM on three APIs: text, a stream, a typed answer, a forced tool, and its result."""

import json
import os

# LiteLLM must not download its list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from common import Client, key, model, prompt, tokens, url
from pydantic import BaseModel


class Forecast(BaseModel):
    rain: bool


parameters = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
tools = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": parameters}}]
said = [{"role": "user", "content": prompt}]


def use(surface, provider, base):
    options = {"model": f"{provider}/{model}", "api_base": base, "api_key": key, "max_tokens": tokens, "num_retries": 0}

    def complete(**more):
        return litellm.completion(**{"messages": said, **options, **more})

    client = Client("litellm", surface)
    with client.tries("text"):
        assert complete().choices[0].message.content
    with client.tries("stream"):
        assert "".join(it.choices[0].delta.content or "" for it in complete(stream=True))
    with client.tries("form"):
        content = complete(response_format=Forecast).choices[0].message.content
        assert json.loads(content)["rain"] in (True, False), content
    with client.tries("call"):
        called = complete(tools=tools, tool_choice="required", parallel_tool_calls=False).choices[0].message
        [call] = called.tool_calls
        assert isinstance(json.loads(call.function.arguments)["days"], int), call
    with client.tries("result"):
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        turns = [*said, called.model_dump(exclude_none=True), result]
        assert complete(messages=turns, tools=tools, tool_choice="none").choices[0].message.content


use("chat completions", "openai", url)
use("messages", "anthropic", url.removesuffix("/v1"))

options = {"model": f"openai/{model}", "api_base": url, "api_key": key, "max_output_tokens": tokens}
responses = Client("litellm", "responses")
with responses.tries("text"):
    assert litellm.responses(input=prompt, **options).output[-1].content[0].text
with responses.tries("stream"):
    events = list(litellm.responses(input=prompt, stream=True, **options))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text and text == events[-1].response.output[-1].content[0].text
with responses.tries("call"):
    function = {"type": "function", **tools[0]["function"]}
    forced = {"tools": [function], "tool_choice": "required", "parallel_tool_calls": False}
    called = litellm.responses(input=prompt, **forced, **options)
    call = called.output[-1]
    assert isinstance(json.loads(call.arguments)["days"], int), call
with responses.tries("result"):
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    turns = [*said, {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}, output]
    assert litellm.responses(input=turns, **options).output[-1].content[0].text
