// The only door to the parts of llama.cpp that can throw, that exist in C++ only, or that can end the process.
//
// Every function that can fail takes a `shim_error` (may not be NULL), sets its status and message, and returns a
// neutral value. No exception leaves this file.
#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

enum shim_status {
    SHIM_STATUS_OK            = 0,
    SHIM_STATUS_EXCEPTION     = 1, // a C++ exception, message as thrown
    SHIM_STATUS_OUT_OF_MEMORY = 2, // std::bad_alloc: host memory
    SHIM_STATUS_ASSERTION     = 3, // a GGML_ASSERT or GGML_ABORT that the guard turned into an error
};

struct shim_error {
    enum shim_status status;
    char             message[2048];
};

// The bytes of one buffer type of a context: see `llama_get_memory_breakdown` in llama-ext.h.
struct shim_memory_row {
    ggml_backend_buffer_type_t buft;
    ggml_backend_dev_t         device; // NULL for buffer types without one
    bool                       is_host;
    uint64_t                   model;
    uint64_t                   transforms; // of weights that were folded in their file: see `prism.hadamard` in llama-model.cpp
    uint64_t                   context; // KV cache and recurrent state
    uint64_t                   experts; // the cache of experts: see `moe_cache_size` in llama.h
    uint64_t                   compute;
    uint64_t                   output; // the buffer of logits and embeddings, as large as it may grow
};

// The compute buffers of a context. Both counts begin with the context: how often a computation had to reserve its
// graph again although each of its operations had a device as before. Buffers grow only then, and need not grow.
struct shim_compute_buffers {
    uint64_t bytes;           // of all devices
    uint32_t n_reallocs_same; // for a graph as large as the last one
    uint32_t n_reallocs_diff; // for a graph of another size
};

// The layers whose experts a cache would hold (llama-moe-cache.cpp): all their experts lie in host memory, and they
// belong to a GPU.
struct shim_moe_cache_shape {
    uint32_t n_layer;
    uint32_t n_gpu; // GPUs of the model
    bool     splits_tensors;
    uint64_t least; // a smaller cache would hold none of these layers
    uint64_t most;  // enough for all their experts
};

// How often computations used an expert that the cache of a context held, and how often one had to be loaded first.
// With several tokens in a batch an expert counts for each. llama.cpp keeps its own counts to itself, and logs them
// when the context ends.
struct shim_moe_counts {
    struct llama_context * ctx;
    uint64_t               hits;
    uint64_t               misses;
};

// Shapes of the model that llama.h does not tell.
struct shim_model_shape {
    uint32_t n_layer;      // blocks, nextn included
    uint32_t n_expert;
    uint32_t head_k_block; // greatest common divisor over the layers of the K head width
    uint32_t head_v_block; // the same for V
    bool     causal;
};

// One tensor of a model: what it is, and where its data lies or with no_alloc would.
struct shim_tensor {
    const char *               name; // lives as long as the model
    enum ggml_type             type;
    int64_t                    ne[GGML_MAX_DIMS];
    ggml_backend_buffer_type_t buft; // NULL for one without a buffer
    bool                       is_host;
};

// What the libraries were built from, and how their compiler lays out what crosses between them and a program: data, to
// be read before any call.
struct shim_build_info {
    char     text[128];
    uint32_t sizes[18];
};
extern const struct shim_build_info shim_build;

// Replaces ggml's abort by an exception while the calling thread is inside a guarded function of this file; elsewhere
// (worker threads, the middle of a graph) the message goes to the log and the process ends as before.
void shim_install_abort_guard(void);

// llama_backend_init, and the first look into ggml's registry, which starts every backend that is compiled in.
bool shim_init(struct shim_error * error);

// Writes up to `n_max` names of architectures and returns how many llama.cpp knows, those included that it cannot load.
int32_t shim_architectures(const char ** names, int32_t n_max);

