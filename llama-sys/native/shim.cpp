#include "shim.h"
#include "hadamard.h"
#include "lora.h"
#include "media.h"
#include "no_alloc.h"
#include "rates.h"
#include "rows.h"
#include "threads.h"

#include "llama-context.h"
#include "llama-io.h"
#include "llama-ext.h"
#include "llama-kv-cache-dsa-iswa.h"
#include "llama-kv-cache-iswa.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-memory.h"
#include "llama-model.h"

#include "ggml-backend-impl.h"
#include "ggml-rpc.h"
#include "gguf.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// The exception of the abort guard. It is derived from std::exception, so that llama.cpp's own handlers catch it: they
// clean up and return NULL, as for any other error in a file.
struct assertion_failed : std::exception {
    explicit assertion_failed(const char * text) : message(text) {}
    const char * what() const noexcept override { return message.c_str(); }
    std::string message;
};

// An exception can pass only through frames for which the compiler has written tables. gcc and clang write them (the
// build adds -fexceptions for the C files). MSVC assumes that extern "C" functions never throw.
#if defined(_MSC_VER)
constexpr bool can_unwind = false;
#else
constexpr bool can_unwind = true;
#endif

thread_local int  guard_depth = 0;
thread_local char last_assertion[2048] = {0};

struct guard {
    guard() { last_assertion[0] = 0; ++guard_depth; }
    ~guard() { --guard_depth; }
    guard(const guard &) = delete;
    guard & operator=(const guard &) = delete;
};

void copy_message(char * dst, size_t size, const char * src) {
    std::snprintf(dst, size, "%s", src ? src : "");
}

void on_abort(const char * message) {
    if (can_unwind && guard_depth > 0) {
        copy_message(last_assertion, sizeof(last_assertion), message);
        throw assertion_failed(message);
    }
    // When this function returns, ggml_abort calls abort(), so the message is printed first.
    std::fprintf(stderr, "%s\n", message);
    std::fflush(stderr);
}

void set(shim_error * error, shim_status status, const char * message) {
    error->status = status;
    copy_message(error->message, sizeof(error->message), message);
}

// Runs `call`. If it throws, sets `error` and returns `fallback`.
template <typename F, typename R>
R checked(shim_error * error, R fallback, F && call) {
    error->status     = SHIM_STATUS_OK;
    error->message[0] = 0;
    try {
        return call();
    } catch (const assertion_failed & e) {
        set(error, SHIM_STATUS_ASSERTION, e.what());
    } catch (const std::bad_alloc &) {
        set(error, SHIM_STATUS_OUT_OF_MEMORY, "out of host memory");
    } catch (const std::exception & e) {
        set(error, SHIM_STATUS_EXCEPTION, e.what());
    } catch (...) {
        set(error, SHIM_STATUS_EXCEPTION, "an exception of unknown type");
    }
    return fallback;
}

// As `checked`, with the abort guard on. Only for calls that compute nothing on other threads.
template <typename F, typename R>
R guarded(shim_error * error, R fallback, F && call) {
    guard on;
    R result = checked(error, fallback, call);
    // llama.cpp may have caught the exception itself and returned NULL. The assertion's text is the reason in this case
    // too.
    if (error->status == SHIM_STATUS_OK && last_assertion[0] != 0) {
        set(error, SHIM_STATUS_ASSERTION, last_assertion);
        last_assertion[0] = 0;
    }
    return result;
}

// The bytes of the buffer for outputs, with the maximum number of outputs (llama-context.cpp, `output_reserve`).
// llama.cpp's account does not contain this buffer.
size_t output_bytes(const llama_context * ctx) {
    const llama_cparams & cparams = ctx->get_cparams();
    const llama_model   & model   = ctx->get_model();
    const size_t rows   = std::max(cparams.n_outputs_max, cparams.n_seq_max);
    const bool has_embd = cparams.embeddings || model.arch == LLM_ARCH_T5;
    const size_t n_embd = model.hparams.n_embd_out();
    // The constructor makes room for one row with logits for each sequence. The buffer never shrinks. If the
    // graphs compute embeddings and no logits, it grows without room for logits.
    const bool has_logits = !cparams.embeddings || model.arch == LLM_ARCH_T5 || ctx->get_gf_res_reserve()->get_logits();
    const size_t n_vocab  = model.vocab.n_tokens();
    const size_t first    = (n_vocab + (has_embd ? n_embd : 0)) * cparams.n_seq_max;
    const size_t width    = (has_logits ? n_vocab : 0) + (has_embd ? n_embd : 0);
    // Hidden states are kept for outputs only, or for all tokens of a batch.
    const size_t hidden = !cparams.embeddings_nextn ? 0 : cparams.embeddings_nextn_masked ? rows : cparams.n_batch;
    return std::max(first, width * rows + n_embd * hidden) * sizeof(float);
}

// The buffer type of the buffer for outputs: memory that the output layer's device pins, or the CPU's if the device
// pins none.
ggml_backend_buffer_type_t output_buft(const llama_context * ctx) {
    ggml_backend_dev_t device = ctx->get_model().dev_output();
    ggml_backend_buffer_type_t pinned = device ? ggml_backend_dev_host_buffer_type(device) : nullptr;
    return pinned ? pinned : ggml_backend_cpu_buffer_type();
}

// Carries out pending copies and shifts. Before this, the data do not agree with the cells. Throws if that fails;
// llama.cpp would only log it (llama-context.cpp, memory_update). This function computes, so it must not be called
// under the guard.
void settle(llama_context * ctx) {
    llama_memory_t memory = ctx->get_memory();
    if (!memory) {
        return;
    }
    ctx->synchronize();
    if (ctx->memory_update(false) && memory->init_update(ctx, false)->get_status() != LLAMA_MEMORY_STATUS_NO_UPDATE) {
        throw std::runtime_error("the memory could not be updated");
    }
}

