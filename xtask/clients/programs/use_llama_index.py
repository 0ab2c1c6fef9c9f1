"""LlamaIndex with OpenAILike: text, a stream, a forced tool and its result."""

from common import Client, key, model, prompt, tokens, url
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def weather(days: int) -> str:
    """The weather for some days."""
    return f"rain for {days} days"


served = OpenAILike(
    api_base=url, api_key=key, model=model, is_chat_model=True, is_function_calling_model=True, max_tokens=tokens,
    max_retries=0,
)
said = [ChatMessage(role="user", content=prompt)]
client = Client("llama-index-llms-openai-like", "chat completions", "llama-index")
with client.tries("text"):
    assert served.chat(said).message.content
with client.tries("stream"):
    assert [it.delta for it in served.stream_chat(said)]
with client.tries("call"):
    answer = served.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg=prompt, tool_required=True)
    call = served.get_tool_calls_from_response(answer)[0]
    assert call.tool_name == "weather" and isinstance(call.tool_kwargs["days"], int), call
with client.tries("result"):
    result = ChatMessage(role="tool", content="rain", additional_kwargs={"tool_call_id": call.tool_id})
    assert served.chat([*said, answer.message, result]).message.content
