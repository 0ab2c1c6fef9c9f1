#include "rows.h"

#include "llama-batch.h"
#include "llama-graph.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>

namespace {

// Private members of llama.cpp. The arguments of an explicit instantiation may name them, so each instantiation defines
// the function `get` of its struct. A change of the member's type in another version of llama.cpp does not compile.
template <typename name, typename name::type member> struct opened {
    friend typename name::type get(name) { return member; }
};

// The function that describes a graph.
struct graph_params {
    using type = llm_graph_params (llama_context::*)(llm_graph_result *, const llama_ubatch &, const llama_memory_context_i *, llm_graph_type) const;
    friend type get(graph_params);
};
template struct opened<graph_params, &llama_context::graph_params>;

// The last computed graph, which the next computation may use again.
struct last_graph {
    using type = llm_graph_result * llama_context::*;
    friend type get(last_graph);
};
template struct opened<last_graph, &llama_context::gf_res_prev_active>;

// The streams of the cache, one for each sequence, of which a graph has views.
struct streams {
    using type = llama_kv_cache::slot_info_vec_t llama_kv_cache_context::*;
    friend type get(streams);
};
template struct opened<streams, &llama_kv_cache_context::sinfos>;

// Restricts a description of the full cache to its first stream.
void restrict_to_first(const llama_kv_cache_context * cache) {
    for (llama_kv_cache::slot_info & slots : const_cast<llama_kv_cache_context *>(cache)->*get(streams{})) {
        slots.s1 = slots.s0;
        slots.resize(1);
    }
}

// Restricts a description of the full memory to one sequence. False if that is not known for this kind of memory.
bool restrict_to_one(const llama_memory_context_i * memory) {
    if (auto * cache = dynamic_cast<const llama_kv_cache_context *>(memory)) {
        restrict_to_first(cache);
        return true;
    }
    if (auto * both = dynamic_cast<const llama_kv_cache_iswa_context *>(memory)) {
        restrict_to_first(both->get_base());
        restrict_to_first(both->get_swa());
        return true;
    }
    if (auto * hybrid = dynamic_cast<const llama_memory_hybrid_iswa_context *>(memory)) {
        return restrict_to_one(hybrid->get_attn());
    }
    if (dynamic_cast<const llama_memory_hybrid_idx_context *>(memory)) {
        return false;
    }
    if (auto * hybrid = dynamic_cast<const llama_memory_hybrid_context *>(memory)) {
        return restrict_to_one(hybrid->get_attn());
    }
    // A recurrent state has no streams.
    return dynamic_cast<const llama_memory_recurrent_context *>(memory) != nullptr;
}

} // namespace

ggml_cgraph * reserve_rows(llama_context & ctx, uint32_t n_rows, bool split_only, size_t * sizes) {
    const llama_cparams & cparams = ctx.get_cparams();
    const llama_model &   model   = ctx.get_model();

    llama_memory_context_ptr memory;
    if (llama_memory_t whole = llama_get_memory(&ctx)) {
        memory = whole->init_full();
    }
    const bool     is_one    = cparams.kv_unified || !memory || restrict_to_one(memory.get());
    const uint32_t n_seqs    = is_one ? 1 : cparams.n_seq_max;
    const uint32_t each      = (n_rows + n_seqs - 1) / n_seqs;
    const uint32_t n_outputs = std::max(std::min(each * n_seqs, cparams.n_outputs_max), 1u);

    llama_batch_allocr allocr(model.hparams.n_pos_per_embd());
    llama_ubatch ubatch = allocr.ubatch_reserve(each, n_seqs);
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        ubatch.n_seq_id[i] = 1;
        ubatch.seq_id[i]   = &ubatch.seq_id_unq[i / each];
        ubatch.output[i]   = i < n_outputs;
    }
    // Nothing is computed, so the values are never read.
    float none   = 0.0f;
    ubatch.token = nullptr;
    ubatch.embd  = &none;

    // As in llama_context::graph_reserve: after a reset of the scheduler, no earlier graph can be used again.
    ggml_backend_sched_t sched = ctx.get_sched();
    ggml_backend_sched_reset(sched);
    ctx.*get(last_graph{}) = nullptr;

    llm_graph_result * result = ctx.get_gf_res_reserve();
    llm_graph_params   params = (ctx.*get(graph_params{}))(result, ubatch, memory.get(), LLM_GRAPH_TYPE_DEFAULT);
    params.n_outputs = n_outputs;
    result->reset();
    ggml_cgraph * graph = model.build_graph(params);

    if (split_only && sizes) {
        ggml_backend_sched_reserve_size(sched, graph, sizes);
    } else if (split_only) {
        ggml_backend_sched_split_graph(sched, graph);
    } else if (!ggml_backend_sched_reserve(sched, graph)) {
        return nullptr;
    }
    return graph;
}
