"""LangChain's ChatOpenAI on both of OpenAI's APIs: text, a stream, typed answers, a forced tool and its result."""

from common import Client, key, model, prompt, tokens, url
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Forecast(BaseModel):
    rain: bool


@tool
def weather(days: int) -> str:
    """The weather for some days."""
    return f"rain for {days} days"


def use(surface, **more):
    chat = ChatOpenAI(base_url=url, api_key=key, model=model, max_tokens=tokens, max_retries=0, **more)
    client = Client("langchain-openai", surface)
    with client.tries("text"):
        assert chat.invoke(prompt).text
    with client.tries("stream"):
        assert "".join(it.text for it in chat.stream(prompt))
    with client.tries("form"):
        for method in ("json_schema", "function_calling"):
            assert chat.with_structured_output(Forecast, method=method).invoke(prompt).rain in (True, False)
    with client.tries("call"):
        for strict in (None, True):
            forced = chat.bind_tools([weather], tool_choice="any", strict=strict, parallel_tool_calls=False)
            called = forced.invoke(prompt)
            [call] = called.tool_calls
            assert call["name"] == "weather" and isinstance(call["args"]["days"], int), called
    with client.tries("result"):
        turns = [HumanMessage(prompt), called, ToolMessage("rain", tool_call_id=call["id"])]
        assert chat.invoke(turns).text
    return client


client = use("chat completions")
with client.tries("embeddings"):
    vectors = OpenAIEmbeddings(base_url=url, api_key=key, model=model, check_embedding_ctx_length=False)
    assert len(vectors.embed_query("rain")) > 1
use("responses", use_responses_api=True)
