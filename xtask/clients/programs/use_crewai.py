"""CrewAI's model: text, and a typed answer."""

from common import done, key, model, prompt, tokens, url
from crewai import LLM
from pydantic import BaseModel


class Forecast(BaseModel):
    rain: bool


options = {"model": f"openai/{model}", "base_url": url, "api_key": key, "max_tokens": tokens}
assert LLM(**options).call(prompt)
answer = LLM(response_format=Forecast, **options).call(prompt)
answer = answer if isinstance(answer, Forecast) else Forecast.model_validate_json(answer)
assert answer.rain in (True, False)
done("crewai")
