// Images and sound, by llama.cpp's tools/mtmd. shim.cpp turns exceptions of these functions into a status.
#pragma once

#include "shim.h"

#include <cstddef>
#include <vector>

// Whether this build has images and sound (AUTOPLACE_MEDIA). If not, every other function throws.
bool media_built();

void media_log(ggml_log_callback callback, void * user_data);

// Loads the encoders of a projector's file. They belong to `model`, which must live longer. `rows` receives the bytes
// that they have allocated on each device.
mtmd_context * media_load(const char * path, const llama_model & model, const shim_media_params & params, std::vector<shim_media_row> & rows);
void           media_free(mtmd_context * media);
void           media_shape(const mtmd_context & media, struct shim_media_shape & shape);

// The bytes that a load would take on each device, including the encoders' buffers for the largest image. Allocates
// nothing on a device.
std::vector<shim_media_row> media_memory(const char * path, const shim_media_params & params, shim_media_limits & limits);

mtmd_input_chunks * media_tokenize(const mtmd_context & media, const shim_media_part * parts, size_t n_parts, bool add_special);
void                media_chunks_free(mtmd_input_chunks * chunks);
size_t              media_chunks_size(const mtmd_input_chunks & chunks);
void                media_chunk(const mtmd_context & media, const mtmd_input_chunks & chunks, size_t index, struct shim_media_chunk & chunk);
void                media_positions(const mtmd_context & media, const mtmd_input_chunks & chunks, size_t index, llama_pos first,
                                    llama_pos * positions, size_t n_positions);
void                media_encode(mtmd_context & media, const mtmd_input_chunks & chunks, size_t index, float * rows, size_t n_floats);

// Computes rows of an encoder as tokens of a sequence. The encoder itself is not needed.
int32_t media_decode(llama_context & ctx, const shim_media_rows & rows);
