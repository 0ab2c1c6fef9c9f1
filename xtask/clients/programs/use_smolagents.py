"""smolagents' OpenAI model: text, a stream and a forced tool."""

import json

from common import Client, key, model, prompt, tokens, url
from smolagents import OpenAIModel, tool
from smolagents.models import ChatMessage


@tool
def weather(days: int) -> str:
    """The weather for some days.

    Args:
        days: How many days.
    """
    return f"rain for {days} days"


served = OpenAIModel(model_id=model, api_base=url, api_key=key, max_tokens=tokens)
said = [ChatMessage(role="user", content=[{"type": "text", "text": prompt}])]
client = Client("smolagents", "chat completions")
with client.tries("text"):
    assert served.generate(said).content
with client.tries("stream"):
    assert "".join(it.content or "" for it in served.generate_stream(said))
with client.tries("call"):
    call = served.generate(said, tools_to_call_from=[weather]).tool_calls[0]
    arguments = call.function.arguments
    assert isinstance((arguments if isinstance(arguments, dict) else json.loads(arguments))["days"], int), call
