#!/usr/bin/env bash
# @huggingface/jinja ignores the argument of `strip`, `lstrip` and `rstrip` and removes all white space instead. So a
# chat template that removes line breaks also removes the indentation of code in the conversation.
#
# The template of Qwen3 calls `lstrip('\n')` on earlier answers and `strip('\n')` on their reasoning. In Jinja2, which
# transformers uses for it, only line breaks go. transformers.js and node-llama-cpp render chat templates with this
# package: there the first line of an earlier answer loses its indentation. No error is raised, and other characters
# than white space stay although they were named.
#
# Seen with @huggingface/jinja 0.5.11, Node 20 and Jinja2 3.1.6:
#
#   '\n    return x\n'.lstrip('\n'): Jinja2 '    return x\n', @huggingface/jinja 'return x\n'
#   '\n    return x\n'.strip('\n'): Jinja2 '    return x', @huggingface/jinja 'return x'
#   'text  \n'.rstrip('\n'): Jinja2 'text  ', @huggingface/jinja 'text'
#   '**bold**'.strip('*'): Jinja2 'bold', @huggingface/jinja '**bold**'
#
# Exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --only-binary :all: --no-deps jinja2==3.1.6 markupsafe==3.0.3
npm init --yes > /dev/null
npm install --silent --no-audit --no-fund @huggingface/jinja@0.5.11
cat > render.mjs <<'JAVASCRIPT'
import { Template } from "@huggingface/jinja";

const [expressions, variables] = JSON.parse(process.argv[2]);
const texts = expressions.map((expression) => new Template(`{{ ${expression} }}`).render(variables));
console.log(JSON.stringify(texts));
JAVASCRIPT
venv/bin/python - <<'PYTHON'
import json, subprocess, sys
import jinja2

variables = {"code": "\n    return x\n", "text": "text  \n", "bold": "**bold**"}
cases = {
    r"code.lstrip('\n')": ("    return x\n", "return x\n"),
    r"code.strip('\n')": ("    return x", "return x"),
    r"text.rstrip('\n')": ("text  ", "text"),
    "bold.strip('*')": ("bold", "**bold**"),
}
environment = jinja2.Environment()
arguments = ["node", "render.mjs", json.dumps([list(cases), variables])]
rendered = json.loads(subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout)
is_so = True
for (expression, expected), theirs in zip(cases.items(), rendered):
    seen = (environment.from_string("{{ " + expression + " }}").render(variables), theirs)
    name, call = expression.split(".")
    print(f"{variables[name]!r}.{call}: Jinja2 {seen[0]!r}, @huggingface/jinja {seen[1]!r}")
    is_so &= seen == expected
sys.exit(0 if is_so else 1)
PYTHON
