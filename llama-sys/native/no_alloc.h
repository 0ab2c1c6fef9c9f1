// Corrects the memory that llama.cpp reports for a context of a model without data: to the memory that the context
// would take in a real load.
#pragma once

#include "llama-ext.h"

// Replaces the compute buffers in `breakdown`, and adds the bytes that backends add to their pinned buffers. With
// `rows`, the compute buffers are those of a context that also computes rows of pictures and sounds. Throws.
void as_if_allocated(llama_context * ctx, llama_memory_breakdown & breakdown, bool rows);

// The bytes by which a buffer of this type is larger than requested: 32 for Vulkan's pinned memory (ggml-vulkan.cpp,
// `ggml_backend_vk_host_buffer_type_alloc_buffer`), otherwise 0.
size_t allocation_extra(ggml_backend_buffer_type_t buft);
