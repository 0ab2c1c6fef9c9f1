"""LangChain's ChatOpenAI: text, a stream, a typed answer and a forced tool."""

from common import done, key, model, prompt, tokens, url
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Forecast(BaseModel):
    rain: bool


@tool
def weather(days: int) -> str:
    """The weather for some days."""
    return f"rain for {days} days"


chat = ChatOpenAI(base_url=url, api_key=key, model=model, max_tokens=tokens, max_retries=0)
assert chat.invoke(prompt).content
assert "".join(it.content for it in chat.stream(prompt))
for method in ("json_schema", "function_calling"):
    assert chat.with_structured_output(Forecast, method=method).invoke(prompt).rain in (True, False)
called = chat.bind_tools([weather], tool_choice="any").invoke(prompt).tool_calls[0]
assert called["name"] == "weather" and isinstance(called["args"]["days"], int), called
called = chat.bind_tools([weather], tool_choice="any", strict=True).invoke(prompt).tool_calls[0]
assert isinstance(called["args"]["days"], int), called
vectors = OpenAIEmbeddings(base_url=url, api_key=key, model=model, check_embedding_ctx_length=False)
assert len(vectors.embed_query("rain")) > 1
done("langchain")
