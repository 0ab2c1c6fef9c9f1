"""Claude Code does a task from beginning to end, with a scripted model: it writes a file, and reports."""

import json
import os
import pathlib
import subprocess
import tempfile

from common import Client, key, model, url
from script import scripted

packages = pathlib.Path(os.environ["AUTOPLACE_CODERS"])
version = json.loads((packages / "@anthropic-ai/claude-code/package.json").read_text())["version"]
client = Client("@anthropic-ai/claude-code", "messages", "Claude Code", version)
with client.tries("a task"), tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "weather.txt")
    turns = [("Write", {"file_path": str(file), "content": "rain"}), "The weather is in the file."]
    with scripted(url, turns) as (proxy, answered):
        # The agent must not contact other servers.
        own = {
            "ANTHROPIC_BASE_URL": proxy, "ANTHROPIC_API_KEY": key, "ANTHROPIC_MODEL": model,
            "ANTHROPIC_SMALL_FAST_MODEL": model, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "400", "DISABLE_AUTOUPDATER": "1",
        }
        command = [packages / ".bin/claude", "-p", "Write the weather to weather.txt.", "--allowedTools", "Write"]
        ran = subprocess.run(
            command, cwd=folder, env={"PATH": os.environ["PATH"], "HOME": home, **own},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900,
        )
        said = ran.stdout + ran.stderr
        assert ran.returncode == 0 and set(answered) == {200}, (answered, said)
        assert file.read_text() == "rain", said
        assert turns[1] in ran.stdout, said
