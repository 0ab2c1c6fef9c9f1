#include "rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// How many rows are random, and how many random weights they have at least. The later rows repeat these.
constexpr int64_t min_random_rows = 16;
constexpr int64_t min_random_weights = 1 << 17;

// Neighbouring weights of this number get the same factor, which gives blocks of a type different scales.
constexpr size_t block_size = 32;

// The standard deviation of the logarithms of these factors. In the embedding of Gemma 3 270M, the scales of the blocks
// in a row have 0.37; in that of SmolLM2-135M 0.35; in other matrices 0.17 to 0.35. ggml looks up scales in a table of
// 256 KiB (`ggml_lookup_fp16_to_fp32`). With nearly equal scales, the used part of the table stays in the fastest cache,
// and the measured rate of Q8_0 was up to 30 % higher than that of a model.
constexpr float deviation_of_scales = 0.35f;

constexpr size_t max_tensors = 8192;

ggml_context_ptr new_context(size_t extra = 0) {
    ggml_init_params params = { ggml_tensor_overhead() * max_tensors + extra, nullptr, /*.no_alloc =*/ true };
    ggml_context_ptr ctx(ggml_init(params));
    if (!ctx) {
        throw std::bad_alloc();
    }
    return ctx;
}

std::vector<float> random_floats(size_t n) {
    std::mt19937 generator(42);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    // The numbers repeat with this period. It would take longer to draw millions of random numbers than to compute with
    // them.
    constexpr size_t period = 1 << 16;
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) {
        values[i] = i < period ? normal(generator) : values[i - period];
    }
    return values;
}

// Whether the first quantisation to this type makes a table, which takes seconds (ggml.c, ggml_quantize_init).
bool is_slow_to_quantize(ggml_type type) {
    switch (type) {
        case GGML_TYPE_IQ1_S: case GGML_TYPE_IQ1_M: case GGML_TYPE_IQ2_XXS: case GGML_TYPE_IQ2_XS: case GGML_TYPE_IQ2_S:
        case GGML_TYPE_IQ3_XXS: case GGML_TYPE_IQ3_S: return true;
        default: return false;
    }
}

// Random weights whose blocks have different scales, as in a file.
std::vector<float> random_weights(size_t n) {
    std::vector<float> weights = random_floats(n);
    std::mt19937 generator(7);
    std::normal_distribution<float> logarithm(0.0f, deviation_of_scales);
    for (size_t at = 0; at < n; at += block_size) {
        const float factor = std::exp(logarithm(generator));
        std::for_each(weights.begin() + at, weights.begin() + std::min(at + block_size, n), [&](float & weight) { weight *= factor; });
    }
    return weights;
}

// Random bytes for a tensor of this type and width, with numbers like those in a file. They contain no denormals, with
// which some CPUs compute a hundred times slower.
std::vector<uint8_t> random_bytes(ggml_type type, int64_t width, size_t size) {
    const size_t row = ggml_row_size(type, width);
    const int64_t random_rows = std::max(min_random_rows, min_random_weights / width);
    std::vector<uint8_t> pattern(row * random_rows);
    if (is_slow_to_quantize(type)) {
        // For these types any bits are valid, because they are indices into grids.
        std::mt19937 generator(42);
        std::generate(pattern.begin(), pattern.end(), [&] { return (uint8_t) generator(); });
    } else {
        const std::vector<float> values = random_weights(width * random_rows);
        ggml_quantize_chunk(type, values.data(), pattern.data(), 0, random_rows, width, nullptr);
    }
    std::vector<uint8_t> bytes(size);
    for (size_t at = 0; at < size; at += pattern.size()) {
        std::memcpy(bytes.data() + at, pattern.data(), std::min(pattern.size(), size - at));
    }
    return bytes;
}

