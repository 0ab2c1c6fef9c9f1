"""Anthropic's own client: messages and every event by its types, tools, thoughts, a form, and counts of tokens."""

import pathlib
import re
import typing

import anthropic
from anthropic import types
from common import Client, key, model, picture, prompt, question, seen_in_chat, sees, tokens, url
from pydantic import BaseModel, TypeAdapter

client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)
said = [{"role": "user", "content": prompt}]
weather = {
    "name": "weather", "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"days": {"type": "integer", "minimum": 1}}, "required": ["days"]},
}
# The client no longer has a parameter for the temperature, but the API does.
greedy = {"temperature": 0}
one_call = {"type": "any", "disable_parallel_tool_use": True}


def strict(kind, value):
    """Checks a value against the SDK's type, which the client itself does not."""
    TypeAdapter(kind).validate_python(value.model_dump())


def create(**more):
    options = {"model": model, "messages": said, "max_tokens": tokens, **more}
    message = client.messages.create(**options)
    strict(types.Message, message)
    return message


class Forecast(BaseModel):
    rain: bool


messages = Client("anthropic", "messages", "anthropic (Python)")
options = {"model": model, "messages": said, "max_tokens": 24, "system": "Be brief.", "extra_body": greedy}
with messages.tries("fields of the documentation"):
    # Every field of the SDK must be in the documentation's table.
    document = (pathlib.Path(__file__).parents[3] / "docs/messages.md").read_text()
    named = set(re.findall(r"`([a-z_]+)`", document[document.index("| field | |") :]))
    fields = set()
    for params in (types.message_create_params.MessageCreateParamsBase, types.MessageCountTokensParams):
        fields |= set(typing.get_type_hints(params))
    assert fields <= named, fields - named
with messages.tries("text"):
    message = create(system="Be brief.", extra_body=greedy, max_tokens=24)
    assert message.content[0].text and message.stop_reason == "max_tokens" and message.usage.output_tokens == 24
    again = create(system="Be brief.", extra_body=greedy, max_tokens=24)
    assert again.usage.cache_read_input_tokens > 0, again.usage
    word = message.content[0].text.split()[1]
    stopped = create(system="Be brief.", extra_body=greedy, max_tokens=24, stop_sequences=["\0never", word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word), stopped
with messages.tries("stream"):
    kinds = []
    for event in client.messages.create(stream=True, **options):
        strict(types.RawMessageStreamEvent, event)
        kinds.append(event.type)
    assert kinds[:3] == ["message_start", "content_block_start", "content_block_delta"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        assert text == stream.get_final_message().content[0].text
with messages.tries("call"):
    called = create(tools=[weather], tool_choice=one_call)
    call = called.content[-1]
    assert called.stop_reason == "tool_use" and call.name == "weather" and call.input["days"] >= 1, called
with messages.tries("result"):
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    turns = [*said, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    assert create(messages=turns, tools=[weather], tool_choice={"type": "none"}, max_tokens=24).content
with messages.tries("streamed call"):
    with client.messages.stream(tools=[weather], tool_choice=one_call, **{**options, "max_tokens": tokens}) as stream:
        assert stream.get_final_message().content[-1].input["days"] >= 1
with messages.tries("form"):
    parsed = client.messages.parse(model=model, messages=said, max_tokens=tokens, output_format=Forecast)
    assert parsed.parsed_output.rain in (True, False), parsed
with messages.tries("counts of tokens"):
    count = client.messages.count_tokens(model=model, messages=said, system="Be brief.").input_tokens
    usage = create(system="Be brief.", max_tokens=1).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens, (count, usage)
with messages.tries("errors"):
    for more, kind in [
        ({"model": "other"}, anthropic.NotFoundError),
        ({"messages": [{"role": "user", "content": prompt * 5000}]}, anthropic.BadRequestError),
        ({"container": "x"}, anthropic.BadRequestError),
    ]:
        try:
            create(**more)
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["message"], error.body
        else:
            raise AssertionError(more)
if sees:
    with messages.tries("a picture"):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}
        parts = [image, {"type": "text", "text": question}]
        seen = create(messages=[{"role": "user", "content": parts}], max_tokens=12, extra_body=greedy).content[0].text
        # The model must get the same prompt through another API.
        assert seen and seen == seen_in_chat(), (seen, seen_in_chat())
