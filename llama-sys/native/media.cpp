#include "media.h"

#include <stdexcept>
#include <string>

#ifdef AUTOPLACE_MEDIA

#include "clip.h"
#include "llama-context.h"
#include "llama-cpp.h"
#include "mtmd.h"
#include "mtmd/measured_clip.h"
#include "no_alloc.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>

namespace {

// Guards mtmd's log callback: there is only one, and mtmd_get_memory_usage replaces it while it runs.
std::mutex logging;

ggml_log_callback log_callback = nullptr;
void *            log_user_data = nullptr;

mtmd_context_params native(const shim_media_params & params) {
    mtmd_context_params native = mtmd_context_params_default();
    native.use_gpu          = params.device != nullptr;
    native.device           = params.device;
    native.print_timings    = false;
    native.n_threads        = params.n_threads;
    native.flash_attn_type  = params.flash_attn;
    native.warmup           = true;
    native.image_min_tokens = params.image_min_tokens;
    native.image_max_tokens = params.image_max_tokens;
    return native;
}

clip_context_params without_data(const shim_media_params & params) {
    clip_context_params native = {};
    native.use_gpu          = params.device != nullptr;
    native.device           = params.device;
    native.flash_attn_type  = CLIP_FLASH_ATTN_TYPE_DISABLED;
    native.image_min_tokens = params.image_min_tokens;
    native.image_max_tokens = params.image_max_tokens;
    native.warmup           = false;
    native.no_alloc         = true;
    return native;
}

struct clip_freed {
    void operator()(clip_ctx * ctx) const { clip_free(ctx); }
};
using clip_ptr = std::unique_ptr<clip_ctx, clip_freed>;

// The bytes of buffers that have at most `ggml_backend_buft_get_max_size` bytes each. The result includes the bytes
// that the device adds to each buffer.
uint64_t with_extra(ggml_backend_buffer_type_t type, uint64_t bytes) {
    if (!type || bytes == 0) {
        return bytes;
    }
    const uint64_t most = ggml_backend_buft_get_max_size(type);
    return bytes + allocation_extra(type) * (bytes / most + (bytes % most > 0));
}

// The bytes of the encoders that this thread loaded last, with data or without.
std::vector<shim_media_row> taken(bool with_data) {
    std::vector<shim_media_row> rows;
    for (const clip_device_bytes & bytes : clip_last_bytes()) {
        const uint64_t weights = with_data ? bytes.weights : with_extra(bytes.type, bytes.weights);
        const uint64_t compute = with_data ? bytes.compute : with_extra(bytes.type, bytes.compute);
        rows.push_back({ bytes.device, weights, compute });
    }
    return rows;
}

// Checks a projector's file: loads it once without data. The constructor of mtmd_context loads the encoders first. If
// it fails after that, it does not free them. It fails for a model of another width, and for an encoder without a
// preprocessor.
void check(const char * path, const llama_model & model, const shim_media_params & params) {
    const clip_init_result loaded = clip_init(path, without_data(params));
    const clip_ptr image(loaded.ctx_v);
    const clip_ptr sound(loaded.ctx_a);
    const clip_ptr speech(loaded.ctx_gen_a);
    if (!image && !sound) {
        throw std::runtime_error(speech ? "it only makes sound, and has no encoder of images or sound" : "it is no projector of images or sound");
    }
    const int width = llama_model_n_embd_inp(&model);
    for (const clip_ctx * ctx : { image.get(), sound.get(), speech.get() }) {
        if (ctx && clip_n_mmproj_embd(ctx) != width) {
            throw std::runtime_error("its rows are " + std::to_string(clip_n_mmproj_embd(ctx)) + " wide, and the model takes " + std::to_string(width) +
                                     ": it belongs to another model");
        }
    }
    shim_media_limits limits;
    media_memory(path, params, limits);
}

const mtmd_input_chunk & at(const mtmd_input_chunks & chunks, size_t index) {
    const mtmd_input_chunk * chunk = mtmd_input_chunks_get(&chunks, index);
    if (!chunk) {
        throw std::out_of_range("there is no chunk " + std::to_string(index));
    }
    return *chunk;
}

// Checks a part's size. mtmd uses 32-bit integers for the sides of an image and for the number of samples of a sound,
// even after it has padded them.
void check(const shim_media_part & part) {
    constexpr uint64_t most = 1 << 30;
    const uint64_t pixels = (uint64_t) part.width * part.height;
    switch (part.kind) {
        case SHIM_MEDIA_TEXT:
            return;
        case SHIM_MEDIA_IMAGE:
            // An image without pixels is a placeholder, whose tokens can be counted (mtmd.h, `mtmd_bitmap_init`).
            if (pixels == 0 || pixels > most / 3) {
                throw std::invalid_argument("an image of " + std::to_string(part.width) + " x " + std::to_string(part.height) + " pixels");
            }
            return;
        case SHIM_MEDIA_AUDIO:
            // mtmd asserts that there is more than one sample (mtmd.cpp, `add_media`).
            if (part.n_samples < 2 || part.n_samples > most / sizeof(float) || !part.samples) {
                throw std::invalid_argument("a sound of " + std::to_string(part.n_samples) + " samples");
            }
            if (!std::all_of(part.samples, part.samples + part.n_samples, [](float sample) { return std::isfinite(sample); })) {
                throw std::invalid_argument("a sound with a sample that is not a finite number");
            }
            return;
    }
    throw std::invalid_argument("a part of unknown kind");
}

mtmd::bitmap_ptr bitmap(const shim_media_part & part) {
    if (part.kind == SHIM_MEDIA_IMAGE) {
        return mtmd::bitmap_ptr(mtmd_bitmap_init(part.width, part.height, part.rgb));
    }
    return mtmd::bitmap_ptr(mtmd_bitmap_init_from_audio(part.n_samples, part.samples));
}

// While this value exists, attention is not causal, as an image requires (mtmd-helper.cpp, `scope_non_causal`).
struct non_causal {
    non_causal(llama_context & ctx, bool enabled) : ctx(ctx), enabled(enabled) {
        if (enabled) {
            llama_set_causal_attn(&ctx, false);
        }
    }
    ~non_causal() {
        if (enabled) {
            llama_set_causal_attn(&ctx, true);
        }
    }
    non_causal(const non_causal &) = delete;
    non_causal & operator=(const non_causal &) = delete;

