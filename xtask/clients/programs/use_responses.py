"""OpenAI's own client on responses: every event by its type, tools, a form, and stored responses."""

import json
import pathlib
import re
import typing

import openai
from common import Client, key, model, picture, prompt, question, seen_in_chat, sees, tokens, url
from openai.types import responses as types
from pydantic import BaseModel, Field, TypeAdapter

client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
weather = {
    "type": "function", "name": "weather", "description": "The weather.", "strict": True,
    "parameters": {"type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
                   "required": ["days"], "additionalProperties": False},
}


def strict(kind, value):
    """Checks a value against the SDK's type, which the client itself does not."""
    TypeAdapter(kind).validate_python(value.model_dump(by_alias=True))


def create(**more):
    response = client.responses.create(**{"model": model, "input": prompt, "max_output_tokens": tokens, **more})
    strict(types.Response, response)
    return response


class Forecast(BaseModel):
    rain: bool
    days: int = Field(ge=1, le=9)


responses = Client("openai", "responses", "openai (Python)")
short = {"temperature": 0, "max_output_tokens": 24, "instructions": "Be brief."}
with responses.tries("fields of the documentation"):
    # Every field of the SDK must be in the documentation's table.
    document = (pathlib.Path(__file__).parents[3] / "docs/responses.md").read_text()
    named = set(re.findall(r"`([a-z_]+)`", document[document.index("| field | |") :]))
    fields = set(typing.get_type_hints(types.response_create_params.ResponseCreateParamsBase))
    assert fields <= named, fields - named
with responses.tries("text"):
    answer = create(**short)
    assert answer.output_text and answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens" and answer.usage.output_tokens == 24
    assert create(**short).usage.input_tokens_details.cached_tokens > 0
with responses.tries("stream"):
    events = list(client.responses.create(model=model, input=prompt, stream=True, **short))
    for event in events:
        strict(types.ResponseStreamEvent, event)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    begin = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    end = ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"]
    assert kinds[:4] == begin and kinds[-4:] == end, kinds
    assert set(kinds[4:-4]) == {"response.output_text.delta"}, kinds
    assert "".join(event.delta for event in events[4:-4]) == events[-1].response.output_text
with responses.tries("call"):
    # Without `parallel_tool_calls: false` the demo model writes calls up to the limit.
    called = create(tools=[weather, {"type": "web_search"}], tool_choice="required", parallel_tool_calls=False)
    call = called.output[-1]
    assert call.type == "function_call" and 1 <= json.loads(call.arguments)["days"] <= 9, called
with responses.tries("result"):
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    after = create(input=[output], previous_response_id=called.id, tools=[weather], tool_choice="none", **short)
    said = [{"role": "user", "content": [{"type": "input_text", "text": prompt}]}, *called.output, output]
    again = create(input=said, tools=[weather], tool_choice="none", store=False, **short)
    assert (after.output_text, after.usage.input_tokens) == (again.output_text, again.usage.input_tokens)
    referred = [said[0], {"type": "item_reference", "id": call.id}, output]
    assert create(input=referred, tools=[weather], tool_choice="none", **short).usage.input_tokens == again.usage.input_tokens
    assert client.responses.retrieve(called.id).output[-1].arguments == call.arguments
    client.responses.delete(called.id)
with responses.tries("form"):
    parsed = client.responses.parse(model=model, input=prompt, text_format=Forecast, max_output_tokens=tokens)
    assert 1 <= parsed.output_parsed.days <= 9, parsed
with responses.tries("a streamed form"):
    with client.responses.stream(model=model, input=prompt, text_format=Forecast, max_output_tokens=tokens) as stream:
        kinds = [event.type for event in stream]
        assert 1 <= stream.get_final_response().output_parsed.days <= 9, kinds
with responses.tries("log-probabilities"):
    logprobs = create(include=["message.output_text.logprobs"], top_logprobs=2, **short).output[-1].content[0].logprobs
    assert len(logprobs) == 24 and len(logprobs[0].top_logprobs) == 2
with responses.tries("errors"):
    for more, kind in [
        ({"model": "other"}, openai.NotFoundError),
        ({"previous_response_id": called.id}, openai.NotFoundError),
        ({"previous_response_id": again.id}, openai.NotFoundError),
        ({"input": prompt * 5000}, openai.BadRequestError),
        ({"tool_choice": {"type": "web_search"}}, openai.BadRequestError),
        ({"conversation": "conv_1"}, openai.BadRequestError),
    ]:
        try:
            create(**more)
        except kind as error:
            assert error.body["message"] and error.body["type"] == "invalid_request_error", error.body
        else:
            raise AssertionError(more)
if sees:
    with responses.tries("a picture"):
        image = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{picture}"}
        parts = [image, {"type": "input_text", "text": question}]
        seen = create(input=[{"role": "user", "content": parts}], max_output_tokens=12, temperature=0).output_text
        # The model must get the same prompt through another API.
        assert seen and seen == seen_in_chat(), (seen, seen_in_chat())
