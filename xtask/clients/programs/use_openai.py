"""OpenAI's own client: a typed answer, a strict tool by its pydantic helper, and both in one request."""

from common import done, key, model, prompt, tokens, url
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field


class Forecast(BaseModel):
    rain: bool
    degrees: int = Field(ge=-60, le=60)


class Weather(BaseModel):
    days: int = Field(ge=1, le=9)


client = OpenAI(base_url=url, api_key=key, max_retries=0)
said = [{"role": "user", "content": prompt}]
parse = client.chat.completions.parse
answer = parse(model=model, messages=said, response_format=Forecast, max_tokens=tokens)
assert -60 <= answer.choices[0].message.parsed.degrees <= 60
tools = [pydantic_function_tool(Weather)]
answer = parse(model=model, messages=said, tools=tools, tool_choice="required", max_tokens=tokens)
assert 1 <= answer.choices[0].message.tool_calls[0].function.parsed_arguments.days <= 9
# The demo model repeats itself: without `parallel_tool_calls` it can write calls up to the limit, which is an exception.
both = {"tools": tools, "response_format": Forecast, "parallel_tool_calls": False}
message = parse(model=model, messages=said, max_tokens=tokens, **both).choices[0].message
assert message.parsed or message.tool_calls[0].function.parsed_arguments
done("openai")