// The cache of the layers with a sliding window, if they have a separate cache; otherwise NULL.
llama_kv_cache * windowed(llama_memory_t memory) {
    if (auto * both = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return both->get_swa();
    }
    if (auto * both = dynamic_cast<llama_kv_cache_dsa_iswa *>(memory)) {
        return both->get_swa();
    }
    if (auto * both = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return both->get_mem_attn()->get_swa();
    }
    return nullptr;
}

// The flags for writing and reading a state: the whole state, or only the part that cannot go back to an earlier token.
llama_state_seq_flags flags_of(bool partial) {
    return partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : 0;
}

// Tensors are copied through the host's memory in pieces of this size.
constexpr size_t piece_bytes = 1 << 20;

// The callback of llama_context for copies of weights. It is private, but C++ lets an explicit instantiation name it.
ggml_backend_sched_copy_callback copy_experts();
template <ggml_backend_sched_copy_callback callback> struct named {
    friend ggml_backend_sched_copy_callback copy_experts() { return callback; }
};
template struct named<&llama_context::sched_copy_experts>;

// Calls llama_context's callback, and counts the experts. To look up a layer's experts, a computation copies a list of
// their slots (-1 for an expert without a slot). Before this copy, the callback loads the experts without a slot
// (llama-moe-cache.cpp, `copy`).
bool count_experts(ggml_backend_t backend, const ggml_tensor * src, ggml_tensor * dst, ggml_cgraph * graph, void * user_data) {
    auto * counts = static_cast<shim_moe_counts *>(user_data);
    constexpr char slot_map[] = "moe_cache.slot_map-";
    if (std::strncmp(src->name, slot_map, sizeof(slot_map) - 1) != 0) {
        return copy_experts()(backend, src, dst, graph, counts->ctx);
    }
    static thread_local std::vector<int32_t> before;
    const auto * slots = static_cast<const int32_t *>(src->data);
    before.assign(slots, slots + ggml_nelements(src));
    const bool copied = copy_experts()(backend, src, dst, graph, counts->ctx);
    uint64_t used = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_GET_ROWS && node->src[0] == dst) {
            used += ggml_nelements(node->src[1]);
        }
    }
    uint64_t loaded = 0;
    for (size_t i = 0; i < before.size(); ++i) {
        loaded += before[i] < 0 && slots[i] >= 0;
    }
    counts->misses += loaded;
    counts->hits   += used - std::min(used, loaded);
    return copied;
}

class counting_writer : public llama_io_write_i {
public:
    void write(const void *, size_t size) override { written += size; }
    void write_tensor(ggml_tensor *, size_t, size_t size) override { written += size; }
    size_t n_bytes() override { return written; }

private:
    size_t written = 0;
};

class stream_writer : public llama_io_write_i {
public:
    stream_writer(shim_put put, void * user) : put(put), user(user) {}

    void write(const void * src, size_t size) override {
        if (!put(user, src, size)) {
            throw std::runtime_error("the state could not be written");
        }
        written += size;
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        piece.resize(std::min(size, piece_bytes));
        for (size_t at = 0; at < size; at += piece.size()) {
            const size_t n = std::min(size - at, piece.size());
            ggml_backend_tensor_get(tensor, piece.data(), offset + at, n);
            write(piece.data(), n);
        }
    }

    size_t n_bytes() override { return written; }

private:
    shim_put put;
    void *   user;
    size_t   written = 0;
    std::vector<uint8_t> piece;
};

// Passes only the requested ranges of the stream to `put`. Without ranges, it passes all bytes between the rows of
// tensors, and the places of the rows to `later`, if there is one.
class range_writer : public llama_io_write_i {
public:
    range_writer(const shim_range * ranges, size_t n_ranges, shim_put put, void * user, shim_later later = nullptr) :
        ranges(ranges), n_ranges(n_ranges), put(put), later(later), user(user) {}

    void write(const void * src, size_t size) override {
        if (!ranges) {
            send(src, size);
            at += size;
            return;
        }
        each(size, [&](size_t from, size_t n) { send((const uint8_t *) src + from, n); });
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        if (!ranges) {
            const shim_place place = { tensor, offset, size };
            if (later && !later(user, &place)) {
                throw std::runtime_error("the host has no memory for a list of cells");
            }
            at += size;
            return;
        }
        each(size, [&](size_t from, size_t n) {
            piece.resize(std::min(n, piece_bytes));
            for (size_t done = 0; done < n; done += piece.size()) {
                const size_t part = std::min(n - done, piece.size());
                ggml_backend_tensor_get(tensor, piece.data(), offset + from + done, part);
                send(piece.data(), part);
            }
        });
    }

    size_t n_bytes() override { return at; }

private:
    void send(const void * src, size_t size) {
        if (!put(user, src, size)) {
            throw std::runtime_error("the state could not be written");
        }
    }

    // Calls `take` for those parts of the next `size` bytes that are requested.
    template <typename F> void each(size_t size, F take) {
        const size_t end = at + size;
        while (next < n_ranges && ranges[next].from < end) {
            const size_t range_end = ranges[next].from + ranges[next].size;
            const size_t from      = std::max(at, (size_t) ranges[next].from);
            const size_t to        = std::min(end, range_end);
            if (from < to) {
                take(from - at, to - from);
            }
            if (range_end > end) {
                break;
            }
            ++next;
        }
        at = end;
    }

    const shim_range * ranges;
    size_t   n_ranges;
    shim_put put;
    shim_later later;
    void *   user;
    size_t   next = 0;
    size_t   at   = 0;
    std::vector<uint8_t> piece;
};

// Reads the stream from `take`. With `later`, the tensors' bytes among the first `later_end` bytes are not read: `later`
// gets the places for them.
class stream_reader : public llama_io_read_i {
public:
    stream_reader(shim_take take, void * user, size_t size, shim_later later = nullptr, size_t later_end = 0) :
        take(take), later(later), user(user), size(size), later_end(later_end) {}

    void read(void * dst, size_t n) override {
        check(n);
        // `dst` may be uninitialised, but the Rust function that reads it expects initialised memory.
        std::memset(dst, 0, n);
        if (!take(user, dst, n)) {
            throw std::runtime_error("the state ends too early");
        }
        taken += n;
    }

