// Measures the times of ggml's operations on one device, in graphs like llama.cpp's and with the data where a load
// would put it.
#pragma once

#include "shim.h"
#include "threads.h"

#include "ggml-cpp.h"

struct shim_bench {
    ggml_backend_dev_t device;
    threadpool_ptr     threads; // of the CPU; the backend uses it and is freed first
    ggml_backend_ptr   backend;
    bool               repack; // whether the CPU may rearrange weights
    bool               remote; // whether the device belongs to another machine
};

// Throws.
shim_bench * bench_new(ggml_backend_dev_t device, int32_t n_threads, bool repack);
shim_measured bench_time(shim_bench & bench, const shim_operation & operation, uint64_t budget_ns, shim_timing & timing);
shim_measured bench_link(shim_bench & bench, size_t bytes, size_t width, uint64_t budget_ns, shim_link & link);
