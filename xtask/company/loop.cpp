// The bare loop of a llama.cpp program, for `cargo xtask company`. It is written in C++, because it is linked with
// builds of llama.cpp other than ours. The crate `bare-llama` has the same loop for comparisons within one process.
//
//     loop MODEL PROMPT TOKENS THREADS POLL
//
// Loads the model, computes the prompt, generates TOKENS tokens (always the likeliest token), and prints the seconds of
// prompt and generation. POLL is the polling level of a threadpool; with -1, no threadpool is attached.
#include "ggml-cpu.h"
#include "llama.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static void quiet(ggml_log_level, const char *, void *) {}

int main(int argc, char ** argv) {
    if (argc != 6) {
        std::fprintf(stderr, "usage: loop MODEL PROMPT TOKENS THREADS POLL\n");
        return 2;
    }
    const char * prompt = argv[2];
    const int n_tokens  = std::atoi(argv[3]);
    const int n_threads = std::atoi(argv[4]);
    const int poll      = std::atoi(argv[5]);
    llama_log_set(quiet, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    llama_context_params params = llama_context_default_params();
    params.n_ctx           = 4096;
    params.n_threads       = n_threads;
    params.n_threads_batch = n_threads;
    llama_context * context = model ? llama_init_from_model(model, params) : nullptr;
    if (!context) {
        std::fprintf(stderr, "%s does not load\n", argv[1]);
        return 1;
    }
    if (poll >= 0) {
        ggml_threadpool_params pool = ggml_threadpool_params_default(n_threads);
        pool.poll = (uint32_t) poll;
        ggml_threadpool_t threads = ggml_threadpool_new(&pool);
        llama_attach_threadpool(context, threads, threads);
    }
    // A byte may become three tokens: a vocabulary without words writes a space as the three bytes of U+2581.
    std::vector<llama_token> tokens(3 * std::strlen(prompt) + 8);
    const int n_prompt = llama_tokenize(llama_model_get_vocab(model), prompt, (int) std::strlen(prompt), tokens.data(), (int) tokens.size(), true, true);
    if (n_prompt < 0) {
        std::fprintf(stderr, "the prompt has %d tokens\n", -n_prompt);
        return 1;
    }
    llama_sampler * sampler = llama_sampler_init_greedy();

    const auto begin = std::chrono::steady_clock::now();
    int code = llama_decode(context, llama_batch_get_one(tokens.data(), n_prompt));
    for (int i = 0; i < n_tokens && code == 0; ++i) {
        llama_token next = llama_sampler_sample(sampler, context, -1);
        if (i + 1 == n_tokens) {
            break;
        }
        code = llama_decode(context, llama_batch_get_one(&next, 1));
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (code != 0) {
        std::fprintf(stderr, "llama_decode returned %d\n", code);
        return 1;
    }
    std::printf("%.4f\n", took.count());
}