bool is_cpu(ggml_backend_dev_t device) {
    return ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// Whether the device can compute with a weight in a buffer of this type (llama-model-loader.cpp,
// weight_buft_supported).
bool computes_with(ggml_backend_dev_t device, ggml_tensor * weight, const ggml_tensor * node, ggml_backend_buffer_type_t buft) {
    ggml_backend_buffer_ptr dummy(ggml_backend_buft_alloc_buffer(buft, 0));
    weight->buffer = dummy.get();
    const bool supported = ggml_backend_dev_supports_op(device, node);
    weight->buffer = nullptr;
    return supported;
}

// The buffer type that a load would use for a weight. The CPU's own types (repacked, AMX) are preferred, unless a GPU
// pins host memory (llama-model.cpp, make_cpu_buft_list). If a GPU does, a load uses pinned memory, or plain memory if
// files are mapped.
ggml_backend_buffer_type_t weight_buft(const shim_bench & bench, ggml_tensor * weight, const ggml_tensor * node) {
    ggml_backend_dev_t device = bench.device;
    if (is_cpu(device) && bench.repack) {
        auto extra_bufts = (ggml_backend_dev_get_extra_bufts_t)
            ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
        for (auto * buft = extra_bufts ? extra_bufts(device) : nullptr; buft && *buft; ++buft) {
            if (computes_with(device, weight, node, *buft)) {
                return *buft;
            }
        }
    }
    return ggml_backend_dev_buffer_type(device);
}

uint64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The lower quartile of the times of some runs. Other programs, or a limit on processor time, can only make a run
// longer.
uint64_t lower_quartile(std::vector<uint64_t> runs) {
    std::nth_element(runs.begin(), runs.begin() + runs.size() / 4, runs.end());
    return runs[runs.size() / 4];
}

// Repeats a call until the budget is spent, and returns the time of each call. A single call that the system interrupts
// may take the whole budget, so there is a minimum number of calls.
std::vector<uint64_t> repeat_for(uint64_t budget_ns, size_t min_runs, const std::function<void()> & call) {
    constexpr size_t max_runs = 101;
    const uint64_t begin = now_ns();
    uint64_t before = begin;
    std::vector<uint64_t> runs;
    do {
        call();
        const uint64_t now = now_ns();
        runs.push_back(now - before);
        before = now;
    } while (runs.size() < min_runs || (before - begin < budget_ns && runs.size() < max_runs));
    return runs;
}

// The typical time of a call. The first call is a warm-up, and its time is not counted: for a prompt it takes a quarter
// longer.
uint64_t typical_ns(uint64_t budget_ns, const std::function<void()> & call) {
    call();
    return lower_quartile(repeat_for(budget_ns, 3, call));
}

// Waits for a computation on another machine by reading a byte of its result. The RPC backend does not wait for
// requests that have no answer (ggml-rpc.cpp, ggml_backend_rpc_synchronize). But answers come in the order of the
// requests.
void answer(const ggml_tensor * tensor) {
    uint8_t first;
    ggml_backend_tensor_get(tensor, &first, 0, 1);
}

// The time `took` includes an answer over the connection. Subtracts the time of that answer.
uint64_t without_answer(const shim_bench & bench, const ggml_tensor * tensor, uint64_t budget_ns, uint64_t took) {
    const uint64_t trip = bench.remote ? typical_ns(budget_ns, [&] { answer(tensor); }) : 0;
    return took - std::min(trip, took - 1);
}

void compute(shim_bench & bench, ggml_cgraph * graph) {
    if (ggml_backend_graph_compute(bench.backend.get(), graph) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("the device could not compute an operation that it supports");
    }
    if (bench.remote) {
        answer(ggml_graph_node(graph, -1));
    }
}

// A graph with several copies of one operation, and the data for them.
struct graph {
    explicit graph(shim_bench & bench) : bench(bench), large(new_context()), small(new_context()),
        ctx(new_context(ggml_graph_overhead_custom(max_tensors, false))), gf(ggml_new_graph_custom(ctx.get(), max_tensors, false)) {}

    // A tensor of weights or of a cache, which the graph reads or writes.
    ggml_tensor * data(ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2 = 1) {
        return ggml_new_tensor_3d(large.get(), type, ne0, ne1, ne2);
    }

    // A tensor of activations, a mask or positions.
    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1) {
        return ggml_new_tensor_3d(small.get(), type, ne0, ne1, ne2);
    }

    void add(ggml_tensor * node) {
        ggml_build_forward_expand(gf, node);
        results.push_back(node);
    }

    // Allocates and fills all tensors. The tensors in `large` must have the same shape.
    shim_measured allocate() {
        for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
            const ggml_tensor * node = ggml_graph_node(gf, i);
            const bool computes = node->op != GGML_OP_VIEW && node->op != GGML_OP_RESHAPE && node->op != GGML_OP_PERMUTE;
            if (computes && !ggml_backend_dev_supports_op(bench.device, node)) {
                return SHIM_MEASURED_UNSUPPORTED;
            }
        }
        ggml_backend_buffer_type_t own = ggml_backend_dev_buffer_type(bench.device);
        ggml_backend_buffer_type_t buft = own;
        ggml_tensor * first = ggml_get_first_tensor(large.get());
        const ggml_tensor * reader = ggml_graph_node(gf, 0);
        if (first && (reader->op == GGML_OP_MUL_MAT || reader->op == GGML_OP_MUL_MAT_ID)) {
            buft = weight_buft(bench, first, reader);
        }
        if (first) {
            buffers.emplace_back(ggml_backend_alloc_ctx_tensors_from_buft(large.get(), buft));
            if (!buffers.back()) {
                return SHIM_MEASURED_NO_ROOM;
            }
            ggml_backend_buffer_set_usage(buffers.back().get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        }
        buffers.emplace_back(ggml_backend_alloc_ctx_tensors_from_buft(small.get(), own));
        galloc.reset(ggml_gallocr_new(own));
        if (!buffers.back() || !ggml_gallocr_alloc_graph(galloc.get(), gf)) {
            return SHIM_MEASURED_NO_ROOM;
        }
        fill();
        return SHIM_MEASURED_DONE;
    }

    void fill() {
        ggml_tensor * first = ggml_get_first_tensor(large.get());
        std::vector<uint8_t> bytes;
        for (ggml_tensor * t = first; t; t = ggml_get_next_tensor(large.get(), t)) {
            // On the CPU only the first tensor is set, and ggml may rearrange it for the type of its buffer. All
            // tensors here are equal, so the others get copies of the result.
            if (t != first && is_cpu(bench.device)) {
                std::memcpy(t->data, first->data, ggml_nbytes(t));
                continue;
            }
            if (bytes.empty()) {
                bytes = t->type == GGML_TYPE_I8 ? std::vector<uint8_t>(ggml_nbytes(t)) : random_bytes(t->type, t->ne[0], ggml_nbytes(t));
            }
            ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size());
        }
        for (ggml_tensor * t = ggml_get_first_tensor(small.get()); t; t = ggml_get_next_tensor(small.get(), t)) {
            // All tensors except for activations are zeros: a mask that hides no cell, the first position, the first
            // expert.
            const bool activations = t->type == GGML_TYPE_F32;
            const std::vector<float> values = activations ? random_floats(ggml_nelements(t)) : std::vector<float>(ggml_nbytes(t));
            ggml_backend_tensor_set(t, values.data(), 0, ggml_nbytes(t));
        }
    }

    shim_bench & bench;
    ggml_context_ptr large;
    ggml_context_ptr small;
    ggml_context_ptr ctx;
    ggml_cgraph * gf;
    std::vector<ggml_tensor *> results;
    std::vector<ggml_backend_buffer_ptr> buffers;
    ggml_gallocr_ptr galloc;
};

