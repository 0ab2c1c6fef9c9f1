// Threadpools of the CPU backend, which may be a library that is opened: its functions are asked for by name.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <memory>

struct threadpool_deleter {
    void operator()(ggml_threadpool_t pool) const;
};

using threadpool_ptr = std::unique_ptr<ggml_threadpool, threadpool_deleter>;

// A pool of `n_threads`, the computing thread included. Its threads start now.
threadpool_ptr new_threadpool(int32_t n_threads);

// Has the CPU backend compute with `pool` from the next graph on. The backend pauses the pool that it had before, in this
// call: both must live.
void use_threadpool(ggml_backend_t cpu, ggml_threadpool_t pool);
