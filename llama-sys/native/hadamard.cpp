#include "hadamard.h"
#include "no_alloc.h"

#include "llama-model.h"

#include "ggml-cpp.h"

#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

// A tensor without data, and its empty buffer.
struct made_tensor {
    ggml_context_ptr        context;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor *           tensor;
};

// The tensors that were made for each model. llama.cpp's own list is private.
std::mutex made_mutex;
std::unordered_map<const llama_model *, std::vector<made_tensor>> made_for;

ggml_tensor * make(std::vector<made_tensor> & all, ggml_backend_buffer_type_t buft, int64_t width, int64_t height) {
    ggml_context_ptr context { ggml_init({ /*.mem_size =*/ ggml_tensor_overhead(), /*.mem_buffer =*/ nullptr, /*.no_alloc =*/ true }) };
    ggml_backend_buffer_ptr buffer { ggml_backend_buft_alloc_buffer(buft, 0) };
    if (!context || !buffer) {
        throw std::runtime_error("failed to create a Hadamard tensor without data");
    }
    // With this usage, the scheduler treats the tensor as a weight that is allocated.
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_tensor * tensor = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, width, height);
    tensor->buffer = buffer.get();
    all.push_back({ std::move(context), std::move(buffer), tensor });
    return tensor;
}

const ggml_tensor * folded(const llama_model & model, const std::string & name, bool inverse) {
    const bool is_embedding    = model.hdmd.tied_output && name == "token_embd.weight";
    const ggml_tensor * weight = !is_embedding ? model.get_tensor(name.c_str()) : inverse ? model.tok_embd : model.output;
    if (!weight || (is_embedding && name != ggml_get_name(weight))) {
        throw std::runtime_error("prism.hadamard weight not found: " + name);
    }
    return weight;
}

// The buffer type for the transform of a weight. It is the weight's buffer type, but never one of the CPU's types for
// rearranged weights.
ggml_backend_buffer_type_t beside(const ggml_tensor * weight) {
    ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(weight->buffer);
    ggml_backend_dev_t device = ggml_backend_buft_get_device(buft);
    const bool is_cpu = device && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    return is_cpu ? ggml_backend_dev_buffer_type(device) : buft;
}

} // namespace

void transforms_without_data(llama_model & model) {
    llama_hadamard & hdmd = model.hdmd;
    std::vector<made_tensor> all;
    std::map<std::pair<int64_t, ggml_backend_buffer_type_t>, ggml_tensor *> rotations;
    std::map<std::pair<int64_t, ggml_backend_buffer_type_t>, ggml_tensor *> signs;
    // The inverse transforms, which lookups use, have the same buffer type as the other transforms.
    ggml_backend_buffer_type_t preferred = nullptr;
    for (const bool inverse : { false, true }) {
        for (const auto & [name, block_size] : inverse ? hdmd.inverse_blocks : hdmd.weight_blocks) {
            const ggml_tensor * weight = folded(model, name, inverse);
            const int64_t width = weight->ne[0];
            if (width % block_size != 0) {
                throw std::runtime_error("prism.hadamard block size " + std::to_string(block_size) + " does not divide input dimension " +
                                         std::to_string(width) + " for " + name);
            }
            const bool is_moved = inverse && preferred;
            ggml_backend_buffer_type_t buft = is_moved ? preferred : beside(weight);
            preferred = inverse ? preferred : buft;
            ggml_tensor *& rotation = rotations[{ block_size, buft }];
            if (!rotation) {
                rotation = make(all, buft, block_size, block_size);
            }
            llama_hadamard_transform transform { rotation, nullptr };
            if (!hdmd.sign_data.empty()) {
                if (hdmd.sign_data.count((uint32_t) width) == 0) {
                    throw std::runtime_error("prism.hadamard has no sign vector for width " + std::to_string(width) + " (" + name + ")");
                }
                ggml_tensor *& vector = signs[{ width, buft }];
                if (!vector) {
                    vector = make(all, buft, width, 1);
                }
                transform.signs = vector;
            }
            if (hdmd.gdn_v_grouped && name.find(".ssm_out.") != std::string::npos &&
                !transform.set_gdn_v_perm(width, model.hparams.ssm_dt_rank, model.hparams.ssm_n_group)) {
                throw std::runtime_error("prism.hadamard: bad GDN head geometry for " + name);
            }
            (inverse ? hdmd.inv : hdmd.rot).emplace(weight, transform);
        }
    }
    if (!all.empty()) {
        const std::lock_guard<std::mutex> lock(made_mutex);
        made_for[&model] = std::move(all);
    }
}

buffer_bytes transform_bytes(const llama_model & model) {
    buffer_bytes bytes;
    std::set<const ggml_tensor *> seen;
    for (const llama_hadamard_rotations * transforms : { &model.hdmd.rot, &model.hdmd.inv }) {
        for (const auto & [weight, transform] : *transforms) {
            for (const ggml_tensor * tensor : { transform.rot, transform.signs }) {
                if (!tensor || !seen.insert(tensor).second) {
                    continue;
                }
                // Each tensor has its own buffer.
                ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(tensor->buffer);
                bytes[buft] += !model.no_alloc() ? ggml_backend_buffer_get_size(tensor->buffer) :
                    GGML_PAD(ggml_backend_buft_get_alloc_size(buft, tensor), ggml_backend_buft_get_alignment(buft)) + allocation_extra(buft);
            }
        }
    }
    return bytes;
}

void forget_transforms(const llama_model * model) {
    const std::lock_guard<std::mutex> lock(made_mutex);
    made_for.erase(model);
}