// The time of a graph of independent operations on the CPU. The graph is computed in parts of some milliseconds each.
// For the whole graph at once, the budget would often be enough for only one run, and nearly every run would use up a
// container's quota. The parts are computed in turn. So when a part is computed again, its memory is no longer in a CPU
// cache.
uint64_t in_parts_ns(graph & g, uint64_t budget_ns) {
    // For each graph, the threads need some microseconds to start. A part must take much longer than that.
    constexpr uint64_t part_ns = 2'000'000;
    const uint64_t begin = now_ns();
    compute(g.bench, g.gf);
    const uint64_t n_operations = g.results.size();
    const uint64_t n_parts = std::clamp<uint64_t>((now_ns() - begin) / part_ns, 1, n_operations);
    const auto first_of = [&](uint64_t part) { return part * n_operations / n_parts; };

    // Maximum number of nodes and leaves. For attention, each operation has eleven.
    const size_t max_nodes = 16 * (n_operations / n_parts + 1);
    ggml_context_ptr ctx = new_context(n_parts * ggml_graph_overhead_custom(max_nodes, false));
    std::vector<ggml_cgraph *> parts;
    for (uint64_t i = 0; i < n_parts; ++i) {
        parts.push_back(ggml_new_graph_custom(ctx.get(), max_nodes, false));
        for (uint64_t n = first_of(i); n < first_of(i + 1); ++n) {
            ggml_build_forward_expand(parts.back(), g.results[n]);
        }
    }
    size_t next = 0;
    const size_t min_runs = n_parts > 1 ? 8 : 3;
    std::vector<uint64_t> runs = repeat_for(budget_ns, min_runs, [&] { compute(g.bench, parts[next++ % n_parts]); });
    for (size_t i = 0; i < runs.size(); ++i) {
        const uint64_t part = i % n_parts;
        runs[i] = runs[i] * n_operations / (first_of(part + 1) - first_of(part));
    }
    return std::max<uint64_t>(lower_quartile(std::move(runs)), 1);
}

