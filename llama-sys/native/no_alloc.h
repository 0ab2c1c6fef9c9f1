// What a context of a model without data would hold if it had them: llama.cpp's account of it, corrected.
#pragma once

#include "llama-ext.h"

// Replaces the compute buffers of `breakdown`, and adds what backends add to their pinned buffers. Throws.
void as_if_allocated(llama_context * ctx, llama_memory_breakdown & breakdown);

// Bytes that a buffer of this type is larger than was asked for: 32 for Vulkan's pinned memory (ggml-vulkan.cpp,
// `ggml_backend_vk_host_buffer_type_alloc_buffer`), else 0.
size_t allocation_extra(ggml_backend_buffer_type_t buft);
