// The shim: the only way to the parts of llama.cpp that can throw, that exist only in C++, or that can end the process.
//
// Every function that can fail takes a `shim_error` that must not be NULL. On a failure it sets the status and the
// message, and returns a neutral value. No exception leaves this file.
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

// The compute buffers of a context. The counts begin when the context is created. They are the numbers of computations
// that had to reserve their graph again although each operation had the same device as before. A buffer grows only if a
// graph is reserved again, but a graph that is reserved again may also fit into the existing buffers.
struct shim_compute_buffers {
    uint64_t bytes;           // of all devices
    uint32_t n_reallocs_same; // for a graph as large as the last one
    uint32_t n_reallocs_diff; // for a graph of another size
};

// The layers whose experts a cache can contain (llama-moe-cache.cpp). These layers belong to a GPU, and all of their
// experts are in host memory.
struct shim_moe_cache_shape {
    uint32_t n_layer;
    uint32_t n_gpu; // GPUs of the model
    bool     splits_tensors;
    uint64_t least; // minimum bytes of a cache that holds any of these layers
    uint64_t most;  // bytes of a cache for all of their experts
};

// How often an expert was in a context's cache when it was used, and how often it had to be loaded first. With several
// tokens in a batch, an expert is counted for each of them. llama.cpp's own counts are private, and only logged when
// the context is freed.
struct shim_moe_counts {
    struct llama_context * ctx;
    uint64_t               hits;
    uint64_t               misses;
};

// Facts about the model's shape that llama.h does not offer.
struct shim_model_shape {
    uint32_t n_layer;      // blocks, nextn included
    uint32_t n_expert;
    uint32_t head_k_block; // greatest common divisor over the layers of the K head width
    uint32_t head_v_block; // the same for V
    bool     causal;
};

// One tensor of a model, and the buffer type of its data, or with no_alloc the buffer type that its data would have.
struct shim_tensor {
    const char *               name; // lives as long as the model
    enum ggml_type             type;
    int64_t                    ne[GGML_MAX_DIMS];
    ggml_backend_buffer_type_t buft; // NULL for a tensor without a buffer
    bool                       is_host;
};

// The sources from which the libraries were built, and the sizes of the structures that a program exchanges with them.
// This is a constant, so that a program can read it before any call.
struct shim_build_info {
    char     text[128];
    uint32_t sizes[18];
};
extern const struct shim_build_info shim_build;

// Replaces ggml's abort by an exception while the calling thread is inside a guarded function of this file; elsewhere
// (worker threads, the middle of a graph) the message is printed to stderr, and the process ends as before.
void shim_install_abort_guard(void);

// llama_backend_init, and the first look into ggml's registry, which starts every backend that is compiled in.
bool shim_init(struct shim_error * error);

// Writes up to `n_max` names of architectures. Returns the number of architectures that llama.cpp knows, including
// those that it cannot load.
int32_t shim_architectures(const char ** names, int32_t n_max);

// The free and total bytes. Backends query their driver for them, and some of them throw.
bool shim_device_memory(ggml_backend_dev_t device, size_t * free, size_t * total, struct shim_error * error);
bool shim_device_props (ggml_backend_dev_t device, struct ggml_backend_dev_props * props, struct shim_error * error);
// The buffer type of the device's own memory, or of the host memory that its driver pins (NULL if it pins none). Vulkan
// opens the device for this.
ggml_backend_buffer_type_t shim_device_buft(ggml_backend_dev_t device, bool pinned, struct shim_error * error);

// A pool of threads for the CPU backend. The computing thread counts as one of them; the others start now. Threads that
// wait for each other spin for a moment before they sleep, or they sleep at once. NULL if the threads cannot start.
ggml_threadpool_t shim_threadpool_new(int32_t n_threads, bool spins, struct shim_error * error);
void              shim_threadpool_free(ggml_threadpool_t pool);
// Makes a CPU backend compute with `pool` from the next graph on. Both `pool` and the former pool must live.
void              shim_threadpool_use(ggml_backend_t cpu, ggml_threadpool_t pool);