// The experts that each token uses. If there are enough experts, each operation of the graph uses other ones.
struct choice {
    ggml_tensor * ids;
    int64_t       turn;
};

void set_choices(const std::vector<choice> & choices, int64_t n_expert) {
    for (const auto & [ids, turn] : choices) {
        const int64_t n_used = ids->ne[0];
        std::vector<int32_t> values(ggml_nelements(ids));
        for (size_t i = 0; i < values.size(); ++i) {
            const int64_t token = (int64_t) i / n_used;
            // The factor 7 makes neighbouring tokens choose different experts. No token chooses an expert twice.
            values[i] = (int32_t) ((turn * n_used + token * 7 + (int64_t) i % n_used) % n_expert);
        }
        ggml_backend_tensor_set(ids, values.data(), 0, ggml_nbytes(ids));
    }
}

void build_matrix(graph & g, const shim_operation & op, shim_timing & timing) {
    ggml_tensor * input = g.input(GGML_TYPE_F32, op.n_in, op.n_tokens);
    for (int64_t i = 0; i < op.n_repeat; ++i) {
        ggml_tensor * weight = g.data(op.type, op.n_in, op.n_out);
        g.add(ggml_mul_mat(g.ctx.get(), weight, input));
        timing.bytes += ggml_nbytes(weight);
    }
}

void build_experts(graph & g, const shim_operation & op, shim_timing & timing, std::vector<choice> & choices) {
    ggml_tensor * input = g.input(GGML_TYPE_F32, op.n_in, 1, op.n_tokens);
    const int64_t turns = std::max<int64_t>(op.n_expert / op.n_used, 1);
    ggml_tensor * weight = nullptr;
    for (int64_t i = 0; i < op.n_repeat; ++i) {
        if (i % turns == 0) {
            weight = g.data(op.type, op.n_in, op.n_out, op.n_expert);
        }
        ggml_tensor * ids = g.input(GGML_TYPE_I32, op.n_used, op.n_tokens);
        choices.push_back({ ids, i % turns });
        g.add(ggml_mul_mat_id(g.ctx.get(), weight, input, ids));
        timing.bytes += ggml_nbytes(weight) / op.n_expert * op.n_used;
    }
}

// Attention as build_attn_mha in llama-graph.cpp computes it, on views as get_k and get_v in llama-kv-cache.cpp make
// them.
void build_attention(graph & g, const shim_operation & op, shim_timing & timing) {
    ggml_context * ctx = g.ctx.get();
    ggml_tensor * query = g.input(GGML_TYPE_F32, op.head_size, op.n_head, op.n_tokens);
    ggml_tensor * mask  = g.input(GGML_TYPE_F16, op.n_kv, op.n_tokens);
    const int64_t width = op.head_size * op.n_head_kv;
    const auto cache = [&]() {
        ggml_tensor * layer = g.data(op.type, width, op.n_kv);
        timing.bytes += ggml_nbytes(layer);
        ggml_tensor * view = ggml_view_4d(ctx, layer, op.head_size, op.n_head_kv, op.n_kv, 1, ggml_row_size(op.type, op.head_size),
            ggml_row_size(op.type, width), ggml_row_size(op.type, width * op.n_kv), 0);
        return ggml_permute(ctx, view, 0, 2, 1, 3);
    };
    for (int64_t i = 0; i < op.n_repeat; ++i) {
        ggml_tensor * q = ggml_permute(ctx, query, 0, 2, 1, 3);
        ggml_tensor * k = cache();
        ggml_tensor * v = cache();
        ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, mask, 1.0f / std::sqrt((float) op.head_size), 0.0f, 0.0f);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        g.add(out);
    }
}

