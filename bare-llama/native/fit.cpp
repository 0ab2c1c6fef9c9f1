// A C function that calls llama.cpp's own fit (common/fit.cpp). This file also defines the functions of common/log.cpp
// that the fit needs; they print warnings and errors to stderr. common/log.cpp itself is not used, because its thread,
// files and colours need the rest of common.

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

// These functions replace functions of common/common.cpp. Only `common_measure_memory` in fit.cpp needs them, and
// nothing here calls it.
llama_model_params common_model_params_to_llama(common_params &) {
    throw std::logic_error("bare-llama measures no memory");
}

llama_context_params common_context_params_to_llama(const common_params &) {
    throw std::logic_error("bare-llama measures no memory");
}

void common_fit_apply(common_params &, llama_model_params &, llama_context_params &) {
    throw std::logic_error("bare-llama measures no memory");
}

// Like `common_fit_params` (common/fit.h), for one model. An exception of `common_fit_params` counts as its hard error.
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