    llama_context & ctx;
    bool            enabled;
};

} // namespace

bool media_built() {
    return true;
}

void media_log(ggml_log_callback callback, void * user_data) {
    const std::lock_guard<std::mutex> alone(logging);
    log_callback  = callback;
    log_user_data = user_data;
    mtmd_log_set(callback, user_data);
}

mtmd_context * media_load(const char * path, const llama_model & model, const shim_media_params & params, std::vector<shim_media_row> & rows) {
    check(path, model, params);
    mtmd_context * media = mtmd_init_from_file(path, &model, native(params));
    if (!media) {
        throw std::runtime_error("llama.cpp refuses it");
    }
    rows = taken(true);
    return media;
}

void media_free(mtmd_context * media) {
    mtmd_free(media);
}

void media_shape(const mtmd_context & media, struct shim_media_shape & shape) {
    shape.has_image   = mtmd_support_vision(&media);
    shape.has_audio   = mtmd_support_audio(&media);
    shape.is_mrope    = mtmd_decode_use_mrope(&media);
    shape.sample_rate = mtmd_get_audio_sample_rate(&media);
}

std::vector<shim_media_row> media_memory(const char * path, const shim_media_params & params, shim_media_limits & limits) {
    mtmd_memory_usage usage;
    {
        const std::lock_guard<std::mutex> alone(logging);
        usage = mtmd_get_memory_usage(path, native(params));
        mtmd_log_set(log_callback, log_user_data);
    }
    std::vector<shim_media_row> rows = taken(false);
    // Every answer contains at least the host's compute buffer.
    if (usage.backend_mem_usage.empty() || rows.empty()) {
        throw std::runtime_error("it is no projector of images or sound that llama.cpp knows");
    }
    limits.image_max_tokens = usage.image_max_tokens;
    limits.image_rows       = clip_last_rows();
    limits.is_non_causal    = usage.use_non_causal;
    return rows;
}

