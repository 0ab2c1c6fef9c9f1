#include "rows.h"

#include "llama-batch.h"
#include "llama-graph.h"
#include "llama-model.h"

namespace {

// The private function that describes a graph: `llama_context::graph_params`.
using describe = llm_graph_params (llama_context::*)(llm_graph_result *, const llama_ubatch &, const llama_memory_context_i *, llm_graph_type) const;

describe graph_params();

// The arguments of an explicit instantiation may name private members, so this instantiation defines the function
// above. A change of the member's type in another version of llama.cpp does not compile.
template <describe member> struct opened {
    friend describe graph_params() { return member; }
};
template struct opened<&llama_context::graph_params>;

} // namespace

ggml_cgraph * reserve_rows(llama_context & ctx, uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs, const llama_memory_context_i * mctx,
                           bool split_only, size_t * sizes) {
    // This call forgets the earlier graphs of the context, which a reset of the scheduler makes invalid.
    if (!ctx.graph_reserve(n_tokens, n_seqs, n_outputs, mctx, true)) {
        return nullptr;
    }
    ggml_backend_sched_t sched = ctx.get_sched();
    ggml_backend_sched_reset(sched);

    // As in `graph_reserve`, each sequence has the same number of rows.
    const uint32_t each = (n_tokens + n_seqs - 1) / n_seqs;
    const llama_model & model = ctx.get_model();
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

    llm_graph_result * result = ctx.get_gf_res_reserve();
    llm_graph_params   params = (ctx.*graph_params())(result, ubatch, mctx, LLM_GRAPH_TYPE_DEFAULT);
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
