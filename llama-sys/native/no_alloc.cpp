#include "no_alloc.h"

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"
#include "llama-context.h"
#include "llama-memory.h"
#include "llama-model.h"
#include "rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// For each node of a graph its backend, in the graph's order.
using assignment = std::vector<ggml_backend_t>;

assignment assignment_of(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    assignment backends(ggml_graph_n_nodes(graph));
    for (size_t i = 0; i < backends.size(); ++i) {
        backends[i] = ggml_backend_sched_get_tensor_backend(sched, ggml_graph_node(graph, i));
    }
    return backends;
}

// Assigns the nodes of a graph to backends during a reservation that only computes sizes. Building a graph assigns some
// of its nodes (llama-context.cpp, `graph_get_cb`; llama-graph.cpp, `build_attn_mha`), and a real reservation splits
// the graph by these assignments. A reservation that only computes sizes loses these assignments:
// ggml_backend_sched_reserve_size resets the scheduler, waits for the backends, and only then splits the graph
// (ggml-backend.cpp). So this class replaces the function `synchronize` of the context's own CPU backend, which is
// called during that wait. The new function assigns the nodes again.
class assigning {
  public:
    assigning(llama_context * ctx, const assignment & backends) : ctx(ctx), backends(backends) {
        ggml_backend_sched_t sched = ctx->get_sched();
        cpu = ggml_backend_sched_get_backend(sched, ggml_backend_sched_get_n_backends(sched) - 1);
        synchronize = cpu->iface.synchronize;
        cpu->iface.synchronize = &assigning::assign;
        current = this;
    }
    ~assigning() {
        cpu->iface.synchronize = synchronize;
        current = nullptr;
    }
    assigning(const assigning &) = delete;
    assigning & operator=(const assigning &) = delete;

    bool done = false;

  private:
    static void assign(ggml_backend_t) {
        ggml_cgraph * graph = current->ctx->get_gf_res_reserve()->get_gf();
        if (!graph || (size_t) ggml_graph_n_nodes(graph) != current->backends.size()) {
            return;
        }
        for (size_t i = 0; i < current->backends.size(); ++i) {
            if (current->backends[i]) {
                ggml_backend_sched_set_tensor_backend(current->ctx->get_sched(), ggml_graph_node(graph, i), current->backends[i]);
            }
        }
        current->done = true;
    }

    static thread_local assigning * current;

    llama_context *    ctx;
    const assignment & backends;
    ggml_backend_t     cpu;
    void (*synchronize)(ggml_backend_t);
};

thread_local assigning * assigning::current = nullptr;

// Sizes of the compute buffers, one per backend.
class reservations {
  public:
    explicit reservations(llama_context * ctx) : ctx(ctx), sizes(ggml_backend_sched_get_n_backends(ctx->get_sched()), 0) {
        if (llama_memory_t memory = llama_get_memory(ctx)) {
            mctx = memory->init_full();
        }
    }

    // Grows the buffers to the sizes that this graph needs. `backends` are the nodes' backends, from a split of the
    // same graph.
    void grow(uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs, const assignment & backends) {
        std::vector<size_t> these(sizes.size(), 0);
        assigning assign(ctx, backends);
        grow_to(these, ctx->graph_reserve(n_tokens, n_seqs, n_outputs, mctx.get(), true, these.data()), assign);
    }

    void grow(uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs) {
        ggml_cgraph * graph = ctx->graph_reserve(n_tokens, n_seqs, n_outputs, mctx.get(), true);
        if (!graph) {
            throw std::runtime_error("failed to split a graph");
        }
        grow(n_tokens, n_seqs, n_outputs, assignment_of(ctx->get_sched(), graph));
    }

    // Likewise for a graph of rows.
    void grow_for_rows(uint32_t n_rows) {
        ggml_cgraph * graph = reserve_rows(*ctx, n_rows, true);
        if (!graph) {
            throw std::runtime_error("failed to split a graph of rows");
        }
        const assignment backends = assignment_of(ctx->get_sched(), graph);
        std::vector<size_t> these(sizes.size(), 0);
        assigning assign(ctx, backends);
        grow_to(these, reserve_rows(*ctx, n_rows, true, these.data()), assign);
    }

    llama_context *     ctx;
    std::vector<size_t> sizes;

  private:
    void grow_to(const std::vector<size_t> & these, const ggml_cgraph * graph, const assigning & assign) {
        if (!graph || !assign.done) {
            throw std::runtime_error("failed to reserve a graph");
        }
        for (size_t i = 0; i < sizes.size(); ++i) {
            sizes[i] = std::max(sizes[i], these[i]);
        }
    }

