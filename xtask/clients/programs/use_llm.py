"""The program `llm`, with the server in its file of extra models: text, a stream and a schema."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from common import Client, model, prompt, tokens, url

client = Client("llm", "chat completions")
with tempfile.TemporaryDirectory() as folder:
    entry = f"- model_id: served\n  model_name: {model}\n  api_base: {url}\n  api_key_name: served\n  supports_schema: true\n"
    pathlib.Path(folder, "extra-openai-models.yaml").write_text(entry)
    pathlib.Path(folder, "keys.json").write_text('{"served": "none"}')

    def llm(*more):
        command = [sys.executable, "-m", "llm", "-m", "served", "-o", "max_tokens", str(tokens), *more, prompt]
        return subprocess.run(
            command, env={**os.environ, "LLM_USER_PATH": folder}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        ).stdout

    with client.tries("stream"):
        assert llm().strip()
    with client.tries("text"):
        assert llm("--no-stream").strip()
    with client.tries("form"):
        assert json.loads(llm("--schema", "rain bool"))["rain"] in (True, False)
