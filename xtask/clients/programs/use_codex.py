"""Codex does a task from beginning to end, with a scripted model: it runs a command that writes a file, and reports."""

import json
import os
import pathlib
import subprocess
import tempfile

from common import Client, model, url
from script import scripted

packages = pathlib.Path(os.environ["AUTOPLACE_CODERS"])
version = json.loads((packages / "@openai/codex/package.json").read_text())["version"]
client = Client("@openai/codex", "responses", "Codex CLI", version)
turns = [("exec_command", {"cmd": "printf rain > weather.txt"}), "The weather is in the file."]
with client.tries("a task"), tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
    with scripted(url, turns) as (proxy, answered):
        pathlib.Path(home, "config.toml").write_text(
            f'model = "{model}"\nmodel_provider = "served"\n'
            f'[model_providers.served]\nname = "served"\nbase_url = "{proxy}/v1"\nwire_api = "responses"\n'
        )
        command = [packages / ".bin/codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        command += ["--output-last-message", f"{home}/last", "Write the weather to weather.txt."]
        ran = subprocess.run(
            command, cwd=folder, env={"PATH": os.environ["PATH"], "HOME": home, "CODEX_HOME": home},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900,
        )
        said = ran.stdout + ran.stderr
        assert ran.returncode == 0 and answered == [200, 200], (answered, said)
        assert pathlib.Path(folder, "weather.txt").read_text() == "rain", said
        assert pathlib.Path(home, "last").read_text().strip() == turns[1], said