// The computations of a block except for its matrices and its attention (src/models/llama.cpp).
void build_block(graph & g, const shim_operation & op) {
    ggml_context * ctx = g.ctx.get();
    const int64_t n_embd = op.n_in;
    const int64_t width_kv = op.head_size * op.n_head_kv;
    ggml_tensor * cur  = g.input(GGML_TYPE_F32, n_embd, op.n_tokens);
    ggml_tensor * q_in = g.input(GGML_TYPE_F32, op.head_size, op.n_head, op.n_tokens);
    ggml_tensor * k_in = g.input(GGML_TYPE_F32, op.head_size, op.n_head_kv, op.n_tokens);
    ggml_tensor * gate = g.input(GGML_TYPE_F32, op.n_out, op.n_tokens);
    ggml_tensor * up   = g.input(GGML_TYPE_F32, op.n_out, op.n_tokens);
    ggml_tensor * norm = g.input(GGML_TYPE_F32, n_embd);
    ggml_tensor * position = g.input(GGML_TYPE_I32, op.n_tokens);
    ggml_tensor * cell = g.input(GGML_TYPE_I64, op.n_tokens);
    const auto normed = [&](ggml_tensor * x) { return ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-5f), norm); };
    const auto turned = [&](ggml_tensor * x) {
        return ggml_rope_ext(ctx, x, position, nullptr, (int) op.head_size, 0, 4096, 10000.0f, 1.0f, 0.0f, 1.0f, 32.0f, 1.0f);
    };
    const auto stored = [&](ggml_tensor * x) {
        ggml_tensor * cache = g.data(op.type, width_kv, 256);
        return ggml_set_rows(ctx, cache, ggml_reshape_2d(ctx, x, width_kv, op.n_tokens), cell);
    };
    for (int64_t i = 0; i < op.n_repeat; ++i) {
        g.add(normed(cur));
        g.add(turned(q_in));
        g.add(stored(turned(k_in)));
        g.add(stored(k_in));
        ggml_tensor * attended = ggml_add(ctx, cur, cur);
        g.add(normed(attended));
        g.add(ggml_swiglu_split(ctx, gate, up));
        cur = ggml_add(ctx, attended, attended);
        g.add(cur);
    }
}

// The computations with which a block chooses experts and adds up their results (llama-graph.cpp, build_moe_ffn).
void build_routing(graph & g, const shim_operation & op) {
    ggml_context * ctx = g.ctx.get();
    ggml_tensor * logits  = g.input(GGML_TYPE_F32, op.n_expert, op.n_tokens);
    ggml_tensor * experts = g.input(GGML_TYPE_F32, op.n_in, op.n_used, op.n_tokens);
    for (int64_t i = 0; i < op.n_repeat; ++i) {
        ggml_tensor * probs = ggml_soft_max(ctx, logits);
        ggml_tensor * chosen = ggml_argsort_top_k(ctx, probs, (int) op.n_used);
        ggml_tensor * weights = ggml_get_rows(ctx, ggml_reshape_3d(ctx, probs, 1, op.n_expert, op.n_tokens), chosen);
        weights = ggml_reshape_2d(ctx, weights, op.n_used, op.n_tokens);
        ggml_tensor * sum = ggml_clamp(ctx, ggml_sum_rows(ctx, weights), 6.103515625e-5f, std::numeric_limits<float>::infinity());
        weights = ggml_reshape_3d(ctx, ggml_div(ctx, weights, sum), 1, op.n_used, op.n_tokens);
        ggml_tensor * weighted = ggml_mul(ctx, experts, weights);
        ggml_tensor * out = nullptr;
        for (int64_t n = 0; n < op.n_used; ++n) {
            ggml_tensor * one = ggml_view_2d(ctx, weighted, op.n_in, op.n_tokens, weighted->nb[2], n * weighted->nb[1]);
            out = out ? ggml_add(ctx, out, one) : one;
        }
        g.add(out);
    }
}

} // namespace

