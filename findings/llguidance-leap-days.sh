#!/usr/bin/env bash
# llguidance knows the length of each month, but not which years are leap years. It also permits a second 60 in every
# minute.
#
# Seen with llguidance 1.9.1 from PyPI: a JSON Schema with the format `date` rejects 2023-02-30 and 2023-04-31, but
# accepts 2023-02-29 and 1900-02-29, which do not exist. `time` accepts 12:00:60Z, although RFC 3339 permits a second 60
# only for an announced leap second, at 23:59:60 UTC. `date-time` accepts both. So a text that such a grammar constrains
# is not always a date that a parser accepts.
#
# Exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json, sys
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def accepts(form, value):
    schema = {"type": "string", "format": form}
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    tokens = tokenizer.tokenize_str(json.dumps(value))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


expected = {
    ("date", "2024-02-29"): True,
    ("date", "2023-02-30"): False,
    ("date", "2023-04-31"): False,
    ("date", "2023-02-29"): True,
    ("date", "1900-02-29"): True,
    ("time", "23:59:60Z"): True,
    ("time", "12:00:60Z"): True,
    ("date-time", "2023-02-29T12:00:60+01:00"): True,
}
seen = {case: accepts(*case) for case in expected}
for (form, value), accepted in seen.items():
    print(f"{form} {value}: {'accepted' if accepted else 'rejected'}")
sys.exit(0 if seen == expected else 1)
PYTHON
