// llama.cpp's clip.cpp, changed so that its memory is known exactly. Six of the calls in clip.cpp are replaced here:
//
// - clip_init: for an encoder of images, the buffers for the largest image that it accepts are reserved too, as a
//   context of a text model reserves buffers for its largest batch. clip.cpp reserves them for an image of usual size,
//   and lets them grow later.
// - ggml_backend_alloc_ctx_tensors_from_buft, ggml_backend_sched_reserve and ggml_backend_sched_get_buffer_size:
//   without data (`no_alloc`) nothing is allocated, and sizes are only computed. clip.cpp would allocate everything,
//   although it reads no data. With data, a failed reservation becomes an error; clip.cpp ignores it.
// - ggml_backend_sched_reset, the first step of an encoding: an image that needs larger buffers than the largest one is
//   refused, before any buffer grows. For an image that is a thousand times as wide as high, mtmd chooses a size beyond
//   its own limit (mtmd-image.cpp, `calc_size_preserved_ratio`, `get_best_resize`).
// - ggml_backend_sched_alloc_graph: tensors that no code fills are set to zero. A row of Pixtral ends with a token, to
//   which such a tensor times 0 is added (models/pixtral.cpp). If the memory contained a NaN, the result would be NaN.

#include "measured_clip.h"

#include "clip.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

static ggml_backend_buffer_t alloc_weights(clip_ctx & ctx, ggml_context * data, ggml_backend_buffer_type_t type);
static bool                  reserve(clip_ctx & ctx, ggml_backend_sched_t sched, ggml_cgraph * graph);
static size_t                reserved(clip_ctx & ctx, ggml_backend_sched_t sched, ggml_backend_t backend);
static bool                  alloc_graph(ggml_backend_sched_t sched, ggml_cgraph * graph);
static void begin_encoding(clip_ctx & ctx, const clip_image_f32_batch & imgs, const clip_encode_params * params, ggml_backend_sched_t sched);

// These macros use the names of variables at the places in clip.cpp where the calls are.
#define clip_init clip_init_of_usual_size
#define ggml_backend_alloc_ctx_tensors_from_buft(data, type)       alloc_weights(ctx_clip, data, type)
#define ggml_backend_sched_reserve(sched, graph)                   reserve(ctx_clip, sched, graph)
#define ggml_backend_sched_get_buffer_size(sched, backend)         reserved(ctx_clip, sched, backend)
#define ggml_backend_sched_reset(sched)                            begin_encoding(*ctx, imgs, params, sched)
#define ggml_backend_sched_alloc_graph(sched, graph)               alloc_graph(sched, graph)
#include "clip.cpp"
#undef clip_init
#undef ggml_backend_alloc_ctx_tensors_from_buft
#undef ggml_backend_sched_reserve
#undef ggml_backend_sched_get_buffer_size
#undef ggml_backend_sched_reset
#undef ggml_backend_sched_alloc_graph

