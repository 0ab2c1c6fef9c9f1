"""aider does a task from beginning to end, with a scripted model: it writes a file that the answer holds whole."""

import os
import pathlib
import subprocess
import sys
import tempfile

from common import Client, key, model, url
from script import scripted

client = Client("aider-chat", "chat completions", "aider")
turns = ["weather.txt\n```\nrain\n```\n"]
with client.tries("a task"), tempfile.TemporaryDirectory() as folder, scripted(url, turns) as (proxy, answered):
    options = {"openai-api-base": f"{proxy}/v1", "openai-api-key": key, "message": "Write the weather to weather.txt."}
    command = [sys.executable, "-m", "aider", "--model", f"openai/{model}", "--no-git", "--yes-always", "--no-check-update"]
    command += ["--no-show-model-warnings", "--analytics-disable", "--no-show-release-notes", "--no-detect-urls"]
    command += [word for name, value in options.items() for word in (f"--{name}", value)]
    ran = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
        env={"PATH": os.environ["PATH"], "HOME": folder, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0 and set(answered) == {200}, (answered, said)
    assert pathlib.Path(folder, "weather.txt").read_text().strip() == "rain", said
