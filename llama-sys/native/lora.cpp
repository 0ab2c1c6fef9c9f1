#include "lora.h"
#include "no_alloc.h"

#include "llama-adapter.h"
#include "llama-model.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"
#include "gguf.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

using context_map = std::map<ggml_backend_buffer_type_t, ggml_context *>;

// Whether this is one of the CPU's types for rearranged weights, which llama.cpp does not use for adapters
// (llama-adapter.cpp, `llama_adapter_lora_init_impl`).
bool is_extra(ggml_backend_buffer_type_t buft) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto extra_bufts = (ggml_backend_dev_get_extra_bufts_t)
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t * extra = extra_bufts ? extra_bufts(cpu) : nullptr;
    for (; extra && *extra; ++extra) {
        if (*extra == buft) {
            return true;
        }
    }
    return false;
}

bool strip(std::string & name, const std::string & suffix) {
    if (name.size() < suffix.size() || name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
        return false;
    }
    name.resize(name.size() - suffix.size());
    return true;
}

// The bytes of a buffer for these tensors, including those that the backend adds.
size_t bytes_of(ggml_context * tensors, ggml_backend_buffer_type_t buft) {
    const size_t bytes = ggml_backend_alloc_ctx_tensors_from_buft_size(tensors, buft);
    return bytes > 0 ? bytes + allocation_extra(buft) : 0;
}

} // namespace

llama_adapter_lora * lora_without_data(llama_model & model, const char * path) {
    ggml_context * read = nullptr;
    gguf_context_ptr file { gguf_init_from_file(path, { /*.no_alloc =*/ true, /*.ctx =*/ &read }) };
    if (!file) {
        throw std::runtime_error("failed to load lora adapter from file");
    }
    ggml_context_ptr tensors { read };
    auto adapter = std::make_unique<llama_adapter_lora>(&model);
    const int64_t alpha = gguf_find_key(file.get(), "adapter.lora.alpha");
    adapter->alpha = alpha < 0 ? 0.0f : gguf_get_val_f32(file.get(), alpha);

    const size_t n_tensors = gguf_get_n_tensors(file.get());
    context_map contexts;
    for (ggml_tensor * cur = ggml_get_first_tensor(read); cur; cur = ggml_get_next_tensor(read, cur)) {
        std::string name = ggml_get_name(cur);
        const bool is_a = strip(name, ".lora_a");
        if (!is_a && !strip(name, ".lora_b")) {
            continue; // a norm, which llama.cpp leaves out; all other tensors were refused before
        }
        const ggml_tensor * weight = model.get_tensor(name.c_str());
        if (!weight) {
            throw std::runtime_error("LoRA tensor '" + name + "' does not exist in base model");
        }
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(weight->buffer);
        if (is_extra(buft)) {
            buft = ggml_backend_cpu_buffer_type();
        }
        ggml_context *& context = contexts[buft];
        if (!context) {
            context = ggml_init({ /*.mem_size =*/ n_tensors * ggml_tensor_overhead(), /*.mem_buffer =*/ nullptr, /*.no_alloc =*/ true });
            adapter->ctxs.emplace_back(context);
            // The buffer is empty. Because there is a buffer, the scheduler treats its tensors as allocated, like those
            // of the model.
            adapter->bufs.emplace_back(ggml_backend_buft_alloc_buffer(buft, 0));
        }
        ggml_tensor * tensor = ggml_dup_tensor(context, cur);
        ggml_set_name(tensor, ggml_get_name(cur));
        llama_adapter_lora_weight & pair = adapter->ab_map[name];
        (is_a ? pair.a : pair.b) = tensor;
    }
    for (size_t i = 0; i < adapter->ctxs.size(); ++i) {
        ggml_context * context = adapter->ctxs[i].get();
        for (ggml_tensor * cur = ggml_get_first_tensor(context); cur; cur = ggml_get_next_tensor(context, cur)) {
            cur->buffer = adapter->bufs[i].get();
        }
    }
    for (const auto & [name, pair] : adapter->ab_map) {
        if (!pair.a || !pair.b) {
            throw std::runtime_error("LoRA tensor pair for '" + name + "' is missing one component");
        }
    }
    model.loras.insert(adapter.get());
    return adapter.release();
}

void check_lora(const llama_model & model, llama_adapter_lora & adapter) {
    for (const llama_layer & layer : model.layers) {
        const std::pair<ggml_tensor *, ggml_tensor *> scaled[] = {
            { layer.ffn_up,         layer.ffn_up_s         },
            { layer.ffn_gate,       layer.ffn_gate_s       },
            { layer.ffn_down,       layer.ffn_down_s       },
            { layer.ffn_up_shexp,   layer.ffn_up_shexp_s   },
            { layer.ffn_gate_shexp, layer.ffn_gate_shexp_s },
            { layer.ffn_down_shexp, layer.ffn_down_shexp_s },
        };
        for (const auto & [weight, scale] : scaled) {
            const bool is_low_precision = weight && (weight->type == GGML_TYPE_NVFP4 || weight->type == GGML_TYPE_F8_E4M3);
            if (is_low_precision && scale && adapter.get_weight(weight)) {
                throw std::runtime_error("LoRA tensor '" + std::string(ggml_get_name(weight)) + "': the base model has it as " +
                                         ggml_type_name(weight->type) + " with a scale, to which llama.cpp adds no adapter");
            }
        }
    }
}

buffer_bytes lora_bytes(const llama_model & model) {
    buffer_bytes bytes;
    for (const llama_adapter_lora * adapter : model.loras) {
        for (size_t i = 0; i < adapter->bufs.size(); ++i) {
            ggml_backend_buffer_t buffer = adapter->bufs[i].get();
            ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(buffer);
            // Without data, the bytes are computed from the tensors in the buffer's context. With data, they are the
            // buffer's size.
            bytes[buft] += model.no_alloc() ? bytes_of(adapter->ctxs[i].get(), buft) : ggml_backend_buffer_get_size(buffer);
        }
    }
    return bytes;
}

buffer_bytes control_vector_bytes(const llama_model & model) {
    std::map<ggml_backend_buffer_type_t, ggml_context_ptr> contexts;
    const size_t n_layer = model.hparams.n_layer();
    for (size_t il = 1; il < n_layer; ++il) {
        ggml_context_ptr & context = contexts[model.select_buft(il)];
        if (!context) {
            context.reset(ggml_init({ /*.mem_size =*/ n_layer * ggml_tensor_overhead(), /*.mem_buffer =*/ nullptr, /*.no_alloc =*/ true }));
        }
        ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, model.hparams.n_embd);
    }
    buffer_bytes bytes;
    for (const auto & [buft, context] : contexts) {
        bytes[buft] = bytes_of(context.get(), buft);
    }
    return bytes;
}