// Free and total bytes: backends ask their driver here, and some of them throw.
bool shim_device_memory(ggml_backend_dev_t device, size_t * free, size_t * total, struct shim_error * error);
bool shim_device_props (ggml_backend_dev_t device, struct ggml_backend_dev_props * props, struct shim_error * error);
// The buffer type of its own memory, or of the host's that its driver pins (NULL where it pins none). Vulkan opens the
// device for it.
ggml_backend_buffer_type_t shim_device_buft(ggml_backend_dev_t device, bool pinned, struct shim_error * error);

// A pool of the CPU backend's threads, the computing one included; they start now. NULL where they cannot.
ggml_threadpool_t shim_threadpool_new(int32_t n_threads, struct shim_error * error);
void              shim_threadpool_free(ggml_threadpool_t pool);
// Has a CPU backend compute with `pool` from the next graph on. Both `pool` and the pool before it must live.
void              shim_threadpool_use(ggml_backend_t cpu, ggml_threadpool_t pool);

struct llama_model * shim_model_load(const char * path, const struct llama_model_params * params, struct shim_error * error);
void                 shim_model_free(struct llama_model * model);
// A model of all tensors that the architecture can have, zeroed, from the metadata of the GGUF file at `path`.
struct llama_model * shim_model_from_metadata(const char * path, const struct llama_model_params * params, struct shim_error * error);
bool                 shim_model_save(const struct llama_model * model, const char * path, struct shim_error * error);
// Writes up to `n_max` tensors and returns how many there are: one that is in several buffers is there as often.
int32_t              shim_model_tensors(const struct llama_model * model, struct shim_tensor * tensors, int32_t n_max);
void                 shim_model_shape(const struct llama_model * model, struct shim_model_shape * shape);
void                 shim_model_moe_cache_shape(const struct llama_model * model, struct shim_moe_cache_shape * shape);
int32_t              shim_model_n_devices(const struct llama_model * model);
ggml_backend_dev_t   shim_model_device(const struct llama_model * model, int32_t index);

struct llama_context * shim_context_init(struct llama_model * model, const struct llama_context_params * params, struct shim_error * error);
// Returns llama_decode's result; not guarded against aborts, because other threads may be waiting inside the graph.
int32_t shim_decode(struct llama_context * ctx, const struct llama_batch * batch, struct shim_error * error);
bool    shim_synchronize(struct llama_context * ctx, struct shim_error * error);
// NULL when there are no such logits.
float * shim_logits(struct llama_context * ctx, int32_t index, struct shim_error * error);
// Writes up to `n_max` rows and returns how many there are. A context of a model without data is reserved again for
// this, so that it says what one with data would hold.
int32_t shim_memory_breakdown(struct llama_context * ctx, struct shim_memory_row * rows, int32_t n_max, struct shim_error * error);
// Copies of a graph that may be computed at once: 1, or 4 with pipeline parallelism.
int32_t shim_context_copies(const struct llama_context * ctx);
void    shim_context_compute_buffers(const struct llama_context * ctx, struct shim_compute_buffers * buffers);
// Counts from now on, until graphs are reserved anew: to be called before each computation. `counts` has to live as
// long as the context, and names it.
void    shim_context_count_experts(struct llama_context * ctx, struct shim_moe_counts * counts);
// Whether moving positions turns keys and does nothing else to them: with YaRN's factors each rotation scales them too.
bool    shim_context_rope_only_rotates(const struct llama_context * ctx);
// Grows the compute buffers to what a graph of so many tokens takes at the context's full length. False where
// they find no room.
bool    shim_context_reserve(struct llama_context * ctx, uint32_t n_tokens, struct shim_error * error);

// Predicting further tokens (MTP).

// Has the context give out hidden states, which prediction blocks go on from: of every token, or of outputs alone.
// Its graphs are reserved anew at once: their buffers are freed first, and grow back to what a prompt and a token of
// each sequence take.
bool    shim_context_output_hidden(struct llama_context * ctx, bool outputs_only, struct shim_error * error);
// NULL when there is no such state.
float * shim_hidden(struct llama_context * ctx, int32_t index, struct shim_error * error);

// Embeddings.

