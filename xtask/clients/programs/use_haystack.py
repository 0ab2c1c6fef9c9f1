"""Haystack's OpenAI generator: text, a forced tool and a typed answer."""

import json

from common import done, key, model, prompt, tokens, url
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

parameters = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
weather = Tool(name="weather", description="The weather.", parameters=parameters, function=lambda days: f"rain for {days}")
options = {"api_base_url": url, "api_key": Secret.from_token(key), "model": model, "max_retries": 0}
said = [ChatMessage.from_user(prompt)]
plain = OpenAIChatGenerator(generation_kwargs={"max_tokens": tokens}, **options)
assert plain.run(said)["replies"][0].text
forced = OpenAIChatGenerator(
    tools=[weather], generation_kwargs={"max_tokens": tokens, "tool_choice": "required"}, **options
)
call = forced.run(said)["replies"][0].tool_calls[0]
assert call.tool_name == "weather" and isinstance(call.arguments["days"], int), call
schema = {"type": "object", "properties": {"rain": {"type": "boolean"}}, "required": ["rain"]}
form = {"type": "json_schema", "json_schema": {"name": "forecast", "schema": schema, "strict": True}}
typed = OpenAIChatGenerator(generation_kwargs={"max_tokens": tokens, "response_format": form}, **options)
assert json.loads(typed.run(said)["replies"][0].text)["rain"] in (True, False)
done("haystack")
