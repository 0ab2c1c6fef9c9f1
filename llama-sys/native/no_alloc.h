// The memory that a context of a model without data would take if the model had data: a correction of llama.cpp's
// account.
#pragma once

#include "llama-ext.h"

// Replaces the compute buffers in `breakdown`, and adds the bytes that backends add to their pinned buffers. With
// `rows`, the compute buffers are those of a context that also computes rows of pictures and sounds. Throws.
void as_if_allocated(llama_context * ctx, llama_memory_breakdown & breakdown, bool rows);

// The bytes by which a buffer of this type is larger than requested: 32 for Vulkan's pinned memory (ggml-vulkan.cpp,
// `ggml_backend_vk_host_buffer_type_alloc_buffer`), otherwise 0.
size_t allocation_extra(ggml_backend_buffer_type_t buft);
