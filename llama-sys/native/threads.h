// Threadpools of the CPU backend. The backend may be a library that is opened, so its functions are looked up by name.
#pragma once

#include "ggml-backend.h"

#include <cstdint>
#include <memory>

struct threadpool_deleter {
    void operator()(ggml_threadpool_t pool) const;
};

using threadpool_ptr = std::unique_ptr<ggml_threadpool, threadpool_deleter>;

// A pool of `n_threads` threads. The computing thread counts as one of them; the others start now. Threads that wait
// spin for a moment before they sleep, or they sleep at once.
threadpool_ptr new_threadpool(int32_t n_threads, bool spins);

// Makes the CPU backend compute with `pool` from the next graph on. In this call the backend pauses its former pool, so
// both pools must live.
void use_threadpool(ggml_backend_t cpu, ggml_threadpool_t pool);