struct llama_model * shim_model_load(const char * path, const struct llama_model_params * params, struct shim_error * error);
void                 shim_model_free(struct llama_model * model);
// A model from the metadata of the GGUF file at `path`, with all tensors that the architecture can have. The tensors
// are zeros.
struct llama_model * shim_model_from_metadata(const char * path, const struct llama_model_params * params, struct shim_error * error);
bool                 shim_model_save(const struct llama_model * model, const char * path, struct shim_error * error);
// Writes up to `n_max` tensors, and returns the number of all tensors. A tensor that is in several buffers appears once
// for each buffer.
int32_t              shim_model_tensors(const struct llama_model * model, struct shim_tensor * tensors, int32_t n_max);
void                 shim_model_shape(const struct llama_model * model, struct shim_model_shape * shape);
void                 shim_model_moe_cache_shape(const struct llama_model * model, struct shim_moe_cache_shape * shape);
int32_t              shim_model_n_devices(const struct llama_model * model);
ggml_backend_dev_t   shim_model_device(const struct llama_model * model, int32_t index);

struct llama_context * shim_context_init(struct llama_model * model, const struct llama_context_params * params, struct shim_error * error);
// Returns llama_decode's result. Not guarded against aborts, because other threads may be waiting inside the graph.
int32_t shim_decode(struct llama_context * ctx, const struct llama_batch * batch, struct shim_error * error);
bool    shim_synchronize(struct llama_context * ctx, struct shim_error * error);
// NULL if there are no such logits.
float * shim_logits(struct llama_context * ctx, int32_t index, struct shim_error * error);
// Writes up to `n_max` rows and returns the number of all. The graphs of a context without data are reserved again for
// this, so that the rows are those of a context with data: of one that also computes rows of pictures and sounds if
// `computes_rows` is true.
int32_t shim_memory_breakdown(struct llama_context * ctx, bool computes_rows, struct shim_memory_row * rows, int32_t n_max, struct shim_error * error);
// The number of copies of a graph that may be computed at once: 1, or 4 with pipeline parallelism.
int32_t shim_context_copies(const struct llama_context * ctx);
void    shim_context_compute_buffers(const struct llama_context * ctx, struct shim_compute_buffers * buffers);
// Counts the uses of cached experts from now on. A new reservation of graphs ends the counting, so this must be called
// before each computation. `counts` must live as long as the context, and its `ctx` must be this context.
void    shim_context_count_experts(struct llama_context * ctx, struct shim_moe_counts * counts);
// Whether a shift of positions does nothing but rotate keys. With YaRN's factors each rotation also scales them.
bool    shim_context_rope_only_rotates(const struct llama_context * ctx);
// Grows the compute buffers to the sizes for a graph of `n_tokens` tokens at the context's full length, or of as many
// rows of pictures or sounds. False if there is no memory for them.
bool    shim_context_reserve(struct llama_context * ctx, uint32_t n_tokens, bool rows, struct shim_error * error);

// Predicting further tokens (MTP).

// Makes the context output hidden states, from which prediction blocks continue: those of every token, or only of
// outputs. The context's graphs are reserved again at once. Their buffers are freed first, and then have the sizes for
// a prompt and for a token of each sequence.
bool    shim_context_output_hidden(struct llama_context * ctx, bool outputs_only, struct shim_error * error);
// NULL if there is no such state.
float * shim_hidden(struct llama_context * ctx, int32_t index, struct shim_error * error);

// Embeddings.

// The facts that decide how a model computes embeddings.
struct shim_embedding_shape {
    uint32_t n_embd_out;  // width of an embedding
    uint32_t n_cls_out;   // outputs of the classification head, as the header says
    uint32_t n_head_out;  // outputs of the head in the file; 0 without a head
    uint32_t n_positions; // rows of the table of learned positions; 0 without a table
    int32_t  pooling;     // the number in the header: an enum llama_pooling_type, or any other number
};
void    shim_model_embedding_shape(const struct llama_model * model, struct shim_embedding_shape * shape);
// Returns llama_encode's result. Not guarded, like shim_decode.
int32_t shim_encode(struct llama_context * ctx, const struct llama_batch * batch, struct shim_error * error);
// NULL if there is no such embedding.
float * shim_embeddings_seq(struct llama_context * ctx, llama_seq_id seq, struct shim_error * error);
float * shim_embeddings_ith(struct llama_context * ctx, int32_t index, struct shim_error * error);