    void read_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        if (later && taken < later_end) {
            check(n);
            const shim_place place = { tensor, offset, n };
            if (!later(user, &place)) {
                throw std::runtime_error("the host has no memory for a list of cells");
            }
            taken += n;
            return;
        }
        piece.resize(std::min(n, piece_bytes));
        for (size_t at = 0; at < n; at += piece.size()) {
            const size_t part = std::min(n - at, piece.size());
            read(piece.data(), part);
            ggml_backend_tensor_set(tensor, piece.data(), offset + at, part);
        }
    }

    size_t n_bytes() override { return taken; }

private:
    void check(size_t n) const {
        if (n > size - taken) {
            throw std::runtime_error("the state ends too early");
        }
    }

    shim_take  take;
    shim_later later;
    void *     user;
    size_t     size;
    size_t     later_end;
    size_t     taken = 0;
    std::vector<uint8_t> piece;
};

void check_place(const shim_place * place, uint64_t from, size_t size) {
    if (from > place->size || size > place->size - from) {
        throw std::runtime_error("the bytes are not in their cells");
    }
}

} // namespace

void shim_install_abort_guard(void) {
    ggml_set_abort_callback(on_abort);
}

bool shim_init(shim_error * error) {
    return guarded(error, false, [] {
        llama_backend_init();
        (void) ggml_backend_dev_count();
        return true;
    });
}

int32_t shim_architectures(const char ** names, int32_t n_max) {
    int32_t n = 0;
    for (const llm_arch arch : llm_arch_all()) {
        if (arch == LLM_ARCH_UNKNOWN) {
            continue;
        }
        if (n < n_max) {
            names[n] = llm_arch_name(arch);
        }
        ++n;
    }
    return n;
}

ggml_threadpool_t shim_threadpool_new(int32_t n_threads, bool spins, shim_error * error) {
    return guarded(error, (ggml_threadpool_t) nullptr, [&] { return new_threadpool(n_threads, spins).release(); });
}

void shim_threadpool_free(ggml_threadpool_t pool) {
    threadpool_deleter()(pool);
}

void shim_threadpool_use(ggml_backend_t cpu, ggml_threadpool_t pool) {
    use_threadpool(cpu, pool);
}

bool shim_device_memory(ggml_backend_dev_t device, size_t * free, size_t * total, shim_error * error) {
    return guarded(error, false, [&] { ggml_backend_dev_memory(device, free, total); return true; });
}

bool shim_device_props(ggml_backend_dev_t device, ggml_backend_dev_props * props, shim_error * error) {
    return guarded(error, false, [&] { ggml_backend_dev_get_props(device, props); return true; });
}

ggml_backend_buffer_type_t shim_device_buft(ggml_backend_dev_t device, bool pinned, shim_error * error) {
    return guarded(error, (ggml_backend_buffer_type_t) nullptr, [&] {
        return pinned ? ggml_backend_dev_host_buffer_type(device) : ggml_backend_dev_buffer_type(device);
    });
}

// If an assertion failed during the load but llama.cpp returned a model anyway, the model cannot be trusted: frees it
// and returns NULL.
static llama_model * trusted(llama_model * model, const shim_error * error) {
    if (error->status != SHIM_STATUS_OK && model) {
        shim_model_free(model);
        model = nullptr;
    }
    return model;
}

llama_model * shim_model_load(const char * path, const llama_model_params * params, shim_error * error) {
    llama_model * model = trusted(guarded(error, (llama_model *) nullptr, [&] { return llama_model_load_from_file(path, *params); }), error);
    if (model && params->no_alloc && !params->vocab_only) {
        guarded(error, false, [&] { transforms_without_data(*model); return true; });
    }
    return trusted(model, error);
}

void shim_model_free(llama_model * model) {
    llama_model_free(model);
    forget_transforms(model);
}

llama_model * shim_model_from_metadata(const char * path, const llama_model_params * params, shim_error * error) {
    return trusted(guarded(error, (llama_model *) nullptr, [&]() -> llama_model * {
        const gguf_init_params init = { /*.no_alloc =*/ true, /*.ctx =*/ nullptr };
        const std::unique_ptr<gguf_context, decltype(&gguf_free)> metadata(gguf_init_from_file(path, init), gguf_free);
        if (!metadata) {
            return nullptr;
        }
        const auto zero = [](ggml_tensor * tensor, void *) { ggml_backend_tensor_memset(tensor, 0, 0, ggml_nbytes(tensor)); };
        return llama_model_init_from_user(metadata.get(), zero, nullptr, *params);
    }), error);
}

bool shim_model_save(const llama_model * model, const char * path, shim_error * error) {
    return guarded(error, false, [&] {
        for (const auto & named : model->tensors_by_name) {
            // ggml calls `get_tensor` without a check for NULL, and in buffers of rearranged weights it is NULL.
            if (named.second->buffer && !named.second->buffer->iface.get_tensor) {
                throw std::runtime_error("the data of " + named.first + " cannot be read back");
            }
        }
        llama_model_save_to_file(model, path);
        return true;
    });
}

int32_t shim_model_tensors(const llama_model * model, shim_tensor * tensors, int32_t n_max) {
    int32_t n = 0;
    for (const auto & named : model->tensors_by_name) {
        const ggml_tensor * tensor = named.second;
        if (n < n_max) {
            ggml_backend_buffer_type_t buft = tensor->buffer ? ggml_backend_buffer_get_type(tensor->buffer) : nullptr;
            tensors[n] = { ggml_get_name(tensor), tensor->type, { tensor->ne[0], tensor->ne[1], tensor->ne[2], tensor->ne[3] },
                           buft, buft && ggml_backend_buft_is_host(buft) };
        }
        ++n;
    }
    return n;
}

