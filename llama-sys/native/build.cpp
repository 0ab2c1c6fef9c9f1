// A constant with the identity of the build. A program that has opened these libraries compares it before it calls any
// function (shim.h, `shim_build_info`). runtime.rs has the same sizes in the same order.
#include "shim.h"

#include "ggml-backend-impl.h"

#ifndef AUTOPLACE_BUILD
#error "the build script says what this was built from"
#endif

extern "C" const shim_build_info shim_build = {
    AUTOPLACE_BUILD,
    {
        sizeof(llama_model_params),
        sizeof(llama_context_params),
        sizeof(llama_batch),
        sizeof(llama_token_data),
        sizeof(llama_token_data_array),
        sizeof(llama_sampler_i),
        sizeof(ggml_tensor),
        sizeof(ggml_backend_dev_props),
        sizeof(ggml_backend_buffer_type),
        sizeof(ggml_backend_buffer),
        sizeof(ggml_backend_i),
        sizeof(ggml_backend_device),
        sizeof(ggml_backend_reg),
        sizeof(shim_error),
        sizeof(shim_tensor),
        sizeof(shim_operation),
        GGML_TYPE_COUNT,
        GGML_OP_COUNT,
    },
};
