"""Renders chat templates with Hugging Face's transformers: one JSON request a line in, one JSON answer a line out.

A request is what `autoplace template --batch` takes. The clock stands still, so that both sides see the same date.
"""

import datetime
import json
import sys

from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils


class Clock(datetime.datetime):
    """A clock that shows what the request says."""

    shown = (2025, 7, 4, 16, 5, 9)

    @classmethod
    def now(cls, tz=None):
        return cls(*cls.shown)


chat_template_utils.datetime = Clock


class Tokenizer(PreTrainedTokenizerBase):
    """A tokenizer that knows its special tokens and a template: all that `apply_chat_template` asks for."""


def render(request):
    Clock.shown = request.get("now") or Clock.shown
    tokenizer = Tokenizer(**request.get("special_tokens", {}))
    rendered = tokenizer.apply_chat_template(
        request["messages"],
        tools=request.get("tools"),
        documents=request.get("documents"),
        chat_template=request["template"],
        add_generation_prompt=request.get("add_generation_prompt", False),
        continue_final_message=request.get("continue_final_message", False),
        tokenize=False,
        **request.get("variables", {}),
    )
    # This fails for half of a surrogate pair, which is not text.
    rendered.encode()
    return rendered


def main():
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        try:
            answer = {"text": render(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - whatever a template does
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