void shim_model_shape(const llama_model * model, struct shim_model_shape * shape) {
    const auto & hparams = model->hparams;
    shape->n_layer      = hparams.n_layer_all;
    shape->n_expert     = hparams.n_expert;
    shape->head_k_block = 0;
    shape->head_v_block = 0;
    shape->causal       = hparams.causal_attn;
    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (hparams.n_head_kv(il) == 0) {
            continue; // a layer without attention
        }
        shape->head_k_block = std::gcd(shape->head_k_block, hparams.n_embd_head_k(il));
        shape->head_v_block = std::gcd(shape->head_v_block, hparams.n_embd_head_v(il));
    }
}

// The experts of a layer that a cache would contain. The list is empty if some of the layer's experts are not on the
// host (llama-moe-cache.cpp, `llama_moe_cache_layer_experts` and `llama_moe_cache_is_host_weight`).
static std::vector<const ggml_tensor *> host_experts(const llama_layer & layer) {
    std::vector<const ggml_tensor *> experts;
    for (const ggml_tensor * tensor : { layer.ffn_gate_up_exps, layer.ffn_gate_exps, layer.ffn_up_exps, layer.ffn_down_exps }) {
        if (!tensor) {
            continue;
        }
        const bool on_host = tensor->buffer && ggml_backend_buffer_get_usage(tensor->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
                             ggml_backend_buffer_is_host(tensor->buffer);
        if (!on_host) {
            return {};
        }
        experts.push_back(tensor);
    }
    return experts;
}

static bool is_gpu(ggml_backend_dev_t device) {
    const enum ggml_backend_dev_type type = ggml_backend_dev_type(device);
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

void shim_model_moe_cache_shape(const llama_model * model, shim_moe_cache_shape * shape) {
    *shape = { 0, 0, model->split_mode() == LLAMA_SPLIT_MODE_TENSOR, 0, 0 };
    for (const llama_device & device : model->devices) {
        shape->n_gpu += is_gpu(device.dev);
    }
    const uint64_t n_used = model->hparams.n_expert_used_max();
    for (size_t il = 0; il < model->layers.size(); ++il) {
        const std::vector<const ggml_tensor *> experts = host_experts(model->layers[il]);
        ggml_backend_dev_t device = model->dev_layer(il);
        if (experts.empty() || !device || !is_gpu(device)) {
            continue;
        }
        const size_t alignment = ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(device));
        // A cache has one slot more than it has experts (`alloc_size`).
        uint64_t token = 0;
        uint64_t all   = 0;
        for (const ggml_tensor * tensor : experts) {
            token += GGML_PAD(tensor->nb[2] * (n_used + 1), alignment);
            all   += GGML_PAD(tensor->nb[2] * (tensor->ne[2] + 1), alignment);
        }
        shape->least = shape->n_layer == 0 ? token : std::min(shape->least, token);
        shape->most += all;
        ++shape->n_layer;
    }
}

int32_t shim_model_n_devices(const llama_model * model) {
    return llama_model_n_devices(model);
}

ggml_backend_dev_t shim_model_device(const llama_model * model, int32_t index) {
    return llama_model_get_device(model, index);
}

llama_context * shim_context_init(llama_model * model, const llama_context_params * params, shim_error * error) {
    llama_context * ctx = guarded(error, (llama_context *) nullptr, [&] { return llama_init_from_model(model, *params); });
    if (error->status != SHIM_STATUS_OK && ctx) {
        llama_free(ctx);
        ctx = nullptr;
    }
    return ctx;
}

int32_t shim_decode(llama_context * ctx, const llama_batch * batch, shim_error * error) {
    return checked(error, (int32_t) -3, [&] { return llama_decode(ctx, *batch); });
}

bool shim_synchronize(llama_context * ctx, shim_error * error) {
    return checked(error, false, [&] { llama_synchronize(ctx); return true; });
}

float * shim_logits(llama_context * ctx, int32_t index, shim_error * error) {
    return checked(error, (float *) nullptr, [&] {
        llama_synchronize(ctx);
        guard on;
        return llama_get_logits_ith(ctx, index);
    });
}

int32_t shim_memory_breakdown(llama_context * ctx, bool computes_rows, shim_memory_row * rows, int32_t n_max, shim_error * error) {
    const auto read = [&] {
        llama_memory_breakdown breakdown = llama_get_memory_breakdown(ctx);
        if (ctx->get_model().no_alloc()) {
            as_if_allocated(ctx, breakdown, computes_rows);
        }
        ggml_backend_buffer_type_t results = output_buft(ctx);
        breakdown[results]; // makes a row for it, if there is none yet
        const size_t output = output_bytes(ctx) + allocation_extra(results);
        // llama.cpp counts the cache of experts as a part of the memory (llama-context.cpp, `memory_breakdown`).
        std::map<ggml_backend_buffer_type_t, size_t> memory;
        if (llama_memory_t held = llama_get_memory(ctx)) {
            memory = held->memory_breakdown();
        }
        // llama.cpp counts the transforms as weights. For a model without data it makes no transforms.
        const buffer_bytes transforms = transform_bytes(ctx->get_model());
        const bool with_weights = !ctx->get_model().no_alloc();
        for (const auto & [buft, bytes] : transforms) {
            breakdown[buft];
        }
        int32_t n = 0;
        for (const auto & [buft, data] : breakdown) {
            if (n < n_max) {
                const auto   found   = memory.find(buft);
                const size_t context = found == memory.end() ? 0 : found->second;
                const auto   made    = transforms.find(buft);
                const size_t bytes   = made == transforms.end() ? 0 : made->second;
                const size_t weights = data.model - (with_weights ? bytes : 0);
                rows[n] = { buft, ggml_backend_buft_get_device(buft), ggml_backend_buft_is_host(buft), weights, bytes, context,
                            data.context - context, data.compute, buft == results ? output : 0 };
            }
            ++n;
        }
        return n;
    };
    // A model without data computes nothing, so assertions can be turned into errors.
    return ctx->get_model().no_alloc() ? guarded(error, (int32_t) 0, read) : checked(error, (int32_t) 0, read);
}

int32_t shim_context_copies(const llama_context * ctx) {
    return ggml_backend_sched_get_n_copies(ctx->get_sched());
}

void shim_context_compute_buffers(const llama_context * ctx, shim_compute_buffers * buffers) {
    ggml_backend_sched_t sched = ctx->get_sched();
    buffers->bytes = 0;
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        // A buffer that several backends share is counted once (ggml-alloc.c, ggml_gallocr_get_buffer_size).
        buffers->bytes += ggml_backend_sched_get_buffer_size(sched, ggml_backend_sched_get_backend(sched, i));
    }
    const llama_perf_context_data counted = ctx->perf_get_data();
    buffers->n_reallocs_same = (uint32_t) counted.n_reallocs_same;
    buffers->n_reallocs_diff = (uint32_t) counted.n_reallocs_diff;
}