bool shim_memory_clear  (struct llama_context * ctx, bool data, struct shim_error * error);
bool shim_memory_seq_rm (struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, struct shim_error * error);
// Whether a part of a sequence can be copied. Memories with an indexer copy only whole sequences, and assert that.
bool shim_memory_copies_parts(const struct llama_context * ctx);
bool shim_memory_seq_cp (struct llama_context * ctx, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1, struct shim_error * error);
// Forgets the positions that have left the sliding window of a sequence, in the layers with a window. llama.cpp itself
// keeps them while several sequences share their cells.
bool shim_memory_leave_window(struct llama_context * ctx, llama_seq_id seq, struct shim_error * error);
// Carries out pending copies between sequences, and pending rotations of keys whose positions were moved.
bool shim_memory_update (struct llama_context * ctx, struct shim_error * error);
bool shim_memory_seq_add(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta, struct shim_error * error);

// As llama_tokenize: returns the number of tokens, or minus the number that is needed.
int32_t shim_tokenize(const struct llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens, int32_t n_max,
                      bool add_special, bool parse_special, struct shim_error * error);
// As llama_token_to_piece: returns the number of bytes, or minus the number that is needed.
int32_t shim_token_to_piece(const struct llama_vocab * vocab, llama_token token, char * buf, int32_t length, int32_t lstrip, bool special,
                            struct shim_error * error);

// Adds a new sampler to a chain, which owns it from then on. On a failure, returns false and frees the sampler. NULL is
// refused.
struct llama_sampler * shim_sampler_chain(struct shim_error * error);
bool shim_sampler_add(struct llama_sampler * chain, struct llama_sampler * sampler, struct shim_error * error);
// The kinds of samplers. Each kind reads the parameters in its comment.
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
// Applies the chain to at least one candidate. It filters, sorts and chooses in place, and may move `data` forward
// within the array.
bool        shim_sampler_apply (struct llama_sampler * chain, llama_token_data_array * candidates, struct shim_error * error);
bool        shim_sampler_accept(struct llama_sampler * chain, llama_token token, struct shim_error * error);
// Applies the chain `n` times to a single candidate, without accepting a token, to draw the random numbers of `n`
// choices.
bool        shim_sampler_skip  (struct llama_sampler * chain, size_t n, struct shim_error * error);

// Callbacks for the state of one sequence, in pieces of at most a megabyte. Returning false ends the call with an
// error.
typedef bool (*shim_put)(void * user, const void * data, size_t size);
typedef bool (*shim_take)(void * user, void * data, size_t size);
// Whether the memory has a part that cannot go back to an earlier token: a recurrent state, or windows in a cache that
// is shorter than that of the other layers. `partial` below means this part.
bool   shim_memory_has_partial(const struct llama_context * ctx);
// The number of bytes that shim_state_write would pass to `put`.
size_t shim_state_stream_size(struct llama_context * ctx, llama_seq_id seq, bool partial, struct shim_error * error);
size_t shim_state_write(struct llama_context * ctx, llama_seq_id seq, bool partial, shim_put put, void * user, struct shim_error * error);
// A range of the stream that shim_state_write passes to `put`.
struct shim_range {
    uint64_t from;
    uint64_t size;
};
// Passes only these ranges of the stream to `put`; they must be in ascending order. Without ranges (NULL), passes only
// the bytes between the rows of tensors. Reads no other rows. Returns the number of bytes of the whole stream.
size_t shim_state_write_ranges(struct llama_context * ctx, llama_seq_id seq, bool partial, const struct shim_range * ranges,
                               size_t n_ranges, shim_put put, void * user, struct shim_error * error);
// Reads at most `size` bytes from `take`, and returns their number. After a failure, the sequence may hold a part of
// the state.
size_t shim_state_read (struct llama_context * ctx, llama_seq_id seq, bool partial, size_t size, shim_take take, void * user,
                        struct shim_error * error);
// A range of a tensor.
struct shim_place {
    struct ggml_tensor * tensor;
    uint64_t offset;
    uint64_t size;
};
// Returning false ends the call with an error.
typedef bool (*shim_later)(void * user, const struct shim_place * place);
// The parts of a whole state: passes the bytes between the rows of tensors to `put`, and the places of the rows to
// `later`, both in the order of the stream. Reads no row. Returns the number of bytes of the whole stream.
size_t shim_state_write_cells(struct llama_context * ctx, llama_seq_id seq, shim_put put, shim_later later, void * user,
                              struct shim_error * error);
