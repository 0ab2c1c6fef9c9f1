#include "threads.h"

#include "ggml-cpu.h"

#include <stdexcept>
#include <string>

namespace {

// How long a thread spins before it sleeps, in the steps of wait.h: 20 µs within a graph, and 200 µs between two graphs.
// The sampler runs between two tokens, and needs less time than this.
constexpr uint32_t poll = 20;

template <typename F>
F * cpu_function(const char * name) {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    void * function = device ? ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name) : nullptr;
    if (!function) {
        throw std::runtime_error(std::string("the CPU backend has no function ") + name);
    }
    return (F *) function;
}

} // namespace

void threadpool_deleter::operator()(ggml_threadpool_t pool) const {
    cpu_function<decltype(ggml_threadpool_free)>("ggml_threadpool_free")(pool);
}

threadpool_ptr new_threadpool(int32_t n_threads, bool spins) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    params.poll = spins ? poll : 0;
    threadpool_ptr pool(cpu_function<decltype(ggml_threadpool_new)>("ggml_threadpool_new")(&params));
    if (!pool) {
        throw std::runtime_error("ggml made no threadpool of " + std::to_string(n_threads) + " threads");
    }
    return pool;
}

void use_threadpool(ggml_backend_t cpu, ggml_threadpool_t pool) {
    cpu_function<decltype(ggml_backend_cpu_set_threadpool)>("ggml_backend_cpu_set_threadpool")(cpu, pool);
}