void shim_context_count_experts(llama_context * ctx, shim_moe_counts * counts) {
    ggml_backend_sched_set_copy_callback(ctx->get_sched(), count_experts, counts);
}

bool shim_context_reserve(llama_context * ctx, uint32_t n_tokens, bool rows, shim_error * error) {
    // Nothing is computed, so assertions can be turned into errors.
    return guarded(error, false, [&] {
        if (rows) {
            return reserve_rows(*ctx, n_tokens) != nullptr;
        }
        const llama_cparams & cparams = ctx->get_cparams();
        llama_memory_context_ptr mctx;
        if (llama_memory_t memory = llama_get_memory(ctx)) {
            mctx = memory->init_full();
        }
        const uint32_t n_seqs    = cparams.n_seq_max;
        const uint32_t n_outputs = std::max(std::min(std::max(n_tokens, n_seqs), cparams.n_outputs_max), 1u);
        return ctx->graph_reserve(n_tokens, n_seqs, n_outputs, mctx.get()) != nullptr;
    });
}

// Predicting further tokens (MTP).

bool shim_context_output_hidden(llama_context * ctx, bool outputs_only, shim_error * error) {
    return checked(error, false, [&] { llama_synchronize(ctx); return true; }) && guarded(error, false, [&] {
        // This call makes the context reserve its graphs again (llama-context.cpp, `set_embeddings_nextn`).
        llama_set_embeddings_nextn(ctx, true, outputs_only);
        ctx->sched_reserve();
        return true;
    });
}

float * shim_hidden(llama_context * ctx, int32_t index, shim_error * error) {
    return checked(error, (float *) nullptr, [&] {
        llama_synchronize(ctx);
        guard on;
        return llama_get_embeddings_nextn_ith(ctx, index);
    });
}

// Embeddings.

void shim_model_embedding_shape(const llama_model * model, shim_embedding_shape * shape) {
    // The head's last matrix has as many outputs as there are scores (llama-graph.cpp, build_pooling).
    const ggml_tensor * head = model->cls_out ? model->cls_out : model->cls;
    shape->n_embd_out  = model->hparams.n_embd_out();
    shape->n_cls_out   = model->hparams.n_cls_out;
    shape->n_head_out  = head ? (uint32_t) head->ne[1] : 0;
    shape->n_positions = model->pos_embd ? (uint32_t) model->pos_embd->ne[1] : 0;
    shape->pooling     = model->hparams.pooling_type;
}

int32_t shim_encode(llama_context * ctx, const llama_batch * batch, shim_error * error) {
    return checked(error, (int32_t) -3, [&] { return llama_encode(ctx, *batch); });
}

float * shim_embeddings_seq(llama_context * ctx, llama_seq_id seq, shim_error * error) {
    return checked(error, (float *) nullptr, [&] {
        llama_synchronize(ctx);
        guard on;
        return llama_get_embeddings_seq(ctx, seq);
    });
}

float * shim_embeddings_ith(llama_context * ctx, int32_t index, shim_error * error) {
    return checked(error, (float *) nullptr, [&] {
        llama_synchronize(ctx);
        guard on;
        return llama_get_embeddings_ith(ctx, index);
    });
}

bool shim_context_rope_only_rotates(const llama_context * ctx) {
    // In ggml, rope_yarn multiplies by the attention factor, and if it extrapolates, by another factor too.
    const llama_cparams & cparams = ctx->get_cparams();
    return cparams.yarn_ext_factor == 0.0f && cparams.yarn_attn_factor == 1.0f;
}

bool shim_memory_clear(llama_context * ctx, bool data, shim_error * error) {
    return guarded(error, false, [&] { llama_memory_clear(llama_get_memory(ctx), data); return true; });
}

bool shim_memory_seq_rm(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, shim_error * error) {
    return guarded(error, false, [&] { return llama_memory_seq_rm(llama_get_memory(ctx), seq, p0, p1); });
}

bool shim_memory_copies_parts(const llama_context * ctx) {
    // These memories assert that a whole sequence is copied (llama-memory-hybrid-idx.cpp, `seq_cp`).
    return !dynamic_cast<llama_memory_hybrid_idx *>(ctx->get_memory());
}

bool shim_memory_seq_cp(llama_context * ctx, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1, shim_error * error) {
    return guarded(error, false, [&] { llama_memory_seq_cp(llama_get_memory(ctx), src, dst, p0, p1); return true; });
}

bool shim_memory_leave_window(llama_context * ctx, llama_seq_id seq, shim_error * error) {
    return guarded(error, false, [&] {
        llama_kv_cache * window = windowed(ctx->get_memory());
        if (!window) {
            return true;
        }
        const llama_hparams & hparams = ctx->get_model().hparams;
        const llama_pos last = window->seq_pos_max(seq);
        llama_pos first = std::max(window->seq_pos_min(seq), (llama_pos) 0);
        while (first < last && llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, first, last)) {
            ++first;
        }
        return first == 0 || window->seq_rm(seq, 0, first);
    });
}

bool shim_memory_update(llama_context * ctx, shim_error * error) {
    return checked(error, false, [&] { settle(ctx); return true; });
}

