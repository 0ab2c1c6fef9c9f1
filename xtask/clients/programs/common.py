"""What all programs of this folder ask for: `program URL MODEL`. Whatever is not as the API has it is an exception."""

import sys

url, model = sys.argv[1] + "/v1", sys.argv[2]
key = "none"
prompt = "How is the weather in Bonn? Answer briefly."
tokens = 400


def done(name):
    print(f"{name}: as the API has it")
