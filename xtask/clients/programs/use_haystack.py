"""Haystack's OpenAI generator: text, a stream, a typed answer, a forced tool and its result."""

import json

from common import Client, key, model, prompt, tokens, url
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

parameters = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
weather = Tool(name="weather", description="The weather.", parameters=parameters, function=lambda days: f"rain for {days}")
options = {"api_base_url": url, "api_key": Secret.from_token(key), "model": model, "max_retries": 0}
said = [ChatMessage.from_user(prompt)]
client = Client("haystack-ai", "chat completions", "haystack")
plain = OpenAIChatGenerator(generation_kwargs={"max_tokens": tokens}, **options)
with client.tries("text"):
    assert plain.run(said)["replies"][0].text
with client.tries("stream"):
    pieces = []
    plain.run(said, streaming_callback=pieces.append)
    assert "".join(piece.content for piece in pieces)
forced = OpenAIChatGenerator(
    tools=[weather], generation_kwargs={"max_tokens": tokens, "tool_choice": "required"}, **options
)
with client.tries("call"):
    called = forced.run(said)["replies"][0]
    call = called.tool_calls[0]
    assert call.tool_name == "weather" and isinstance(call.arguments["days"], int), call
with client.tries("result"):
    results = [ChatMessage.from_tool("rain", origin=call) for call in called.tool_calls]
    assert plain.run([*said, called, *results])["replies"][0].text
schema = {"type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"]}
form = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": schema, "strict": True}}
typed = OpenAIChatGenerator(generation_kwargs={"max_tokens": tokens, "response_format": form}, **options)
with client.tries("form"):
    assert json.loads(typed.run(said)["replies"][0].text)["rain"] in (True, False)