bool shim_memory_seq_add(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta, shim_error * error) {
    return guarded(error, false, [&] { llama_memory_seq_add(llama_get_memory(ctx), seq, p0, p1, delta); return true; });
}

int32_t shim_tokenize(const llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens, int32_t n_max,
                      bool add_special, bool parse_special, shim_error * error) {
    return guarded(error, (int32_t) 0, [&] { return llama_tokenize(vocab, text, text_len, tokens, n_max, add_special, parse_special); });
}

int32_t shim_token_to_piece(const llama_vocab * vocab, llama_token token, char * buf, int32_t length, int32_t lstrip, bool special,
                            shim_error * error) {
    return guarded(error, (int32_t) 0, [&] { return llama_token_to_piece(vocab, token, buf, length, lstrip, special); });
}

llama_sampler * shim_sampler_chain(shim_error * error) {
    return guarded(error, (llama_sampler *) nullptr, [] { return llama_sampler_chain_init(llama_sampler_chain_default_params()); });
}

bool shim_sampler_add(llama_sampler * chain, llama_sampler * sampler, shim_error * error) {
    if (!sampler) {
        set(error, SHIM_STATUS_EXCEPTION, "llama.cpp made no sampler");
        return false;
    }
    const bool added = guarded(error, false, [&] { llama_sampler_chain_add(chain, sampler); return true; });
    if (!added) {
        llama_sampler_free(sampler);
    }
    return added;
}

llama_sampler * shim_sampler_new(const shim_sampler_params * params, shim_error * error) {
    return guarded(error, (llama_sampler *) nullptr, [&]() -> llama_sampler * {
        const shim_sampler_params & p = *params;
        const float * const v = p.values;
        switch (p.kind) {
            case SHIM_SAMPLER_KIND_GREEDY:      return llama_sampler_init_greedy();
            case SHIM_SAMPLER_KIND_DIST:        return llama_sampler_init_dist(p.seed);
            case SHIM_SAMPLER_KIND_TOP_K:       return llama_sampler_init_top_k(p.count);
            case SHIM_SAMPLER_KIND_TOP_P:       return llama_sampler_init_top_p(v[0], p.min_keep);
            case SHIM_SAMPLER_KIND_MIN_P:       return llama_sampler_init_min_p(v[0], p.min_keep);
            case SHIM_SAMPLER_KIND_TYPICAL:     return llama_sampler_init_typical(v[0], p.min_keep);
            case SHIM_SAMPLER_KIND_TEMP:        return llama_sampler_init_temp(v[0]);
            case SHIM_SAMPLER_KIND_TEMP_EXT:    return llama_sampler_init_temp_ext(v[0], v[1], v[2]);
            case SHIM_SAMPLER_KIND_TOP_N_SIGMA: return llama_sampler_init_top_n_sigma(v[0]);
            case SHIM_SAMPLER_KIND_XTC:         return llama_sampler_init_xtc(v[0], v[1], p.min_keep, p.seed);
            case SHIM_SAMPLER_KIND_MIROSTAT:    return llama_sampler_init_mirostat(p.n_vocab, p.seed, v[0], v[1], p.count);
            case SHIM_SAMPLER_KIND_MIROSTAT_V2: return llama_sampler_init_mirostat_v2(p.seed, v[0], v[1]);
            case SHIM_SAMPLER_KIND_ADAPTIVE_P:  return llama_sampler_init_adaptive_p(v[0], v[1], p.seed);
        }
        return nullptr;
    });
}

llama_sampler * shim_sampler_penalties(int32_t n_vocab, int32_t last_n, float repeat, float freq, float present, shim_error * error) {
    return guarded(error, (llama_sampler *) nullptr, [&] { return llama_sampler_init_penalties(n_vocab, last_n, repeat, freq, present); });
}

llama_sampler * shim_sampler_logit_bias(int32_t n_vocab, int32_t n, const llama_logit_bias * bias, shim_error * error) {
    return guarded(error, (llama_sampler *) nullptr, [&] { return llama_sampler_init_logit_bias(n_vocab, n, bias); });
}

llama_sampler * shim_sampler_grammar(const llama_vocab * vocab, const char * grammar, const char * root, shim_error * error) {
    return guarded(error, (llama_sampler *) nullptr, [&] { return llama_sampler_init_grammar(vocab, grammar, root); });
}

llama_sampler * shim_sampler_dry(const llama_vocab * vocab, float multiplier, float base, int32_t allowed_length, int32_t penalty_last_n,
                                 const char ** breakers, size_t n_breakers, shim_error * error) {
    return guarded(error, (llama_sampler *) nullptr, [&] {
        return llama_sampler_init_dry(vocab, multiplier, base, allowed_length, penalty_last_n, breakers, n_breakers);
    });
}

llama_token shim_sampler_sample(llama_sampler * chain, llama_context * ctx, int32_t index, shim_error * error) {
    // This waits for the logits outside the guard, because no exception may pass through a running computation.
    return checked(error, (llama_token) LLAMA_TOKEN_NULL, [&] {
        llama_synchronize(ctx);
        guard on;
        return llama_sampler_sample(chain, ctx, index);
    });
}

bool shim_sampler_apply(llama_sampler * chain, llama_token_data_array * candidates, shim_error * error) {
    return guarded(error, false, [&] { llama_sampler_apply(chain, candidates); return true; });
}

bool shim_sampler_accept(llama_sampler * chain, llama_token token, shim_error * error) {
    return guarded(error, false, [&] { llama_sampler_accept(chain, token); return true; });
}

bool shim_sampler_skip(llama_sampler * chain, size_t n, shim_error * error) {
    return guarded(error, false, [&] {
        for (size_t i = 0; i < n; i++) {
            llama_token_data       one        = { 0, 0.0f, 0.0f };
            llama_token_data_array candidates = { &one, 1, -1, false };
            llama_sampler_apply(chain, &candidates);
        }
        return true;
    });
}

