// The matrices and sign vectors with which llama.cpp transforms the inputs of weights that were folded in their file
// (`prism.hadamard`). Counts their bytes, and makes them for models without data, for which llama.cpp makes none.
#pragma once

#include "lora.h"

// Makes the transforms for a model without data, as `load_tensors_hadamard` in llama-model.cpp does for a model with
// data, so that graphs are those of a real load. They take no memory of a device. Throws.
void transforms_without_data(llama_model & model);

// The bytes that the transforms take or, for a model without data, would take.
buffer_bytes transform_bytes(const llama_model & model);

// Frees the transforms that `transforms_without_data` made. Call it after the model was freed.
void forget_transforms(const llama_model * model);
