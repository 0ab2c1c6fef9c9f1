"""CrewAI's model: text, and a typed answer."""

from common import Client, key, model, prompt, tokens, url
from crewai import LLM
from pydantic import BaseModel


class Forecast(BaseModel):
    rain: bool


options = {"model": f"openai/{model}", "base_url": url, "api_key": key, "max_tokens": tokens}
client = Client("crewai", "chat completions")
with client.tries("text"):
    assert LLM(**options).call(prompt)
with client.tries("form"):
    answer = LLM(response_format=Forecast, **options).call(prompt)
    answer = answer if isinstance(answer, Forecast) else Forecast.model_validate_json(answer)
    assert answer.rain in (True, False)