bool shim_memory_has_partial(const llama_context * ctx) {
    llama_memory_t memory = ctx->get_memory();
    if (dynamic_cast<llama_memory_recurrent *>(memory) || dynamic_cast<llama_memory_hybrid *>(memory) ||
        dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return true;
    }
    auto * both = dynamic_cast<llama_kv_cache_iswa *>(memory);
    return both && both->get_swa()->get_size() < both->get_base()->get_size();
}

size_t shim_state_stream_size(llama_context * ctx, llama_seq_id seq, bool partial, shim_error * error) {
    if (!shim_memory_update(ctx, error)) {
        return 0;
    }
    return guarded(error, (size_t) 0, [&] {
        counting_writer io;
        ctx->get_memory()->state_write(io, seq, flags_of(partial));
        return io.n_bytes();
    });
}

size_t shim_state_write(llama_context * ctx, llama_seq_id seq, bool partial, shim_put put, void * user, shim_error * error) {
    if (!shim_memory_update(ctx, error)) {
        return 0;
    }
    return guarded(error, (size_t) 0, [&] {
        stream_writer io(put, user);
        ctx->get_memory()->state_write(io, seq, flags_of(partial));
        return io.n_bytes();
    });
}

size_t shim_state_write_ranges(llama_context * ctx, llama_seq_id seq, bool partial, const shim_range * ranges, size_t n_ranges,
                               shim_put put, void * user, shim_error * error) {
    if (!shim_memory_update(ctx, error)) {
        return 0;
    }
    return guarded(error, (size_t) 0, [&] {
        range_writer io(ranges, n_ranges, put, user);
        ctx->get_memory()->state_write(io, seq, flags_of(partial));
        return io.n_bytes();
    });
}

size_t shim_state_read(llama_context * ctx, llama_seq_id seq, bool partial, size_t size, shim_take take, void * user,
                       shim_error * error) {
    if (!shim_memory_update(ctx, error)) {
        return 0;
    }
    return guarded(error, (size_t) 0, [&] {
        stream_reader io(take, user, size);
        ctx->get_memory()->state_read(io, seq, flags_of(partial));
        return io.n_bytes();
    });
}

size_t shim_state_read_cells(llama_context * ctx, llama_seq_id seq, size_t size, size_t later_end, shim_take take, shim_later later,
                             void * user, shim_error * error) {
    if (!shim_memory_update(ctx, error)) {
        return 0;
    }
    return guarded(error, (size_t) 0, [&] {
        stream_reader io(take, user, size, later, later_end);
        ctx->get_memory()->state_read(io, seq, 0);
        return io.n_bytes();
    });
}

size_t shim_state_write_cells(llama_context * ctx, llama_seq_id seq, shim_put put, shim_later later, void * user, shim_error * error) {
    if (!shim_memory_update(ctx, error)) {
        return 0;
    }
    return guarded(error, (size_t) 0, [&] {
        range_writer io(nullptr, 0, put, user, later);
        ctx->get_memory()->state_write(io, seq, 0);
        return io.n_bytes();
    });
}

bool shim_place_read(llama_context * ctx, const shim_place * place, uint64_t from, void * data, size_t size, shim_error * error) {
    return guarded(error, false, [&] {
        check_place(place, from, size);
        ctx->synchronize();
        ggml_backend_tensor_get(place->tensor, data, place->offset + from, size);
        return true;
    });
}

bool shim_place_write(llama_context * ctx, const shim_place * place, uint64_t from, const void * data, size_t size, shim_error * error) {
    return guarded(error, false, [&] {
        check_place(place, from, size);
        ctx->synchronize();
        ggml_backend_tensor_set(place->tensor, data, place->offset + from, size);
        return true;
    });
}

void shim_backend_load_all_from(const char * dir, shim_error * error) {
    guarded(error, true, [&] { ggml_backend_load_all_from_path(dir); return true; });
}

// The function is looked up in the registry. This works with loaded and with linked backends, and the program links
// even if there is no such backend.
static void * rpc_function(const char * name) {
    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    return rpc ? ggml_backend_reg_get_proc_address(rpc, name) : nullptr;
}

void shim_rpc_protocol(uint8_t version[3]) {
    version[0] = RPC_PROTO_MAJOR_VERSION;
    version[1] = RPC_PROTO_MINOR_VERSION;
    version[2] = RPC_PROTO_PATCH_VERSION;
}

ggml_backend_reg_t shim_rpc_add_server(const char * endpoint, shim_error * error) {
    return guarded(error, (ggml_backend_reg_t) nullptr, [&]() -> ggml_backend_reg_t {
        auto add_server = (decltype(&ggml_backend_rpc_add_server)) rpc_function("ggml_backend_rpc_add_server");
        ggml_backend_reg_t server = add_server ? add_server(endpoint) : nullptr;
        // If a server is added a second time, this returns the same entry.
        if (server && !ggml_backend_reg_by_name(ggml_backend_reg_name(server))) {
            ggml_backend_register(server);
        }
        return server;
    });
}

bool shim_rpc_serve(const char * endpoint, size_t n_threads, ggml_backend_dev_t * devices, size_t n_devices, shim_error * error) {
    return guarded(error, false, [&] {
        auto serve = (decltype(&ggml_backend_rpc_start_server)) rpc_function("ggml_backend_rpc_start_server");
        if (serve) {
            serve(endpoint, nullptr, n_threads, n_devices, devices);
        }
        return serve != nullptr;
    });
}

// ---- adapters ----

llama_adapter_lora * shim_lora_load(llama_model * model, const char * path, shim_error * error) {
    llama_adapter_lora * adapter = guarded(error, (llama_adapter_lora *) nullptr, [&] {
        return model->no_alloc() ? lora_without_data(*model, path) : llama_adapter_lora_init(model, path);
    });
    if (error->status == SHIM_STATUS_OK && adapter) {
        guarded(error, false, [&] { check_lora(*model, *adapter); return true; });
    }
    if (error->status != SHIM_STATUS_OK && adapter) {
        llama_adapter_lora_free(adapter);
        adapter = nullptr;
    }
    return adapter;
}

