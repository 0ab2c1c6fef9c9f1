// The memory of LoRA adapters and control vectors, which llama.cpp's account leaves out; adapters of models without
// data.
#pragma once

#include "ggml-backend.h"
#include "llama.h"

#include <map>

// Bytes by buffer type.
using buffer_bytes = std::map<ggml_backend_buffer_type_t, size_t>;

// An adapter with sizes and no data, for a model without data: each pair lies where the real load would put it. Throws.
llama_adapter_lora * lora_without_data(llama_model & model, const char * path);

// Throws for an adapter that changes a weight whose results llama.cpp scales: it cannot add to those, and asserts it
// when a graph is built (llama-graph.cpp, `build_ffn`).
void check_lora(const llama_model & model, llama_adapter_lora & adapter);

// What all adapters of the model hold, or without data would hold.
buffer_bytes lora_bytes(const llama_model & model);

// The bytes of a control vector in a context of this model (llama-adapter.cpp, `llama_adapter_cvec::init`).
buffer_bytes control_vector_bytes(const llama_model & model);
