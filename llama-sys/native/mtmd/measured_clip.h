// Memory of the encoders in llama.cpp's clip.cpp.
#pragma once

#include "ggml-backend.h"

#include <cstddef>
#include <string>
#include <vector>

// The bytes that encoders take on a device. `type` is the type of the device's buffers.
struct clip_device_bytes {
    ggml_backend_dev_t         device  = nullptr;
    ggml_backend_buffer_type_t type    = nullptr;
    size_t                     weights = 0;
    size_t                     compute = 0;
};

// The bytes of the encoders that this thread's last call of clip_init made: with data, the bytes that they have
// allocated; without data (`no_alloc`), the bytes that they would allocate. Each device is listed once.
const std::vector<clip_device_bytes> & clip_last_bytes();

// The number of rows of the largest image that these encoders accept; 0 without an encoder of images.
int clip_last_rows();

// Why this thread's last encoding was refused before it began; empty if it was not.
const std::string & clip_last_refusal();

// Clears the refusal. Call this before each encoding, because mtmd may refuse an image before it calls clip.cpp.
void clip_forget_refusal();