// As shim_state_read, of a whole state. But those bytes of tensors that are among the first `later_end` bytes of the
// stream are not read: `later` gets the places for them, in the order of the stream. The cells are the sequence's from
// now on, and the caller must write these places before the sequence is computed or read.
size_t shim_state_read_cells(struct llama_context * ctx, llama_seq_id seq, size_t size, size_t later_end, shim_take take,
                             shim_later later, void * user, struct shim_error * error);
// Waits for computations in progress, and reads or writes `size` bytes at `from` in a place. A place is valid as long as
// its context lives, and holds rows of the sequence until cells of the sequence are removed or the memory is cleared.
bool   shim_place_read (struct llama_context * ctx, const struct shim_place * place, uint64_t from, void * data, size_t size,
                        struct shim_error * error);
bool   shim_place_write(struct llama_context * ctx, const struct shim_place * place, uint64_t from, const void * data, size_t size,
                        struct shim_error * error);

// Loads all backend libraries in a folder.
void               shim_backend_load_all_from(const char * dir, struct shim_error * error);

// The major, minor and patch version of the protocol that this build's RPC backend speaks.
void shim_rpc_protocol(uint8_t version[3]);
// Connects to an rpc-server and registers its devices. Returns NULL without an error if this build has no RPC backend.
ggml_backend_reg_t shim_rpc_add_server(const char * endpoint, struct shim_error * error);
// Serves devices to one client after the other. Returns only if it cannot continue; false if this build has no RPC
// backend.
bool shim_rpc_serve(const char * endpoint, size_t n_threads, ggml_backend_dev_t * devices, size_t n_devices, struct shim_error * error);

// ---- adapters ----

// The bytes of adapters in one buffer type, which llama.cpp's account leaves out.
struct shim_buffer_bytes {
    ggml_backend_buffer_type_t buft;
    ggml_backend_dev_t         device; // NULL for buffer types without one
    bool                       is_host;
    uint64_t                   bytes;
};

// Loads a LoRA adapter for this model. It must be freed (llama_adapter_lora_free) before the model, and has no data if
// the model has none. The call changes the model's list of adapters, which contexts read while they reserve their
// graphs.
struct llama_adapter_lora * shim_lora_load(struct llama_model * model, const char * path, struct shim_error * error);
// Makes the context compute with exactly these adapters from now on. If anything changed, its graphs are reserved again
// at once. Their buffers are freed first, and then have the sizes for a prompt and for a token of each sequence.
bool shim_context_set_lora(struct llama_context * ctx, struct llama_adapter_lora ** adapters, float * scales, size_t n,
                           struct shim_error * error);
// Adds a vector of `n_embd` numbers to the output of each of the layers `il_start` to `il_end`; `data` begins with the
// vector of layer 1. NULL for `data` removes the vector. Reserves compute buffers as shim_context_set_lora does.
bool shim_context_set_control_vector(struct llama_context * ctx, const float * data, size_t len, int32_t n_embd, int32_t il_start,
                                     int32_t il_end, struct shim_error * error);
// Writes up to `n_max` rows and returns the number of all. The rows have the bytes of all adapters of the model, and
// with `control_vector` also those of a context's control vector.
int32_t shim_adapter_bytes(const struct llama_model * model, bool control_vector, struct shim_buffer_bytes * rows, int32_t n_max,
                           struct shim_error * error);

// ---- measuring ----

// Operations of ggml as in llama.cpp's graphs. Each kind reads the numbers in its comment, `n_tokens` and `n_repeat`.
enum shim_operation_kind {
    SHIM_OPERATION_MATRIX    = 0, // type, n_in, n_out
    SHIM_OPERATION_EXPERTS   = 1, // type, n_in, n_out of each expert; n_expert, n_used
    SHIM_OPERATION_ATTENTION = 2, // type, head_size, n_head, n_head_kv, n_kv
    // other computations than matrices and attention: type of the cache, n_in, n_out (feed-forward), head_size, n_head,
    // n_head_kv
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
    int64_t n_repeat; // number of repetitions in one graph, each with its own data
};

enum shim_measured {
    SHIM_MEASURED_DONE        = 0,
    SHIM_MEASURED_UNSUPPORTED = 1, // the device has no such operation
    SHIM_MEASURED_NO_ROOM     = 2, // the device has no memory for its data
};
// The lower quartile of the times of one graph, and the bytes of weights or cache that it reads.
struct shim_timing {
    uint64_t graph_ns;
    uint64_t bytes;
};
// Lower quartiles of the times of copies to and from the device, and of a crossing: a copy of a token's activations to
// the device, an operation on them, and the copy back.
struct shim_link {
    uint64_t upload_ns;
    uint64_t download_ns;
    uint64_t crossing_ns;
};

