#!/usr/bin/env bash
# Ollama's Python client describes the same function differently from process to process: a parameter that is `int |
# str` gets the type "integer, string" or "string, integer". So a prompt with tools differs from run to run.
#
# The client makes a tool from a Python function. It joins the types of a union with commas, in the order of a Python
# set, and Python's hashes of strings are random unless PYTHONHASHSEED is set. Chat templates write the tools at the
# beginning of the prompt, so what a server has cached of an earlier run does not fit, and the answer may differ
# although temperature and seed are the same. "integer, string" is not a type of JSON Schema either: a list of types or
# `anyOf` would be.
#
# Seen with ollama 0.6.3 and pydantic 2.12.5 from PyPI. The tools of /api/chat for `def set_light(room: int | str,
# level: float | str | int)` in eight processes, with PYTHONHASHSEED from 1 to 8 so that the runs can be repeated:
#
#   room: "integer, string" 4 times, "string, integer" 4 times
#   level: 4 different types
#
# Exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --only-binary :all: ollama==0.6.3 pydantic==2.12.5
cat > "$folder/client.py" <<'PYTHON'
import sys
import ollama


def set_light(room: int | str, level: float | str | int):
    """Sets a light.

    Args:
        room: The number or the name of a room
        level: The brightness
    """


messages = [{"role": "user", "content": "Hello"}]
ollama.Client(host=sys.argv[1]).chat(model="any", messages=messages, tools=[set_light])
PYTHON
"$folder/venv/bin/python" - "$folder/client.py" <<'PYTHON'
import collections, http.server, json, os, subprocess, sys, threading

bodies = []


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"model": "any", "message": {"role": "assistant", "content": "Hello"}, "done": true}')

    def log_message(self, *arguments):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
for seed in range(1, 9):
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    subprocess.run([sys.executable, sys.argv[1], f"http://127.0.0.1:{server.server_port}"], env=environment, check=True)
properties = [body["tools"][0]["function"]["parameters"]["properties"] for body in bodies]
rooms = collections.Counter(each["room"]["type"] for each in properties)
levels = {each["level"]["type"] for each in properties}
print("room:", ", ".join(f'"{name}" {count} times' for name, count in sorted(rooms.items())))
print(f"level: {len(levels)} different types")
sys.exit(0 if set(rooms) == {"integer, string", "string, integer"} and len(levels) > 1 else 1)
PYTHON