// What decides how a model embeds.
struct shim_embedding_shape {
    uint32_t n_embd_out;  // width of an embedding
    uint32_t n_cls_out;   // outputs of the classification head, as the header says
    uint32_t n_head_out;  // outputs of the head that the file has; 0 without one
    uint32_t n_positions; // rows of the table of learned positions; 0 without one
    int32_t  pooling;     // the model's own: an enum llama_pooling_type, or whatever the header says
};
void    shim_model_embedding_shape(const struct llama_model * model, struct shim_embedding_shape * shape);
// Returns llama_encode's result; not guarded, as shim_decode.
int32_t shim_encode(struct llama_context * ctx, const struct llama_batch * batch, struct shim_error * error);
// NULL when there is no such embedding.
float * shim_embeddings_seq(struct llama_context * ctx, llama_seq_id seq, struct shim_error * error);
float * shim_embeddings_ith(struct llama_context * ctx, int32_t index, struct shim_error * error);

bool shim_memory_clear  (struct llama_context * ctx, bool data, struct shim_error * error);
bool shim_memory_seq_rm (struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, struct shim_error * error);
// Whether a part of a sequence can be copied: memories with an indexer copy whole sequences, and assert it.
bool shim_memory_copies_parts(const struct llama_context * ctx);
bool shim_memory_seq_cp (struct llama_context * ctx, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1, struct shim_error * error);
// Forgets what has left the sliding window of a sequence, in the layers that have one: they keep it while a cell has
// several sequences.
bool shim_memory_leave_window(struct llama_context * ctx, llama_seq_id seq, struct shim_error * error);
// Carries out what is pending: copies between sequences, and the rotation of keys whose positions were moved.
bool shim_memory_update (struct llama_context * ctx, struct shim_error * error);
bool shim_memory_seq_add(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta, struct shim_error * error);

// As llama_tokenize: the number of tokens, or minus the number needed.
int32_t shim_tokenize(const struct llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens, int32_t n_max,
                      bool add_special, bool parse_special, struct shim_error * error);
// As llama_token_to_piece: the number of bytes, or minus the number needed.
int32_t shim_token_to_piece(const struct llama_vocab * vocab, llama_token token, char * buf, int32_t length, int32_t lstrip, bool special,
                            struct shim_error * error);

// Adds a sampler that was just made to a chain, whose it becomes; false (and the sampler freed) on failure.
// NULL is refused.
struct llama_sampler * shim_sampler_chain(struct shim_error * error);
bool shim_sampler_add(struct llama_sampler * chain, struct llama_sampler * sampler, struct shim_error * error);
// What a sampler is made of. Each kind reads the numbers beside it.
enum shim_sampler_kind {
    SHIM_SAMPLER_KIND_GREEDY      = 0,
    SHIM_SAMPLER_KIND_DIST        = 1,  // seed
    SHIM_SAMPLER_KIND_TOP_K       = 2,  // count: k
    SHIM_SAMPLER_KIND_TOP_P       = 3,  // values: p; min_keep
    SHIM_SAMPLER_KIND_MIN_P       = 4,  // values: p; min_keep
    SHIM_SAMPLER_KIND_TYPICAL     = 5,  // values: p; min_keep
    SHIM_SAMPLER_KIND_TEMP        = 6,  // values: temperature
    SHIM_SAMPLER_KIND_TEMP_EXT    = 7,  // values: temperature, delta, exponent
    SHIM_SAMPLER_KIND_TOP_N_SIGMA = 8,  // values: n
    SHIM_SAMPLER_KIND_XTC         = 9,  // values: probability, threshold; min_keep, seed
    SHIM_SAMPLER_KIND_MIROSTAT    = 10, // values: tau, eta; count: m, n_vocab, seed
    SHIM_SAMPLER_KIND_MIROSTAT_V2 = 11, // values: tau, eta; seed
    SHIM_SAMPLER_KIND_ADAPTIVE_P  = 12, // values: target, decay; seed
};
struct shim_sampler_params {
    enum shim_sampler_kind kind;
    int32_t                count;
    int32_t                n_vocab;
    uint32_t               seed;
    size_t                 min_keep;
    float                  values[3];
};
struct llama_sampler * shim_sampler_new(const struct shim_sampler_params * params, struct shim_error * error);
struct llama_sampler * shim_sampler_penalties(int32_t n_vocab, int32_t last_n, float repeat, float freq, float present, struct shim_error * error);
struct llama_sampler * shim_sampler_logit_bias(int32_t n_vocab, int32_t n, const llama_logit_bias * bias, struct shim_error * error);
struct llama_sampler * shim_sampler_grammar(const struct llama_vocab * vocab, const char * grammar, const char * root, struct shim_error * error);
struct llama_sampler * shim_sampler_dry(const struct llama_vocab * vocab, float multiplier, float base, int32_t allowed_length,
                                        int32_t penalty_last_n, const char ** breakers, size_t n_breakers, struct shim_error * error);
