"""DSPy with its JSON adapter: a typed answer."""

import os

# LiteLLM must not download its list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy
import litellm
from common import Client, key, model, prompt, tokens, url


class Forecast(dspy.Signature):
    question: str = dspy.InputField()
    rain: bool = dspy.OutputField()


# LiteLLM sends a schema only to models that it knows.
known = {"supports_response_schema": True, "litellm_provider": "openai", "mode": "chat"}
litellm.register_model({f"openai/{model}": known, model: known})
# DSPy's own engine also sends schemas only to models that it knows.
options = {"cache": False, "num_retries": 0, "engine": "litellm"}
served = dspy.LM(f"openai/{model}", api_base=url, api_key=key, max_tokens=tokens, **options)
client = Client("dspy", "chat completions")
with client.tries("text"):
    assert served(prompt)[0]
with client.tries("form"), dspy.context(lm=served, adapter=dspy.JSONAdapter()):
    assert dspy.Predict(Forecast)(question=prompt).rain in (True, False)
