"""Instructor in the modes that people use: tools, strict tools, JSON and a JSON schema."""

import instructor
from common import done, key, model, prompt, tokens, url
from openai import OpenAI
from pydantic import BaseModel, Field


class Forecast(BaseModel):
    rain: bool
    days: int = Field(ge=1, le=9)


for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(base_url=url, api_key=key, max_retries=0), mode=mode)
    said = [{"role": "user", "content": prompt}]
    forecast = client.chat.completions.create(
        model=model, messages=said, response_model=Forecast, max_retries=0, max_tokens=tokens
    )
    assert 1 <= forecast.days <= 9, (mode, forecast)
done("instructor")