llama_token shim_sampler_sample(struct llama_sampler * chain, struct llama_context * ctx, int32_t index, struct shim_error * error);
// Applies the chain to at least one candidate: filters, sorts and chooses in place, and may move `data` on
// within the array.
bool        shim_sampler_apply (struct llama_sampler * chain, llama_token_data_array * candidates, struct shim_error * error);
bool        shim_sampler_accept(struct llama_sampler * chain, llama_token token, struct shim_error * error);
// Applies the chain `n` times to a single candidate and tells it of no token: random numbers are drawn as
// for `n` choices.
bool        shim_sampler_skip  (struct llama_sampler * chain, size_t n, struct shim_error * error);

// The state of one sequence in pieces, none of them larger than a megabyte. False ends the call with an error.
typedef bool (*shim_put)(void * user, const void * data, size_t size);
typedef bool (*shim_take)(void * user, void * data, size_t size);
// Whether the memory holds something that cannot go back to an earlier token: a recurrent state, or windows in a cache
// shorter than the other layers'. That is what `partial` means below.
bool   shim_memory_has_partial(const struct llama_context * ctx);
// Bytes that shim_state_write would put.
size_t shim_state_stream_size(struct llama_context * ctx, llama_seq_id seq, bool partial, struct shim_error * error);
size_t shim_state_write(struct llama_context * ctx, llama_seq_id seq, bool partial, shim_put put, void * user, struct shim_error * error);
// Bytes of the stream that shim_state_write puts.
struct shim_range {
    uint64_t from;
    uint64_t size;
};
// Puts only these ranges of the stream, which ascend; without ranges (NULL), only the bytes between the rows of tensors. No other
// row is read. Returns the bytes of the whole stream.
size_t shim_state_write_ranges(struct llama_context * ctx, llama_seq_id seq, bool partial, const struct shim_range * ranges,
                               size_t n_ranges, shim_put put, void * user, struct shim_error * error);
// Takes `size` bytes at most, and returns how many. Where it fails, the sequence may hold some of them.
size_t shim_state_read (struct llama_context * ctx, llama_seq_id seq, bool partial, size_t size, shim_take take, void * user,
                        struct shim_error * error);

// Loads one backend library, or all in a folder.
void               shim_backend_load_all_from(const char * dir, struct shim_error * error);

// Major, minor and patch of the protocol that this build's RPC backend speaks.
void shim_rpc_protocol(uint8_t version[3]);
// Connects to an rpc-server and registers its devices. NULL without an error when this build has no RPC backend.
ggml_backend_reg_t shim_rpc_add_server(const char * endpoint, struct shim_error * error);
// Serves devices to one client after the other, and returns where it cannot. False when this build has no RPC backend.
bool shim_rpc_serve(const char * endpoint, size_t n_threads, ggml_backend_dev_t * devices, size_t n_devices, struct shim_error * error);

// ---- adapters ----

// What adapters hold in one buffer type: in no account of llama.cpp's.
struct shim_buffer_bytes {
    ggml_backend_buffer_type_t buft;
    ggml_backend_dev_t         device; // NULL for buffer types without one
    bool                       is_host;
    uint64_t                   bytes;
};

// A LoRA adapter of this model, which has to be freed (llama_adapter_lora_free) before it; without data if the model
// has none. Changes the model's list of adapters, which contexts read while they reserve their graphs.
struct llama_adapter_lora * shim_lora_load(struct llama_model * model, const char * path, struct shim_error * error);
// From now on the context computes with these adapters alone. Its graphs are reserved anew at once, where anything
// changed: their buffers are freed first, and grow back to what a prompt and a token of each sequence take.
bool shim_context_set_lora(struct llama_context * ctx, struct llama_adapter_lora ** adapters, float * scales, size_t n,
                           struct shim_error * error);
