// Returns the bytes that clip.cpp reserves for an image of any size. clip.cpp is included here, because its loader does
// not publish these bytes.
#include "clip.cpp"

// Sizes are in bytes. `width` is in pixels for an image, and in frames for sound.
struct reserved {
    uint64_t weights;
    uint64_t device;
    uint64_t host;
};

// Loads the file without allocating memory, on a device or, if `device` is null, on the CPU. Returns 0, or 1 after an
// exception.
extern "C" int clip_reserve(const char * path, ggml_backend_dev_t device, bool sound, bool fused, int width, int height, int images, reserved * out) {
    try {
        clip_context_params params{};
        params.use_gpu          = device != nullptr;
        params.device           = device;
        params.flash_attn_type  = fused ? CLIP_FLASH_ATTN_TYPE_ENABLED : CLIP_FLASH_ATTN_TYPE_DISABLED;
        params.image_min_tokens = -1;
        params.image_max_tokens = -1;
        params.no_alloc         = true;
        clip_model_loader loader(path, false, nullptr, nullptr);
        clip_ctx ctx(params);
        loader.load_hparams(ctx.model, sound ? CLIP_MODALITY_AUDIO : CLIP_MODALITY_VISION);
        loader.load_tensors(ctx);
        loader.init_ctx(ctx);
        clip_image_f32 image;
        image.set_size({width, height}, false, false);
        clip_image_f32_batch batch;
        for (int i = 0; i < images; i++) {
            batch.entries.push_back(image);
        }
        loader.reserve_compute_meta(ctx, batch);
        out->weights = ggml_backend_buffer_get_size(ctx.buf.get());
        out->device  = device ? ctx.mem_compute[device] : 0;
        out->host    = ctx.mem_compute[ggml_backend_get_device(ctx.backend_cpu)];
        return 0;
    } catch (const std::exception & error) {
        fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