mtmd_input_chunks * media_tokenize(const mtmd_context & media, const shim_media_part * parts, size_t n_parts, bool add_special) {
    std::vector<mtmd_input_text>         texts(n_parts);
    std::vector<mtmd::bitmap_ptr>        bitmaps(n_parts);
    std::vector<mtmd_input_part>         inputs(n_parts);
    std::vector<const mtmd_input_part *> pointers(n_parts);
    for (size_t i = 0; i < n_parts; ++i) {
        check(parts[i]);
        if (parts[i].kind == SHIM_MEDIA_TEXT) {
            texts[i]  = { parts[i].text, parts[i].text_len, false, parts[i].parse_special };
            inputs[i] = { &texts[i], nullptr };
        } else {
            const bool known = parts[i].kind == SHIM_MEDIA_IMAGE ? mtmd_support_vision(&media) : mtmd_support_audio(&media);
            if (!known) {
                throw std::invalid_argument(parts[i].kind == SHIM_MEDIA_IMAGE ? "the projector has no encoder of images" : "the projector has no encoder of sound");
            }
            bitmaps[i] = bitmap(parts[i]);
            inputs[i]  = { nullptr, bitmaps[i].get() };
        }
        pointers[i] = &inputs[i];
    }
    mtmd::input_chunks_ptr chunks(mtmd_input_chunks_init());
    // The prompt is passed as a list of parts. In a single text, images would need markers, and a user's text could
    // contain such a marker.
    const int32_t code = mtmd_tokenize_from_parts(&media, chunks.get(), pointers.data(), n_parts, add_special);
    if (code != 0) {
        throw std::runtime_error("mtmd_tokenize_from_parts returned " + std::to_string(code));
    }
    return chunks.release();
}

void media_chunks_free(mtmd_input_chunks * chunks) {
    mtmd_input_chunks_free(chunks);
}

size_t media_chunks_size(const mtmd_input_chunks & chunks) {
    return mtmd_input_chunks_size(&chunks);
}

void media_chunk(const mtmd_context & media, const mtmd_input_chunks & chunks, size_t index, struct shim_media_chunk & out) {
    const mtmd_input_chunk & chunk = at(chunks, index);
    switch (mtmd_input_chunk_get_type(&chunk)) {
        case MTMD_INPUT_CHUNK_TYPE_TEXT:  out.kind = SHIM_MEDIA_TEXT;  break;
        case MTMD_INPUT_CHUNK_TYPE_IMAGE: out.kind = SHIM_MEDIA_IMAGE; break;
        case MTMD_INPUT_CHUNK_TYPE_AUDIO: out.kind = SHIM_MEDIA_AUDIO; break;
        default: throw std::runtime_error("a chunk of unknown kind");
    }
    size_t n_text = 0;
    out.tokens        = mtmd_input_chunk_get_tokens_text(&chunk, &n_text);
    out.n_tokens      = mtmd_input_chunk_get_n_tokens(&chunk);
    out.n_pos         = mtmd_input_chunk_get_n_pos(&chunk);
    out.is_non_causal = out.kind != SHIM_MEDIA_TEXT && mtmd_decode_use_non_causal(&media, &chunk);
}

void media_positions(const mtmd_context & media, const mtmd_input_chunks & chunks, size_t index, llama_pos first, llama_pos * positions,
                     size_t n_positions) {
    const mtmd_input_chunk & chunk = at(chunks, index);
    const size_t n_tokens = mtmd_input_chunk_get_n_tokens(&chunk);
    const size_t sections = mtmd_decode_use_mrope(&media) ? 4 : 1;
    if (n_positions != n_tokens * sections) {
        throw std::invalid_argument("room for " + std::to_string(n_positions) + " positions of " + std::to_string(n_tokens * sections));
    }
    const mtmd_image_tokens * image = mtmd_input_chunk_get_tokens_image(&chunk);
    for (size_t i = 0; i < n_tokens; ++i) {
        llama_pos * position = positions + i * sections;
        if (sections == 1 || !image) {
            std::fill(position, position + sections, first + (llama_pos) i);
        } else {
            // The order is that of llama_batch_ext_set_pos: t, y, x, z.
            const mtmd_decoder_pos place = mtmd_image_tokens_get_decoder_pos(image, first, i);
            position[0] = (llama_pos) place.t;
            position[1] = (llama_pos) place.y;
            position[2] = (llama_pos) place.x;
            position[3] = (llama_pos) place.z;
        }
    }
}

