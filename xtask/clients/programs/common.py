"""What all programs of this folder share: `program URL MODEL`. Each trial becomes a line of JSON on stdout, which
`cli/tests/program/serve_client.rs` reads."""

import contextlib
import importlib.metadata
import json
import sys
import traceback

url, model = sys.argv[1] + "/v1", sys.argv[2]
key = "none"
prompt = "How is the weather in Bonn? Answer briefly."
tokens = 400


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