shim_bench * bench_new(ggml_backend_dev_t device, int32_t n_threads, bool repack) {
    ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    if (!backend) {
        throw std::runtime_error("the device does not open");
    }
    auto set_n_threads = (ggml_backend_set_n_threads_t)
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
    if (set_n_threads) {
        set_n_threads(backend.get(), n_threads);
    }
    threadpool_ptr threads;
    if (is_cpu(device)) {
        threads = new_threadpool(n_threads, true);
        use_threadpool(backend.get(), threads.get());
    }
    const bool remote = std::string(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device))) == "RPC";
    return new shim_bench { device, std::move(threads), std::move(backend), repack, remote };
}

shim_measured bench_time(shim_bench & bench, const shim_operation & op, uint64_t budget_ns, shim_timing & timing) {
    timing = {};
    graph g(bench);
    std::vector<choice> choices;
    switch (op.kind) {
        case SHIM_OPERATION_MATRIX:    build_matrix(g, op, timing);             break;
        case SHIM_OPERATION_EXPERTS:   build_experts(g, op, timing, choices);   break;
        case SHIM_OPERATION_ATTENTION: build_attention(g, op, timing);          break;
        case SHIM_OPERATION_BLOCK:     build_block(g, op);                      break;
        case SHIM_OPERATION_ROUTING:   build_routing(g, op);                    break;
    }
    const shim_measured allocated = g.allocate();
    if (allocated != SHIM_MEASURED_DONE) {
        return allocated;
    }
    set_choices(choices, op.n_expert);
    const bool independent = op.kind != SHIM_OPERATION_BLOCK && op.kind != SHIM_OPERATION_ROUTING;
    timing.graph_ns = is_cpu(bench.device) && independent ? in_parts_ns(g, budget_ns)
                                                          : typical_ns(budget_ns, [&] { compute(bench, g.gf); });
    timing.graph_ns = without_answer(bench, ggml_graph_node(g.gf, -1), budget_ns, timing.graph_ns);
    return SHIM_MEASURED_DONE;
}

shim_measured bench_link(shim_bench & bench, size_t bytes, size_t width, uint64_t budget_ns, shim_link & link) {
    link = {};
    graph g(bench);
    ggml_tensor * input = g.input(GGML_TYPE_F32, (int64_t) width);
    ggml_tensor * output = ggml_scale(g.ctx.get(), input, 0.5f);
    g.add(output);
    // No operation computes with this block; it is only copied.
    ggml_tensor * block = g.data(GGML_TYPE_I8, (int64_t) bytes, 1);
    ggml_context_ptr ctx = new_context();
    ggml_tensor * host = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I8, (int64_t) bytes);
    // On the host the data lie in plain memory, as mapped weights do.
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
    if (!buffer) {
        return SHIM_MEASURED_NO_ROOM;
    }
    ggml_backend_buffer_clear(buffer.get(), 1);
    const shim_measured allocated = g.allocate();
    if (allocated != SHIM_MEASURED_DONE) {
        return allocated;
    }
    ggml_backend_t backend = bench.backend.get();
    link.upload_ns = typical_ns(budget_ns / 3, [&] {
        ggml_backend_tensor_set(block, host->data, 0, bytes);
        ggml_backend_synchronize(backend);
        if (bench.remote) {
            answer(block);
        }
    });
    link.upload_ns = without_answer(bench, block, budget_ns / 3, link.upload_ns);
    link.download_ns = typical_ns(budget_ns / 3, [&] {
        ggml_backend_tensor_get(block, host->data, 0, bytes);
        ggml_backend_synchronize(backend);
    });
    std::vector<float> activations(width);
    link.crossing_ns = typical_ns(budget_ns / 3, [&] {
        ggml_backend_tensor_set_async(backend, input, activations.data(), 0, ggml_nbytes(input));
        if (ggml_backend_graph_compute_async(backend, g.gf) != GGML_STATUS_SUCCESS) {
            throw std::runtime_error("the device could not compute an operation that it supports");
        }
        ggml_backend_tensor_get_async(backend, output, activations.data(), 0, ggml_nbytes(output));
        ggml_backend_synchronize(backend);
    });
    return SHIM_MEASURED_DONE;
}