void media_encode(mtmd_context & media, const mtmd_input_chunks & chunks, size_t index, float * rows, size_t n_floats) {
    const mtmd_input_chunk & chunk = at(chunks, index);
    if (mtmd_input_chunk_get_type(&chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
        throw std::invalid_argument("chunk " + std::to_string(index) + " is a text");
    }
    clip_forget_refusal();
    if (mtmd_encode_chunk(&media, &chunk) != 0) {
        throw std::runtime_error(clip_last_refusal().empty() ? "mtmd_encode_chunk failed" : clip_last_refusal());
    }
    const float * encoded = mtmd_get_output_embd(&media);
    std::copy(encoded, encoded + n_floats, rows);
}

int32_t media_decode(llama_context & ctx, const shim_media_rows & rows) {
    const llama_model * model = llama_get_model(&ctx);
    const size_t sections = llama_model_rope_type(model) == LLAMA_ROPE_TYPE_MROPE || llama_model_rope_type(model) == LLAMA_ROPE_TYPE_IMROPE ? 4 : 1;
    if (rows.width != (size_t) llama_model_n_embd_inp(model) || rows.n_sections != sections) {
        throw std::invalid_argument("rows of " + std::to_string(rows.width) + " values and " + std::to_string(rows.n_sections) + " positions");
    }
    // llama-context.cpp, `decode`, asserts both limits.
    const uint32_t most = rows.is_non_causal ? llama_n_ubatch(&ctx) : llama_n_batch(&ctx);
    if (rows.n_rows == 0 || rows.n_rows > most) {
        throw std::invalid_argument(std::to_string(rows.n_rows) + " rows at once; at most " + std::to_string(most));
    }
    const llama_batch_ext_ptr batch(llama_batch_ext_init(&ctx));
    for (size_t i = 0; i < rows.n_rows; ++i) {
        const int32_t index = llama_batch_ext_add_embd(batch.get(), rows.seq, { rows.values + i * rows.width, 1, rows.width });
        if (index < 0) {
            throw std::runtime_error("llama_batch_ext_add_embd returned " + std::to_string(index));
        }
        llama_batch_ext_set_pos(batch.get(), index, rows.positions + i * sections);
    }
    if (rows.output_last) {
        llama_batch_ext_set_output_logits(batch.get(), (int32_t) rows.n_rows - 1, true);
    }
    const non_causal attention(ctx, rows.is_non_causal);
    return llama_process(&ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get());
}

#else

namespace {

[[noreturn]] void absent() {
    throw std::runtime_error("this build of llama.cpp has neither images nor sound: its feature `media` is off");
}

} // namespace

bool media_built() {
    return false;
}

void media_log(ggml_log_callback, void *) {}

mtmd_context * media_load(const char *, const llama_model &, const shim_media_params &, std::vector<shim_media_row> &) {
    absent();
}

void media_free(mtmd_context *) {}

void media_shape(const mtmd_context &, struct shim_media_shape &) {
    absent();
}

std::vector<shim_media_row> media_memory(const char *, const shim_media_params &, shim_media_limits &) {
    absent();
}

mtmd_input_chunks * media_tokenize(const mtmd_context &, const shim_media_part *, size_t, bool) {
    absent();
}

void media_chunks_free(mtmd_input_chunks *) {}

size_t media_chunks_size(const mtmd_input_chunks &) {
    absent();
}

void media_chunk(const mtmd_context &, const mtmd_input_chunks &, size_t, struct shim_media_chunk &) {
    absent();
}

void media_positions(const mtmd_context &, const mtmd_input_chunks &, size_t, llama_pos, llama_pos *, size_t) {
    absent();
}

void media_encode(mtmd_context &, const mtmd_input_chunks &, size_t, float *, size_t) {
    absent();
}

int32_t media_decode(llama_context &, const shim_media_rows &) {
    absent();
}

#endif
