// Memory of the encoders in llama.cpp's clip.cpp.
#pragma once

#include "ggml-backend.h"

#include <cstddef>
#include <string>
#include <vector>

// What encoders take of a device. `type` is the type of its buffers.
struct clip_device_bytes {
    ggml_backend_dev_t         device  = nullptr;
    ggml_backend_buffer_type_t type    = nullptr;
    size_t                     weights = 0;
    size_t                     compute = 0;
};

// What the encoders take that this thread's last clip_init has made: with data what they have allocated, and without
// data (`no_alloc`) what they would allocate. Each device is there once.
const std::vector<clip_device_bytes> & clip_last_bytes();

// Rows of the largest image of those encoders; 0 without an encoder of images.
int clip_last_rows();

// Why this thread's last encoding was refused before it began; empty if it was not.
const std::string & clip_last_refusal();

// Before an encoding: mtmd may refuse one before it asks clip.cpp.
void clip_forget_refusal();
