"""Instructor in the modes that people use: a JSON schema, tools and strict tools."""

import instructor
from common import Client, key, model, prompt, tokens, url
from openai import OpenAI
from pydantic import BaseModel, Field


class Forecast(BaseModel):
    rain: bool
    days: int = Field(ge=1, le=9)


client = Client("instructor", "chat completions")
for what, modes in {"form": ["JSON_SCHEMA"], "call": ["TOOLS", "TOOLS_STRICT"]}.items():
    with client.tries(what):
        for mode in modes:
            served = instructor.from_openai(
                OpenAI(base_url=url, api_key=key, max_retries=0), mode=getattr(instructor.Mode, mode)
            )
            said = [{"role": "user", "content": prompt}]
            forecast = served.chat.completions.create(
                model=model, messages=said, response_model=Forecast, max_retries=0, max_tokens=tokens
            )
            assert 1 <= forecast.days <= 9, (mode, forecast)