// Adds a vector of `n_embd` numbers to the output of each of the layers `il_start` to `il_end`; `data` begins with the
// vector of layer 1. NULL for `data` ends that. Reserves compute buffers as shim_context_set_lora does.
bool shim_context_set_control_vector(struct llama_context * ctx, const float * data, size_t len, int32_t n_embd, int32_t il_start,
                                     int32_t il_end, struct shim_error * error);
// Writes up to `n_max` rows and returns how many there are: the bytes of all adapters of the model, and with
// `control_vector` those of a context's control vector.
int32_t shim_adapter_bytes(const struct llama_model * model, bool control_vector, struct shim_buffer_bytes * rows, int32_t n_max,
                           struct shim_error * error);

// ---- measuring ----

// One of ggml's operations, as a graph of llama.cpp's has it. Each kind reads the numbers beside it,
// `n_tokens` and `n_repeat`.
enum shim_operation_kind {
    SHIM_OPERATION_MATRIX    = 0, // type, n_in, n_out
    SHIM_OPERATION_EXPERTS   = 1, // the same of each expert, n_expert, n_used
    SHIM_OPERATION_ATTENTION = 2, // type, head_size, n_head, n_head_kv, n_kv
    // beside matrices and attention: type of the cache, n_in, n_out (feed-forward), head_size, n_head, n_head_kv
    SHIM_OPERATION_BLOCK     = 3,
    SHIM_OPERATION_ROUTING   = 4, // the choice of experts: n_in, n_expert, n_used
};
struct shim_operation {
    enum shim_operation_kind kind;
    enum ggml_type           type;
    int64_t n_in;
    int64_t n_out;
    int64_t n_expert;
    int64_t n_used;
    int64_t head_size;
    int64_t n_head;
    int64_t n_head_kv;
    int64_t n_kv;
    int64_t n_tokens;
    int64_t n_repeat; // times in one graph, each with data of its own
};

enum shim_measured {
    SHIM_MEASURED_DONE        = 0,
    SHIM_MEASURED_UNSUPPORTED = 1, // the device has no such operation
    SHIM_MEASURED_NO_ROOM     = 2, // or no memory for its data
};
// The lower quartile of the times of one graph, and the bytes of weights or cache that it reads.
struct shim_timing {
    uint64_t graph_ns;
    uint64_t bytes;
};
// Lower quartiles of times: of copies to and from the device, and of a token's activations there, an operation
// on them, and back.
struct shim_link {
    uint64_t upload_ns;
    uint64_t download_ns;
    uint64_t crossing_ns;
};

// Opens a device to measure it. The CPU computes with so many threads, and may rearrange weights or not.
struct shim_bench;
struct shim_bench * shim_bench_new(ggml_backend_dev_t device, int32_t n_threads, bool repack, struct shim_error * error);
void                shim_bench_free(struct shim_bench * bench);
// Computes for at least `budget_ns`, and at least once. Not guarded, as shim_decode. All memory is given back.
enum shim_measured shim_bench_time(struct shim_bench * bench, const struct shim_operation * operation, uint64_t budget_ns,
                                   struct shim_timing * timing, struct shim_error * error);
// The way between the host's plain memory and the device: `bytes` to be copied, `width` activations of a token.
enum shim_measured shim_bench_link(struct shim_bench * bench, size_t bytes, size_t width, uint64_t budget_ns, struct shim_link * link,
                                   struct shim_error * error);

// ---- images and sound ----

// llama.cpp's tools/mtmd. In a build without it every call here fails with a message that says so.
struct mtmd_context;
struct mtmd_input_chunks;

bool shim_media_built(void);
// mtmd's own log, which llama_log_set does not set.
void shim_media_log(ggml_log_callback callback, void * user_data);

