// llama.cpp's own fit (common/fit.cpp) behind a C function, and what it needs of common/log.cpp, whose thread, files and colours
// would bring the rest of common along: warnings and errors go to stderr.

#include "common.h"
#include "fit.h"
#include "json.h"
#include "log.h"

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <stdexcept>

int common_log_get_verbosity_thold(void) {
    return LOG_LEVEL_WARN;
}

bool common_log_get_jsonl(void) {
    return false;
}

common_log * common_log_main() {
    return nullptr;
}

void common_log_add(common_log *, ggml_log_level, const char * format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

void common_log_add_json(common_log *, const char *, const common_json &) {}

// `common_measure_memory` in fit.cpp, which nothing here calls, needs these of common/common.cpp.
llama_model_params common_model_params_to_llama(common_params &) {
    throw std::logic_error("bare-llama measures no memory");
}

llama_context_params common_context_params_to_llama(const common_params &) {
    throw std::logic_error("bare-llama measures no memory");
}

void common_fit_apply(common_params &, llama_model_params &, llama_context_params &) {
    throw std::logic_error("bare-llama measures no memory");
}

// As `common_fit_params` (common/fit.h), for one model. What it lets escape is its hard error too.
extern "C" int bare_llama_fit(
        const char * path,
        llama_model_params * model,
        llama_context_params * context,
        float * tensor_split,
        llama_model_tensor_buft_override * overrides,
        size_t * margins,
        uint32_t n_ctx_min) {
    try {
        return common_fit_params(
            path, model, context, tensor_split, overrides, margins, n_ctx_min, nullptr, GGML_LOG_LEVEL_ERROR);
    } catch (const std::exception & e) {
        fprintf(stderr, "%s\n", e.what());
        return COMMON_PARAMS_FIT_STATUS_ERROR;
    }
}