bool shim_context_set_lora(llama_context * ctx, llama_adapter_lora ** adapters, float * scales, size_t n, shim_error * error) {
    // This waits for running computations outside the guard, because no exception may pass through them.
    return checked(error, false, [&] { llama_synchronize(ctx); return true; }) && guarded(error, false, [&] {
        if (llama_set_adapters_lora(ctx, adapters, n, scales) != 0) {
            return false;
        }
        ctx->sched_reserve();
        return true;
    });
}

bool shim_context_set_control_vector(llama_context * ctx, const float * data, size_t len, int32_t n_embd, int32_t il_start,
                                     int32_t il_end, shim_error * error) {
    return checked(error, false, [&] { llama_synchronize(ctx); return true; }) && guarded(error, false, [&] {
        if (llama_set_adapter_cvec(ctx, data, len, n_embd, il_start, il_end) != 0) {
            return false;
        }
        ctx->sched_reserve();
        return true;
    });
}

int32_t shim_adapter_bytes(const llama_model * model, bool control_vector, shim_buffer_bytes * rows, int32_t n_max, shim_error * error) {
    return guarded(error, (int32_t) 0, [&] {
        buffer_bytes bytes = lora_bytes(*model);
        if (control_vector) {
            for (const auto & [buft, size] : control_vector_bytes(*model)) {
                bytes[buft] += size;
            }
        }
        int32_t n = 0;
        for (const auto & [buft, size] : bytes) {
            if (n < n_max) {
                rows[n] = { buft, ggml_backend_buft_get_device(buft), ggml_backend_buft_is_host(buft), size };
            }
            ++n;
        }
        return n;
    });
}

shim_bench * shim_bench_new(ggml_backend_dev_t device, int32_t n_threads, bool repack, shim_error * error) {
    return guarded(error, (shim_bench *) nullptr, [&] { return bench_new(device, n_threads, repack); });
}

void shim_bench_free(shim_bench * bench) {
    delete bench;
}

shim_measured shim_bench_time(shim_bench * bench, const shim_operation * operation, uint64_t budget_ns, shim_timing * timing, shim_error * error) {
    return checked(error, SHIM_MEASURED_UNSUPPORTED, [&] { return bench_time(*bench, *operation, budget_ns, *timing); });
}

shim_measured shim_bench_link(shim_bench * bench, size_t bytes, size_t width, uint64_t budget_ns, shim_link * link, shim_error * error) {
    return checked(error, SHIM_MEASURED_UNSUPPORTED, [&] { return bench_link(*bench, bytes, width, budget_ns, *link); });
}

bool shim_media_built() {
    return media_built();
}

void shim_media_log(ggml_log_callback callback, void * user_data) {
    media_log(callback, user_data);
}

mtmd_context * shim_media_load(const char * path, const llama_model * model, const shim_media_params * params, shim_media_row * rows, int32_t n_max,
                               int32_t * n_rows, shim_error * error) {
    // The warm-up reserves buffers but computes nothing (clip.cpp, `warmup`). So assertions can be turned into errors.
    mtmd_context * media = guarded(error, (mtmd_context *) nullptr, [&] {
        std::vector<shim_media_row> taken;
        mtmd_context * loaded = media_load(path, *model, *params, taken);
        std::copy_n(taken.begin(), std::min(taken.size(), (size_t) n_max), rows);
        *n_rows = (int32_t) taken.size();
        return loaded;
    });
    if (error->status != SHIM_STATUS_OK && media) {
        media_free(media);
        media = nullptr;
    }
    return media;
}

void shim_media_free(mtmd_context * media) {
    media_free(media);
}

bool shim_media_shape(const mtmd_context * media, struct shim_media_shape * shape, shim_error * error) {
    return guarded(error, false, [&] { media_shape(*media, *shape); return true; });
}

int32_t shim_media_memory(const char * path, const shim_media_params * params, shim_media_limits * limits, shim_media_row * rows, int32_t n_max,
                          shim_error * error) {
    return guarded(error, (int32_t) 0, [&] {
        const std::vector<shim_media_row> found = media_memory(path, *params, *limits);
        std::copy_n(found.begin(), std::min(found.size(), (size_t) n_max), rows);
        return (int32_t) found.size();
    });
}

mtmd_input_chunks * shim_media_tokenize(const mtmd_context * media, const shim_media_part * parts, size_t n_parts, bool add_special, shim_error * error) {
    mtmd_input_chunks * chunks =
        guarded(error, (mtmd_input_chunks *) nullptr, [&] { return media_tokenize(*media, parts, n_parts, add_special); });
    if (error->status != SHIM_STATUS_OK && chunks) {
        media_chunks_free(chunks);
        chunks = nullptr;
    }
    return chunks;
}

void shim_media_chunks_free(mtmd_input_chunks * chunks) {
    media_chunks_free(chunks);
}

size_t shim_media_chunks_size(const mtmd_input_chunks * chunks, shim_error * error) {
    return guarded(error, (size_t) 0, [&] { return media_chunks_size(*chunks); });
}

bool shim_media_chunk(const mtmd_context * media, const mtmd_input_chunks * chunks, size_t index, struct shim_media_chunk * chunk, shim_error * error) {
    return guarded(error, false, [&] { media_chunk(*media, *chunks, index, *chunk); return true; });
}

bool shim_media_positions(const mtmd_context * media, const mtmd_input_chunks * chunks, size_t index, llama_pos first, llama_pos * positions,
                          size_t n_positions, shim_error * error) {
    return guarded(error, false, [&] { media_positions(*media, *chunks, index, first, positions, n_positions); return true; });
}

bool shim_media_encode(mtmd_context * media, const mtmd_input_chunks * chunks, size_t index, float * rows, size_t n_floats, shim_error * error) {
    return checked(error, false, [&] { media_encode(*media, *chunks, index, rows, n_floats); return true; });
}

int32_t shim_media_decode(llama_context * ctx, const shim_media_rows * rows, shim_error * error) {
    return checked(error, (int32_t) -3, [&] { return media_decode(*ctx, *rows); });
}