    llama_memory_context_ptr mctx;
};

// The sizes of the compute buffers after the context's constructor (llama-context.cpp, `sched_reserve`). The
// constructor reserves for a prompt, for a token, and for a prompt again. The larger size of each buffer counts. A
// backend may limit the size of a buffer, so that a reservation needs several buffers. Then their larger sum counts.
// With `rows`, a reservation for as many rows follows (shim.cpp, `shim_context_reserve`).
std::vector<size_t> compute_sizes(llama_context * ctx, bool rows) {
    const llama_cparams & cparams = ctx->get_cparams();
    const uint32_t n_seqs    = cparams.n_seq_max;
    const uint32_t n_tokens  = std::min(cparams.n_ctx, cparams.n_ubatch);
    const uint32_t n_outputs = std::min(n_tokens, cparams.n_outputs_max);
    const llm_arch arch      = ctx->get_model().arch;

    // The constructor split the last of the three graphs just before, and nothing was reserved since.
    const assignment last = assignment_of(ctx->get_sched(), ctx->get_gf_res_reserve()->get_gf());
    reservations buffers(ctx);
    if (arch == LLM_ARCH_KIMI_LINEAR || arch == LLM_ARCH_MINIMAX_01) {
        buffers.grow(n_tokens, 1, n_outputs, last);
        buffers.grow(n_tokens, n_seqs, n_outputs);
    } else {
        buffers.grow(n_tokens, n_seqs, n_outputs, last);
    }
    buffers.grow(n_seqs, n_seqs, n_seqs);
    if (rows) {
        buffers.grow_for_rows(n_tokens);
    }
    return buffers.sizes;
}

// How many buffers of this type the model's weights need. If the next weight would not fit, a new buffer begins
// (ggml-backend.cpp, ggml_backend_buft_alloc_buffer_n_default).
size_t weight_buffers(const llama_model & model, ggml_backend_buffer_type_t buft) {
    const size_t alignment = ggml_backend_buft_get_alignment(buft);
    const size_t max_size  = ggml_backend_buft_get_max_size(buft);
    size_t count = 0;
    size_t size  = 0;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        if (!tensor->buffer || ggml_backend_buffer_get_type(tensor->buffer) != buft) {
            continue;
        }
        const size_t bytes = GGML_PAD(ggml_backend_buft_get_alloc_size(buft, tensor), alignment);
        if (count == 0 || (size > 0 && size + bytes > max_size)) {
            ++count;
            size = 0;
        }
        size += bytes;
    }
    return count;
}

} // namespace

size_t allocation_extra(ggml_backend_buffer_type_t buft) {
    if (!ggml_backend_buft_is_host(buft) || buft == ggml_backend_cpu_buffer_type()) {
        return 0;
    }
    const size_t asked = 64;
    ggml_backend_buffer_ptr buffer { ggml_backend_buft_alloc_buffer(buft, asked) };
    const size_t given = buffer ? ggml_backend_buffer_get_size(buffer.get()) : asked;
    return given > asked ? given - asked : 0;
}

void as_if_allocated(llama_context * ctx, llama_memory_breakdown & breakdown, bool rows) {
    // If no block on a device keeps a cache, the device's buffer would be empty, and llama.cpp would treat that as a
    // failure (llama-kv-cache.cpp, the constructor).
    if (llama_memory_t memory = llama_get_memory(ctx)) {
        for (const auto & [buft, size] : memory->memory_breakdown()) {
            if (size == 0) {
                throw std::runtime_error(std::string("failed to allocate buffer for kv cache: the blocks on ") + ggml_backend_buft_name(buft) +
                                         " keep none, which llama.cpp refuses");
            }
        }
    }
    const std::vector<size_t> sizes = compute_sizes(ctx, rows);
    for (auto & [buft, data] : breakdown) {
        data.compute = 0;
        // Backends with the same buffer type share a buffer (ggml-alloc.c, `ggml_gallocr_reserve_n_impl`).
        for (size_t i = 0; i < sizes.size(); ++i) {
            ggml_backend_sched_t sched = ctx->get_sched();
            if (ggml_backend_sched_get_buffer_type(sched, ggml_backend_sched_get_backend(sched, i)) == buft) {
                data.compute = std::max(data.compute, sizes[i]);
            }
        }
        const size_t extra = data.model || data.compute ? allocation_extra(buft) : 0;
        if (extra > 0) {
            const size_t max_size = ggml_backend_buft_get_max_size(buft);
            const size_t chunks   = data.compute / max_size + (data.compute % max_size > 0);
            data.compute += extra * chunks;
            data.model   += extra * weight_buffers(ctx->get_model(), buft);
        }
    }
}
