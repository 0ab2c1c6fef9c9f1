// The memory of LoRA adapters and control vectors, which llama.cpp's account leaves out, and adapters for models
// without data.
#pragma once

#include "ggml-backend.h"
#include "llama.h"

#include <map>

// Bytes by buffer type.
using buffer_bytes = std::map<ggml_backend_buffer_type_t, size_t>;

// Makes an adapter with sizes but without data, for a model without data. Each pair has the buffer type that a real
// load would use. Throws.
llama_adapter_lora * lora_without_data(llama_model & model, const char * path);

// Throws for an adapter that changes a weight whose results llama.cpp scales. llama.cpp cannot add to such results, and
// fails an assertion when it builds the graph (llama-graph.cpp, `build_ffn`).
void check_lora(const llama_model & model, llama_adapter_lora & adapter);

// The bytes that all adapters of the model take or, for a model without data, would take.
buffer_bytes lora_bytes(const llama_model & model);

// The bytes of a control vector in a context of this model (llama-adapter.cpp, `llama_adapter_cvec::init`).
buffer_bytes control_vector_bytes(const llama_model & model);