namespace {

// For each encoder without data: the largest buffer size so far on each backend. A thread makes one encoder after the
// other.
thread_local std::map<const clip_ctx *, std::vector<size_t>> computed;

thread_local std::vector<clip_device_bytes> last_bytes;
thread_local int                            last_rows = 0;
thread_local std::string                    refusal;

clip_image_f32_batch of_size(clip_image_size size) {
    clip_image_f32 image;
    // A graph can be built without pixels.
    image.set_size(size, true, false);
    clip_image_f32_batch batch;
    batch.entries.push_back(image);
    return batch;
}

// An image of `width` by `height` tokens, each of `side` pixels. A damaged file may contain any numbers.
clip_image_size pixels(int64_t width, int64_t height, int64_t side) {
    if (width * side > INT32_MAX || height * side > INT32_MAX || width * side * height * side > INT32_MAX) {
        throw std::runtime_error("images of " + std::to_string(width) + " x " + std::to_string(height) + " tokens");
    }
    return { (int) (width * side), (int) (height * side) };
}

// Images of up to `n_tokens` whole tokens. The shapes go from about a square to a single row or column. Most buffers
// depend only on the number of patches. But in Pixtral each row ends with a token, so the shape matters too.
std::vector<clip_image_size> shapes(int side, int n_tokens) {
    std::vector<clip_image_size> sizes;
    for (int height = (int) std::sqrt((double) n_tokens); height >= 1; height = height > 1 ? std::max(1, height / 4) : 0) {
        const int width = n_tokens / height;
        sizes.push_back(pixels(width, height, side));
        sizes.push_back(pixels(height, width, side));
    }
    return sizes;
}

// Shapes of an image that is about as large as a square of `image_size` pixels. Each side is rounded to the nearest
// number of tokens, so the product may be larger. The product is largest if the shorter side is half a token longer
// than a whole number of tokens.
std::vector<clip_image_size> rounded_shapes(int side, int image_size) {
    const int64_t per_side = std::max<int64_t>(1, ((int64_t) image_size + side - 1) / side);
    const int64_t n_tokens = per_side * per_side;
    std::vector<clip_image_size> sizes = { pixels(n_tokens, 1, side), pixels(1, n_tokens, side) };
    for (int64_t below = per_side; below >= 1; below /= 2) {
        const int64_t width = (int64_t) (n_tokens / (below + 0.5) + 0.5);
        sizes.push_back(pixels(width, below + 1, side));
        sizes.push_back(pixels(below + 1, width, side));
    }
    return sizes;
}

// The images that may need the largest buffers, in addition to the image of the warm-up.
std::vector<clip_image_size> largest(const clip_ctx & ctx) {
    const clip_hparams & hparams = ctx.model.hparams;
    if (ctx.model.modality != CLIP_MODALITY_VISION || hparams.patch_size <= 0 || hparams.patch_size > 1024 || hparams.n_merge > 1024) {
        return {};
    }
    const int side = hparams.patch_size * std::max(1, hparams.n_merge);
    switch (ctx.proj_type()) {
        // The image is cut into slices of many shapes. Each is about as large as a square of `image_size`, with rounded
        // sides (mtmd-image.cpp, `get_best_resize`; mtmd-image.h, `get_slice_align`).
        case PROJECTOR_TYPE_MINICPMV:
        case PROJECTOR_TYPE_MINICPM_OCR_1_0:
            return rounded_shapes(side, hparams.image_size);
        case PROJECTOR_TYPE_MINICPMV4_6:
        case PROJECTOR_TYPE_MINICPMV4_7:
            return rounded_shapes(4 * hparams.patch_size, hparams.image_size);
        // The image is cut into tiles of one size. The limit applies to all tiles together.
        case PROJECTOR_TYPE_IDEFICS3:
            return { { hparams.image_size, hparams.image_size } };
        // The whole image is computed at `image_size`, and tiles of it at another size (mtmd-image.h,
        // `default_image_crop_size`). The limit applies to the image before it is cut.
        case PROJECTOR_TYPE_STEP3VL:
            return { { hparams.image_size, hparams.image_size }, { 504, 504 } };
        default:
            break;
    }
    if (hparams.image_max_pixels > 0) {
        const int64_t area = (int64_t) side * side;
        // A small image is scaled up to the minimum number of tokens, and both sides are rounded up. If a side has a
        // little more than one token, this doubles the number (mtmd-image.cpp, `calc_size_preserved_ratio`).
        const int64_t scaled_up = 2 * ((std::max(0, hparams.image_min_pixels) + area - 1) / area);
        return shapes(side, (int) std::max<int64_t>({ 1, hparams.image_max_pixels / area, scaled_up }));
    }
    if (hparams.image_longest_edge > 0) {
        const int64_t per_side = ((int64_t) hparams.image_longest_edge + side - 1) / side;
        return { pixels(per_side, per_side, side) };
    }
    return {};
}

// Reserves the buffers for the largest image, and remembers their sizes. The sizes are remembered even if there is no
// room for the buffers, because a later image may need as much. Returns the number of rows of that image.
int reserve_largest(clip_ctx & ctx) {
    std::map<ggml_backend_dev_t, size_t> most = ctx.mem_compute;
    std::vector<clip_image_size> sizes = largest(ctx);
    if (sizes.empty() && ctx.model.modality == CLIP_MODALITY_VISION) {
        const int side = ctx.model.hparams.warmup_image_size;
        sizes = { { side, side } };
    }
    int rows = 0;
    try {
        for (const clip_image_size & size : sizes) {
            const clip_image_f32_batch batch = of_size(size);
            clip_model_loader::reserve_compute_meta(ctx, batch);
            for (const auto & [device, bytes] : ctx.mem_compute) {
                most[device] = std::max(most[device], bytes);
            }
            rows = std::max(rows, clip_n_output_tokens(&ctx, &batch.entries[0]));
        }
    } catch (...) {
        ctx.mem_compute = most;
        throw;
    }
    ctx.mem_compute = most;
    return rows;
}

void add(const std::map<ggml_backend_dev_t, size_t> & bytes, size_t clip_device_bytes::* member, const clip_ctx & ctx) {
    for (const auto & [device, size] : bytes) {
        const auto is_known = [device = device](const clip_device_bytes & known) { return known.device == device; };
        auto found = std::find_if(last_bytes.begin(), last_bytes.end(), is_known);
        if (found == last_bytes.end()) {
            clip_device_bytes added;
            added.device = device;
            for (size_t i = 0; i < ctx.backend_ptrs.size(); ++i) {
                if (ggml_backend_get_device(ctx.backend_ptrs[i]) == device) {
                    added.type = ctx.backend_buft[i];
                }
            }
            found = last_bytes.insert(last_bytes.end(), added);
        }
        (*found).*member += size;
    }
}

} // namespace

