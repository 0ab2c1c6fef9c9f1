// Graphs that compute rows of pictures and sounds in place of tokens.
#pragma once

#include "llama-context.h"

// Like llama_context::graph_reserve, but for a batch of rows at the context's full length. llama.cpp itself reserves
// graphs of tokens alone. Their nodes are the same, but a graph of rows begins with an input in host memory, so other
// tensors are copied to the GPUs: with Qwen3-VL, all parts of a row for each block that one part is added to
// (models/qwen3vl.cpp). A picture belongs to one sequence, so all rows are of one sequence. Only if the memory is of a
// kind that cannot be restricted to one sequence are the rows divided evenly among all sequences. Throws.
ggml_cgraph * reserve_rows(llama_context & ctx, uint32_t n_rows, bool split_only = false, size_t * sizes = nullptr);