struct shim_media_params {
    ggml_backend_dev_t         device; // NULL: the host
    int32_t                    n_threads;
    enum llama_flash_attn_type flash_attn;
    int32_t                    image_min_tokens; // -1: what the file says
    int32_t                    image_max_tokens;
};
struct shim_media_shape {
    bool    has_image;
    bool    has_audio;
    bool    is_mrope;    // each row has four positions
    int32_t sample_rate; // in Hz, of sound; -1 without an encoder of sound
};
struct shim_media_row {
    ggml_backend_dev_t device;
    uint64_t           weights; // bytes
    uint64_t           compute; // bytes of buffers for the largest image
};
struct shim_media_limits {
    int32_t image_max_tokens; // -1: an image has the same number always, or the file does not say
    int32_t image_rows;       // of the largest image, or of each part of it; 0 without an encoder of images
    bool    is_non_causal;    // all rows of an image are computed at once: n_ubatch has to hold them
};

enum shim_media_kind {
    SHIM_MEDIA_TEXT  = 0,
    SHIM_MEDIA_IMAGE = 1,
    SHIM_MEDIA_AUDIO = 2,
};
// One part of a prompt. Each kind reads the fields beside it.
struct shim_media_part {
    enum shim_media_kind  kind;
    const char          * text; // not NUL-terminated
    size_t                text_len;
    bool                  parse_special;
    const unsigned char * rgb;  // width x height x 3
    uint32_t              width;
    uint32_t              height;
    const float         * samples;
    size_t                n_samples;
};
struct shim_media_chunk {
    enum shim_media_kind kind;
    const llama_token  * tokens;   // of a text
    size_t               n_tokens; // tokens, or rows of an encoder
    llama_pos            n_pos;    // positions that the chunk takes
    bool                 is_non_causal;
};
// Rows of an encoder, which are computed as tokens of a sequence.
struct shim_media_rows {
    const float     * values; // n_rows x width
    size_t            n_rows;
    size_t            width;
    const llama_pos * positions; // n_rows x n_sections
    size_t            n_sections;
    llama_seq_id      seq;
    bool              is_non_causal;
    bool              output_last;
};

// Writes what up to `n_max` devices hold of it, and to `n_rows` how many there are.
struct mtmd_context * shim_media_load(const char * path, const struct llama_model * model, const struct shim_media_params * params,
                                      struct shim_media_row * rows, int32_t n_max, int32_t * n_rows, struct shim_error * error);
void                  shim_media_free(struct mtmd_context * media);
bool                  shim_media_shape(const struct mtmd_context * media, struct shim_media_shape * shape, struct shim_error * error);
// Writes up to `n_max` devices and returns how many there are.
int32_t               shim_media_memory(const char * path, const struct shim_media_params * params, struct shim_media_limits * limits,
                                        struct shim_media_row * rows, int32_t n_max, struct shim_error * error);

struct mtmd_input_chunks * shim_media_tokenize(const struct mtmd_context * media, const struct shim_media_part * parts, size_t n_parts,
                                               bool add_special, struct shim_error * error);
void                       shim_media_chunks_free(struct mtmd_input_chunks * chunks);
size_t                     shim_media_chunks_size(const struct mtmd_input_chunks * chunks, struct shim_error * error);
bool                       shim_media_chunk(const struct mtmd_context * media, const struct mtmd_input_chunks * chunks, size_t index,
                                            struct shim_media_chunk * chunk, struct shim_error * error);
// Positions of each row one after the other: one, or the four of M-RoPE.
bool                       shim_media_positions(const struct mtmd_context * media, const struct mtmd_input_chunks * chunks, size_t index,
                                                llama_pos first, llama_pos * positions, size_t n_positions, struct shim_error * error);
// Not guarded, as shim_decode. `n_floats` are the rows of the chunk times the width of the model's input.
bool                       shim_media_encode(struct mtmd_context * media, const struct mtmd_input_chunks * chunks, size_t index, float * rows,
                                             size_t n_floats, struct shim_error * error);
// As shim_decode.
int32_t                    shim_media_decode(struct llama_context * ctx, const struct shim_media_rows * rows, struct shim_error * error);

#ifdef __cplusplus
}
#endif