static ggml_backend_buffer_t alloc_weights(clip_ctx & ctx, ggml_context * data, ggml_backend_buffer_type_t type) {
    size_t size = ggml_backend_alloc_ctx_tensors_from_buft_size(data, type);
    ggml_backend_buffer_t buffer;
    if (ctx.no_alloc) {
        // A buffer of 0 bytes, to which the weights refer. Without it, the scheduler would plan the weights as results
        // (llama-model.cpp, `load_tensors`, does the same).
        buffer = ggml_backend_buft_alloc_buffer(type, 0);
        for (ggml_tensor * t = ggml_get_first_tensor(data); t != nullptr; t = ggml_get_next_tensor(data, t)) {
            t->buffer = buffer;
        }
    } else {
        buffer = ggml_backend_alloc_ctx_tensors_from_buft(data, type);
        if (!buffer) {
            throw std::runtime_error("no room for " + std::to_string(size) + " bytes of weights");
        }
        size = ggml_backend_buffer_get_size(buffer);
    }
    // clip.cpp has counted the tensors' bytes, but not what a backend adds to them.
    ctx.mem_usage.clear();
    ctx.mem_usage[ggml_backend_get_device(ctx.backend)] = size;
    return buffer;
}

static bool reserve(clip_ctx & ctx, ggml_backend_sched_t sched, ggml_cgraph * graph) {
    if (!ctx.no_alloc) {
        if (!ggml_backend_sched_reserve(sched, graph)) {
            throw std::runtime_error("no room for the buffers of an image or a sound");
        }
        return true;
    }
    std::vector<size_t> & most = computed[&ctx];
    std::vector<size_t>   sizes(ctx.backend_ptrs.size(), 0);
    most.resize(sizes.size(), 0);
    ggml_backend_sched_reserve_size(sched, graph, sizes.data());
    ggml_backend_sched_reset(sched);
    for (size_t i = 0; i < sizes.size(); ++i) {
        most[i] = std::max(most[i], sizes[i]);
    }
    return true;
}

static size_t reserved(clip_ctx & ctx, ggml_backend_sched_t sched, ggml_backend_t backend) {
    if (!ctx.no_alloc) {
        return ggml_backend_sched_get_buffer_size(sched, backend);
    }
    const auto at = std::find(ctx.backend_ptrs.begin(), ctx.backend_ptrs.end(), backend);
    const std::vector<size_t> & sizes = computed[&ctx];
    const size_t index = (size_t) (at - ctx.backend_ptrs.begin());
    return index < sizes.size() ? sizes[index] : 0;
}

