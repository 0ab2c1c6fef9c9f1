// The matrices and sign vectors by which llama.cpp transforms the inputs of weights that were folded in their file
// (`prism.hadamard`): their bytes, and those of a model without data, for which llama.cpp makes none.
#pragma once

#include "lora.h"

// Makes them for a model without data, as `load_tensors_hadamard` in llama-model.cpp does for one with data, so that
// graphs are those of a real load. They take no memory of a device. Throws.
void transforms_without_data(llama_model & model);

// What they hold, or without data would hold.
buffer_bytes transform_bytes(const llama_model & model);

// Frees those that `transforms_without_data` made, after the model.
void forget_transforms(const llama_model * model);
