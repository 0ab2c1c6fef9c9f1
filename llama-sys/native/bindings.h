// The header that bindgen reads. It includes llama.cpp's C API, ggml's backend interface (for simulated devices) and
// the shim.
#include "llama.h"
#include "ggml-backend.h"
#include "ggml-backend-impl.h"
#include "gguf.h"
#include "shim.h"