static bool alloc_graph(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    if (!ggml_backend_sched_alloc_graph(sched, graph)) {
        return false;
    }
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        for (ggml_tensor * source : ggml_graph_node(graph, i)->src) {
            const bool is_filled = !source || source->op != GGML_OP_NONE || source->view_src || (source->flags & GGML_TENSOR_FLAG_INPUT);
            // Tensors in a buffer with this usage are weights, which the load has filled.
            if (is_filled || !source->buffer || ggml_backend_buffer_get_usage(source->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
                continue;
            }
            const std::vector<uint8_t> zeros(ggml_nbytes(source), 0);
            ggml_backend_tensor_set(source, zeros.data(), 0, zeros.size());
        }
    }
    return true;
}

static void begin_encoding(clip_ctx & ctx, const clip_image_f32_batch & imgs, const clip_encode_params * params, ggml_backend_sched_t sched) {
    refusal.clear();
    // A sound needs no larger buffers: it is cut into pieces, and the warm-up has the size of one piece.
    if (ctx.model.modality == CLIP_MODALITY_VISION) {
        std::vector<size_t> sizes(ctx.backend_ptrs.size(), 0);
        ggml_backend_sched_reserve_size(sched, clip_get_graph_builder(&ctx, imgs, params)->build(), sizes.data());
        // The tensors of the next graph lie at the same addresses.
        ggml_backend_sched_reset(sched);
        std::map<ggml_backend_dev_t, size_t> needed;
        for (size_t i = 0; i < sizes.size(); ++i) {
            needed[ggml_backend_get_device(ctx.backend_ptrs[i])] += sizes[i];
        }
        for (const auto & [device, bytes] : needed) {
            const size_t most = ctx.mem_compute[device];
            if (bytes > most) {
                refusal = "an image that is scaled to " + std::to_string(imgs.entries[0].nx()) + " x " + std::to_string(imgs.entries[0].ny()) +
                          " pixels needs " + std::to_string(bytes) + " bytes of buffers on " + ggml_backend_dev_name(device) +
                          ", and the largest image has " + std::to_string(most);
                // The query may have freed buffers.
                reserve_largest(ctx);
                throw std::runtime_error(refusal);
            }
        }
        // The query has planned addresses in buffers that may be split in another way than the allocated ones.
        reserve(ctx, sched, clip_get_graph_builder(&ctx, imgs, params)->build());
    }
    ggml_backend_sched_reset(sched);
}

struct clip_init_result clip_init(const char * fname, struct clip_context_params params) {
    computed.clear();
    last_bytes.clear();
    last_rows = 0;
    clip_init_result loaded = clip_init_of_usual_size(fname, params);
    try {
        for (clip_ctx * ctx : { loaded.ctx_v, loaded.ctx_a }) {
            if (ctx && params.warmup) {
                last_rows = std::max(last_rows, reserve_largest(*ctx));
            }
        }
    } catch (const std::exception & e) {
        LOG_ERR("%s: %s: %s\n", __func__, fname, e.what());
        for (clip_ctx * ctx : { loaded.ctx_v, loaded.ctx_a, loaded.ctx_gen_a }) {
            clip_free(ctx);
        }
        loaded = { nullptr, nullptr, nullptr };
    }
    for (const clip_ctx * ctx : { loaded.ctx_v, loaded.ctx_a, loaded.ctx_gen_a }) {
        if (ctx) {
            add(ctx->mem_usage, &clip_device_bytes::weights, *ctx);
            add(ctx->mem_compute, &clip_device_bytes::compute, *ctx);
        }
    }
    computed.clear();
    return loaded;
}

const std::vector<clip_device_bytes> & clip_last_bytes() {
    return last_bytes;
}

int clip_last_rows() {
    return last_rows;
}

const std::string & clip_last_refusal() {
    return refusal;
}

void clip_forget_refusal() {
    refusal.clear();
}
