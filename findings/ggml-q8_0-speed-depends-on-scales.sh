#!/usr/bin/env bash
# On x86, the speed of ggml's matrix product depends on the values of the weights. A benchmark with random weights may
# read Q8_0 up to 30 % faster than the matrices of real models.
#
# Each block of 32 weights has a 16-bit scale. On Arm (NEON) and POWER9 it is converted by instructions. On x86 ggml
# looks it up in a table of 256 KiB (`ggml_lookup_fp16_to_fp32`), even if the library is compiled for F16C, as this one
# is. The scales of uniformly random weights (those of test-backend-ops) are nearly equal, so they use only a few lines
# of the table: their logarithms have a standard deviation of 0.03. In files it is about ten times as large: 0.36 in the
# first 65,536 rows of Gemma 3 270M's embedding, whose own scales took as long as the random ones below, within 3 %.
#
# Seen with ggml 0.20.2 (libggml-python 0.20.2.post1 from PyPI), with one thread of an AMD EPYC (family 26) with 32 MiB
# of last-level cache:
#
#   equal scales: 26.4 GB/s, 1.00 times as long
#   scales of uniformly random weights: 26.3 GB/s, 1.00 times as long
#   scales as in files, in ascending order: 26.2 GB/s, 1.01 times as long
#   scales as in files: 21.1 GB/s, 1.25 times as long
#   scales with twice that deviation: 18.1 GB/s, 1.46 times as long
#
# In 28 runs, some of them on a busy machine, the fourth case took 1.05 to 1.30 times as long as the first. In twelve of
# them the fifth was measured: 1.17 to 1.49 times. In the third case the scales are those of the fourth, but sorted: the
# same part of the table is used, but neighbouring blocks use the same line of it. So it is the lookup that costs time,
# not the arithmetic.
#
# It needs a matrix that is read from memory, and a type that is fast enough to be limited by memory. A Q8_0 matrix of
# 11 MB, which stays in the last-level cache, was read at 39.7 and 39.5 GB/s. Q5_0 (16 GB/s) and Q4_0 (13 GB/s) differed
# by 1 % or less.
#
# Exits with 1 if the behaviour has changed. On other processors than x86 nothing is measured.
set -euo pipefail
if [ "$(uname -m)" != x86_64 ]; then
  echo "only x86 has the table; nothing was measured"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --only-binary :all: libggml-python==0.20.2.post1 numpy==2.4.6
"$folder/venv/bin/python" - "$folder"/venv/lib/python*/site-packages/libggml/lib* <<'PYTHON'
import ctypes, os, statistics, sys, time
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
import numpy

base = ctypes.CDLL(os.path.join(sys.argv[1], "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
cpu = ctypes.CDLL(os.path.join(sys.argv[1], "libggml-cpu.so"))


class Parameters(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


def function(library, name, result, *arguments):
    found = getattr(library, name)
    found.restype, found.argtypes = result, arguments
    return found


init = function(base, "ggml_init", c_void_p, Parameters)
vector = function(base, "ggml_new_tensor_1d", c_void_p, c_void_p, c_int, c_int64)
matrix = function(base, "ggml_new_tensor_2d", c_void_p, c_void_p, c_int, c_int64, c_int64)
mul_mat = function(base, "ggml_mul_mat", c_void_p, c_void_p, c_void_p, c_void_p)
new_graph = function(base, "ggml_new_graph", c_void_p, c_void_p)
expand = function(base, "ggml_build_forward_expand", None, c_void_p, c_void_p)
data = function(base, "ggml_get_data", c_void_p, c_void_p)
compute = function(cpu, "ggml_graph_compute_with_ctx", c_int, c_void_p, c_void_p, c_int)
version = function(base, "ggml_version", c_char_p)

# The shape of Gemma 3 270M's embedding: 178 MB, more than the last cache of most processors.
F32, Q8_0, WIDTH, ROWS = 0, 8, 640, 262_144
BLOCK = numpy.dtype([("scale", "<f2"), ("weights", "i1", 32)])
count = WIDTH // 32 * ROWS
size = count * BLOCK.itemsize
context = init(Parameters(size + (16 << 20), None, False))
weights = matrix(context, Q8_0, WIDTH, ROWS)
activations = vector(context, F32, WIDTH)
product = mul_mat(context, weights, activations)
graph = new_graph(context)
expand(graph, product)


def array(tensor, kind, length):
    memory = (ctypes.c_uint8 * (length * numpy.dtype(kind).itemsize)).from_address(data(tensor))
    return numpy.frombuffer(memory, dtype=kind)


random = numpy.random.default_rng(1)
blocks = array(weights, BLOCK, count)
blocks["weights"] = random.integers(-127, 128, (count, 32), dtype=numpy.int8)
inputs = array(activations, "<f4", WIDTH)
inputs[:] = random.standard_normal(WIDTH, dtype=numpy.float32)
outputs = array(product, "<f4", ROWS)

deviations = random.standard_normal(count)
as_in_files = (0.001 * numpy.exp(0.35 * deviations)).astype("<f2")
sets = {
    "equal scales": numpy.full(count, 0.001, dtype="<f2"),
    # The scale of a block is proportional to its largest weight: here the largest of 32 uniform numbers.
    "scales of uniformly random weights": (0.001 * random.random(count) ** (1 / 32)).astype("<f2"),
    "scales as in files, in ascending order": numpy.sort(as_in_files),
    "scales as in files": as_in_files,
    "scales with twice that deviation": (0.001 * numpy.exp(0.7 * deviations)).astype("<f2"),
}
seconds = {name: [] for name in sets}
# Short turns, because other programs disturb all sets alike then. The quantised weights and their place in memory are
# the same in all turns. The first product of a turn isn't counted: it finds scales in the cache that were just written.
for turn in range(20):
    for name, scales in sets.items():
        blocks["scale"] = scales
        for repeat in range(4):
            start = time.perf_counter()
            status = compute(context, graph, 1)
            end = time.perf_counter()
            assert status == 0
            if repeat > 0:
                seconds[name].append(end - start)
rows = blocks[: 1000 * WIDTH // 32]
exact = (rows["weights"] * rows["scale"].astype("<f4")[:, None]).reshape(1000, WIDTH) @ inputs
assert numpy.corrcoef(exact, outputs[:1000])[0, 1] > 0.999

print("ggml", version().decode())
rates = {name: size / statistics.median(times) / 1e9 for name, times in seconds.items()}
ratios = {name: rates["equal scales"] / rate for name, rate in rates.items()}
for name, rate in rates.items():
    print(f"{name}: {rate:.1f} GB/s, {ratios[name]:.2f} times as long")
# With the deviation of files the ratio was 1.05 at times, near the noise of a busy machine: so twice that decides.
sys.exit(0 if ratios["scales with twice that deviation"] >= 1.1 else 1)
PYTHON
