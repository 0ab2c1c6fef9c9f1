"""LiteLLM: text, a stream, a typed answer and a forced tool."""

import json
import os

# Prices are nothing to ask anybody for.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from common import done, key, model, prompt, tokens, url
from pydantic import BaseModel


class Forecast(BaseModel):
    rain: bool


options = {"model": f"openai/{model}", "api_base": url, "api_key": key, "max_tokens": tokens, "num_retries": 0}
said = [{"role": "user", "content": prompt}]
assert litellm.completion(messages=said, **options).choices[0].message.content
streamed = litellm.completion(messages=said, stream=True, **options)
assert "".join(it.choices[0].delta.content or "" for it in streamed)
answer = litellm.completion(messages=said, response_format=Forecast, **options)
assert json.loads(answer.choices[0].message.content)["rain"] in (True, False)
parameters = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
call = litellm.completion(messages=said, tools=tools, tool_choice="required", **options).choices[0].message.tool_calls[0]
assert isinstance(json.loads(call.function.arguments)["days"], int), call
done("litellm")