// Opens a device to measure it. The CPU computes with `n_threads` threads, and rearranges weights if `repack` is set.
struct shim_bench;
struct shim_bench * shim_bench_new(ggml_backend_dev_t device, int32_t n_threads, bool repack, struct shim_error * error);
void                shim_bench_free(struct shim_bench * bench);
// Computes the graph again and again for the time `budget_ns`, but at least three times. Not guarded, like shim_decode.
// Frees all memory at the end.
enum shim_measured shim_bench_time(struct shim_bench * bench, const struct shim_operation * operation, uint64_t budget_ns,
                                   struct shim_timing * timing, struct shim_error * error);
// Measures copies between the host's plain memory and the device: of `bytes` bytes, and of the `width` activations of a
// token.
enum shim_measured shim_bench_link(struct shim_bench * bench, size_t bytes, size_t width, uint64_t budget_ns, struct shim_link * link,
                                   struct shim_error * error);

// ---- images and sound ----

// llama.cpp's tools/mtmd. In a build without it every call here fails with a message that says so.
struct mtmd_context;
struct mtmd_input_chunks;

bool shim_media_built(void);
// Sets mtmd's own log callback, which llama_log_set does not set.
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
    int32_t image_max_tokens; // -1: all images have the same number, or the file does not state it
    int32_t image_rows;       // of the largest image, or of each part of it; 0 without an encoder of images
    bool    is_non_causal;    // all rows of an image are computed at once, so n_ubatch must be at least their number
};

enum shim_media_kind {
    SHIM_MEDIA_TEXT  = 0,
    SHIM_MEDIA_IMAGE = 1,
    SHIM_MEDIA_AUDIO = 2,
};
// One part of a prompt. Each kind reads only its own fields.
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
// Rows of an encoder, to be computed as tokens of a sequence.
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

// Loads a projector. Writes the bytes on up to `n_max` devices, and the number of devices to `n_rows`.
struct mtmd_context * shim_media_load(const char * path, const struct llama_model * model, const struct shim_media_params * params,
                                      struct shim_media_row * rows, int32_t n_max, int32_t * n_rows, struct shim_error * error);
void                  shim_media_free(struct mtmd_context * media);
bool                  shim_media_shape(const struct mtmd_context * media, struct shim_media_shape * shape, struct shim_error * error);
// Writes into `rows` the bytes that a load would take on each device, for at most `n_max` devices. Returns the number of
// devices, which may be larger. Allocates nothing on a device.
int32_t               shim_media_memory(const char * path, const struct shim_media_params * params, struct shim_media_limits * limits,
                                        struct shim_media_row * rows, int32_t n_max, struct shim_error * error);

struct mtmd_input_chunks * shim_media_tokenize(const struct mtmd_context * media, const struct shim_media_part * parts, size_t n_parts,
                                               bool add_special, struct shim_error * error);
void                       shim_media_chunks_free(struct mtmd_input_chunks * chunks);
size_t                     shim_media_chunks_size(const struct mtmd_input_chunks * chunks, struct shim_error * error);
bool                       shim_media_chunk(const struct mtmd_context * media, const struct mtmd_input_chunks * chunks, size_t index,
                                            struct shim_media_chunk * chunk, struct shim_error * error);
// Writes the positions of all rows, one row after the other: one position for each row, or four with M-RoPE.
bool                       shim_media_positions(const struct mtmd_context * media, const struct mtmd_input_chunks * chunks, size_t index,
                                                llama_pos first, llama_pos * positions, size_t n_positions, struct shim_error * error);
// Not guarded, like shim_decode. `n_floats` is the number of rows of the chunk times the width of the model's input.
bool                       shim_media_encode(struct mtmd_context * media, const struct mtmd_input_chunks * chunks, size_t index, float * rows,
                                             size_t n_floats, struct shim_error * error);
// Returns llama_decode's result. Not guarded, like shim_decode.
int32_t                    shim_media_decode(struct llama_context * ctx, const struct shim_media_rows * rows, struct shim_error * error);

#ifdef __cplusplus
}
#endif
