"""What all programs of this folder share: `program URL MODEL`. Each trial becomes a line of JSON on stdout, which
`cli/tests/program/serve_client.rs` reads."""

import contextlib
import importlib.metadata
import json
import os
import sys
import traceback
import urllib.request

url, model = sys.argv[1] + "/v1", sys.argv[2]
key = "none"
prompt = "How is the weather in Bonn? Answer briefly."
tokens = 400
# A picture of 8 x 6 pixels, for a model that accepts images.
picture = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAGCAIAAABxZ0isAAAAY0lEQVR42g3JIQEAQQhFQZKgCbEh0Jvky5cCTYgNgSbR3dgxM9w4"
    "xjVklPGMNcwCD05wAwUVvGDjj8STk9xESSUv2fxDuDjiCokST6z+aLw5zW3UVPOa7T8GH85wBw01vGGHD8x/PnGPuaBxAAAAAElF"
    "TkSuQmCC"
)
sees = os.environ.get("AUTOPLACE_CLIENT_SEES") == "1"
question = "What is this?"


def plainly(path, body):
    """The answer to a request that no client has touched."""
    head = {"content-type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps({"model": model, "temperature": 0, **body}).encode(), head)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def seen_in_chat():
    """What the model says of the picture over chat completions."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    said = [{"role": "user", "content": [image, {"type": "text", "text": question}]}]
    return plainly("/chat/completions", {"messages": said, "max_tokens": 12})["choices"][0]["message"]["content"]


def seen_in_messages():
    """What the model says of the picture over Anthropic's messages."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}
    said = [{"role": "user", "content": [image, {"type": "text", "text": question}]}]
    return plainly("/messages", {"messages": said, "max_tokens": 12})["content"][0]["text"]


class Client:
    """A client, by its package, on one of the server's APIs."""

    def __init__(self, package, surface, name=None, version=None):
        self.client = name or package
        self.version = version or importlib.metadata.version(package)
        self.surface = surface

    @contextlib.contextmanager
    def tries(self, what):
        """Reports what goes wrong inside, and goes on."""
        error = None
        try:
            yield
        except Exception as raised:
            traceback.print_exc()
            error = f"{type(raised).__name__}: {raised}"
        trial = {"client": self.client, "version": self.version, "surface": self.surface, "tried": what}
        print(json.dumps({**trial, "error": error}), flush=True)
