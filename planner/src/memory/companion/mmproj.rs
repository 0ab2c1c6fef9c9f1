//! An mmproj: encoders of images and sound, and the projectors behind them, as llama.cpp loads them
//! (tools/mtmd/clip.cpp). Its weights are exact, what it computes with is an upper bound.

use std::num::Saturating;

use crate::gguf::{Header, Tensor};
use crate::machine::Gpu;
use crate::memory::backend::{BackendRules, Family};
use crate::memory::{FlashAttention, Footprint, Workload};
use crate::profile::ModelProfile;

use super::{CompanionBytes, Error, file, product};

/// Projectors of images whose encoder is made of blocks like `build_vit`'s (clip.cpp), and what clip.cpp's
/// `load_hparams` has for them: tokens of the largest image (0: a square of `image_size`, as is each tile of a larger
/// one), patches per side of a token where the header does not say, whether the header's `image_max_pixels` counts.
const PROJECTORS: &[(&str, u64, u64, bool)] = &[
    ("mlp ldp ldpv2 adapter resampler cogvlm janus_pro", 0, 1, false),
    ("idefics3 internvl llama4 nemotron_v2_vl lightonocr", 0, 1, false),
    ("gemma3", 0, 4, false),
    ("phi4 dots_ocr", 0, 1, true),
    ("paddleocr glm5v exaone4_5 mimovl", 0, 2, true),
    ("lfm2", 256, 1, false),
    ("minimax_m3", 576, 2, false),
    ("pixtral kimivl", 1024, 1, false),
    ("gemma4v", 1120, 3, false),
    ("qwen2vl_merger qwen2.5vl_merger qwen3vl_merger qwen2.5o ling3vl glm4v", 4096, 2, false),
    ("kimik25", 4096, 1, true),
    ("hunyuanvl", 16384, 2, true),
];

/// Encoders of sound that are Whisper's (models/whisper-enc.cpp), which hears 30 seconds at once.
const WHISPER: &str = "ultravox qwen2a qwen2.5o voxtral glma meralion musicflamingo";

/// Projectors whose bound was held against what clip.cpp reserves (`benches/clip-buffers`).
const CHECKED: &str = "mlp gemma3 idefics3 internvl pixtral qwen2vl_merger qwen2.5vl_merger qwen3vl_merger qwen2.5o \
    qwen2a ultravox";

/// Frames of Whisper's spectrogram: 30 seconds (clip-model.h, `warmup_audio_size`; mtmd-audio.cpp).
const FRAMES: u64 = 3000;

/// Tokens of the images that are computed at once (mtmd.cpp, `mtmd_context_params_default`, `batch_max_tokens`).
const BATCH_TOKENS: u64 = 1024;

/// The blocks that Vulkan cuts its buffers into (ggml-vulkan.cpp, `ggml_vk_get_device`).
const BLOCK: u64 = 1 << 30;

/// What the alignment of some hundred tensors may add, the matrix that Gemma 3 turns around on every run
/// (models/siglip.cpp, `clip_graph_siglip::build`), and what Metal's fused attention pads to (ggml-metal-ops.cpp,
/// `ggml_metal_op_flash_attn_ext_extra_*`).
const SLACK: u64 = 32 << 20;

/// Sizes of heads with which attention is one fused step on every GPU that we know, as clip.cpp's `warmup` asks it
/// (ggml-cuda/fattn.cu, `ggml_cuda_get_best_fattn_kernel`; ggml-vulkan.cpp, `ggml_backend_vk_device_supports_op`;
/// ggml-metal-device.m, `ggml_metal_device_supports_op`).
const FUSED_HEADS: &[u64] = &[40, 64, 72, 80, 96, 112, 128, 256];

/// A file of encoders.
#[derive(Debug, Clone)]
pub(super) struct Mmproj {
    header: Header,
    encoders: Vec<Encoder>,
    pub(super) max_image_tokens: Option<u32>,
}

impl Mmproj {
    pub(super) fn read(header: &Header) -> Result<Self, Error> {
        let architecture = header.architecture()?;
        if architecture != "clip" {
            return Err(Error::WrongKind {
                file: file(header),
                architecture: architecture.to_owned(),
                role: "an mmproj",
                wanted: "of `clip`",
            });
        }
        let mut encoders = Vec::new();
        for kind in ["vision", "audio", "gen_audio"] {
            if header.bool(&format!("clip.has_{kind}_encoder"))?.unwrap_or(false) {
                encoders.push(Encoder::read(header, kind)?);
            }
        }
        if encoders.is_empty() {
            return Err(missing(header, "clip.has_vision_encoder"));
        }
        Ok(Self { header: header.clone(), encoders, max_image_tokens: None })
    }

    /// Whether what it gives is as wide as the main model's embeddings (mtmd.cpp, `mtmd_context::mtmd_context`), where
    /// we know which tensor says that (clip.cpp, `clip_n_mmproj_embd`).
    pub(super) fn compatible_with(&self, main: &Header) -> Result<(), Error> {
        let of_main = u64::from(ModelProfile::from_header(main)?.hparams.n_embd);
        let (tensor, dim) = match self.encoders[0].projector.as_str() {
            "mlp" | "pixtral" | "qwen2vl_merger" | "qwen2.5vl_merger" => ("mm.2.weight", 1),
            "gemma3" => ("mm.input_projection.weight", 0),
            "idefics3" => ("mm.model.fc.weight", 1),
            "internvl" => ("mm.model.mlp.3.weight", 1),
            _ => return Ok(()),
        };
        match self.header.tensor(tensor).map(|tensor| tensor.shape()[dim]) {
            Some(of_mmproj) if of_mmproj != of_main => {
                Err(Error::Width { file: file(&self.header), main: file(main), of_mmproj, of_main })
            }
            _ => Ok(()),
        }
    }

    /// What it makes a driver and its pools do.
    pub(super) fn workload(&self) -> Workload {
        let activations = |encoder: &Encoder| encoder.activations(self.max_image_tokens);
        let matrices = (self.header.tensors()).filter(|tensor| tensor.n_dims() == 2);
        let largest = matrices.map(Tensor::elements).max();
        Workload {
            activations: self.encoders.iter().map(activations).max().unwrap_or(0),
            decoded_matrix: largest.unwrap_or(0).saturating_mul(2),
            vocabulary: 0,
        }
    }

    pub(super) fn bytes(&self, gpu: Option<&Gpu>, flash: FlashAttention) -> CompanionBytes {
        // Everything goes to one buffer type, which is never one that rearranges (clip.cpp, `load_tensors`).
        let rules = gpu.map_or(BackendRules::HOST, BackendRules::of_gpu);
        let weights = (self.header.tensors())
            .map(|tensor| rules.alloc(tensor.ty(), tensor.shape()[0], tensor.bytes()))
            .fold(0, u64::saturating_add);
        let family = gpu.map(|gpu| Family::of(&gpu.backend));
        let (mut compute, mut inputs) = (0u64, 0u64);
        for encoder in &self.encoders {
            let (device, host) = encoder.buffers(self.max_image_tokens, family, flash);
            compute = compute.saturating_add(device);
            inputs = inputs.saturating_add(host);
        }
        let is_checked = |encoder: &Encoder| is_listed(CHECKED, &encoder.projector);
        let uncertainty = if self.encoders.iter().all(is_checked) { compute / 8 } else { compute };
        let all = Footprint::new(weights, 0, compute);
        if gpu.is_none() {
            return CompanionBytes { host: all, host_uncertainty: uncertainty, ..CompanionBytes::default() };
        }
        // Each tensor is read into memory of the host on its way (clip.cpp, `load_tensors`), before the
        // first image comes.
        let largest = self.header.tensors().map(Tensor::bytes).max();
        let inputs = inputs.max(largest.unwrap_or(0));
        CompanionBytes {
            gpu: all,
            host: Footprint::new(0, 0, inputs),
            gpu_uncertainty: uncertainty,
            host_uncertainty: inputs / 8,
        }
    }
}

/// An encoder and its projector: the sizes that bound its compute buffer.
#[derive(Debug, Clone)]
struct Encoder {
    projector: String,
    /// Bytes of a patch as 32-bit floats: three colours of two frames; of sound a column of the spectrogram.
    patch: u64,
    /// Patches that become one token.
    merged: u64,
    /// Patches of the largest image, or of 30 seconds, where nobody limits its tokens.
    patches: u64,
    /// Patches that an image may have whatever its tokens are limited to; `None` of sound, which has no such limit.
    least: Option<u64>,
    width: u64,
    n_ff: u64,
    n_head: u64,
    head: u64,
    is_gated: bool,
    /// Whether some blocks attend to windows, by a mask.
    is_masked: bool,
    /// Rows or columns of the widest matrix of the projector.
    widest: u64,
    /// Width of all features that are kept beside the last block's.
    kept: u64,
}

impl Encoder {
    fn read(header: &Header, kind: &str) -> Result<Self, Error> {
        let key = |suffix: &str| format!("clip.{kind}.{suffix}");
        let optional = |suffix: &str| Ok::<_, Error>(header.u32(&key(suffix))?.map(u64::from));
        let size = |suffix: &str| {
            let above_0 = optional(suffix)?.filter(|&size| size > 0);
            above_0.ok_or_else(|| missing(header, &key(suffix)))
        };
        // Where the file has several encoders, each may have a projector of its own (clip.cpp, `load_hparams`).
        let projector = match header.str("clip.projector_type")?.unwrap_or_default() {
            "" => header.str(&key("projector_type"))?.unwrap_or_default(),
            projector => projector,
        };
        let known = PROJECTORS.iter().find(|known| is_listed(known.0, projector));
        let (patch, merged, patches, least) = match (kind, known) {
            ("vision", Some(&(_, tokens, merge, hears_pixels))) => {
                let stated = optional("projector.scale_factor")?.or(optional("spatial_merge_size")?);
                let merge = stated.unwrap_or(merge).max(1);
                let merged = product(&[merge, merge]);
                let (side, mut image) = (size("patch_size")?, size("image_size")?);
                if projector == "lightonocr" {
                    image = optional("preproc_image_size")?.unwrap_or(image);
                }
                // Sides are rounded up to whole tokens (mtmd-image.cpp, `calc_size_preserved_ratio`).
                let square = |length: u64| {
                    let per_side = length.div_ceil(side).next_multiple_of(merge);
                    product(&[per_side, per_side])
                };
                let pixels = optional("image_max_pixels")?.filter(|_| hears_pixels);
                let stated = pixels.map(|pixels| pixels / product(&[side, side]));
                // LFM2's tiles are squares of 512 pixels (mtmd-image.h, `mtmd_image_preprocessor_lfm2`).
                let least = if tokens == 0 { square(image) } else { square(512) };
                let least = least.max(stated.unwrap_or(0));
                let patches = stated.unwrap_or(product(&[tokens, merged])).max(least);
                (product(&[24, side, side]), merged, patches, Some(least))
            }
            ("audio", _) if is_listed(WHISPER, projector) => {
                let merged = optional("projector.stack_factor")?.unwrap_or(1).max(1);
                (product(&[8, size("num_mel_bins")?]), merged, FRAMES / 2, None)
            }
            _ => {
                let what = format!("the {kind} projector `{projector}`");
                return Err(Error::Unread { file: file(header), what });
            }
        };
        let (n_embd, n_head) = (size("embedding_length")?, size("attention.head_count")?);
        let stated = optional("attention.head_dim")?.filter(|&head| head > 0);
        let head = stated.unwrap_or(n_embd / n_head);
        let windows = ["n_wa_pattern", "window_size", "wa_pattern_mode", "wa_layer_indexes"];
        let mut encoder = Self {
            projector: projector.to_owned(),
            patch,
            merged,
            patches,
            least,
            width: n_embd.max(product(&[n_head, head])),
            n_ff: optional("feed_forward_length")?.unwrap_or(0),
            n_head,
            head,
            is_gated: false,
            is_masked: windows.iter().any(|window| header.get(&key(window)).is_some()),
            widest: n_embd,
            kept: 0,
        };
        let block = format!("{}.blk.", &kind[..1]);
        let matrices = header.tensors().filter(|tensor| tensor.n_dims() == 2);
        for tensor in matrices.filter(|tensor| tensor.name().ends_with(".weight")) {
            let ([ne0, ne1, ..], name) = (tensor.shape(), tensor.name());
            if name.starts_with(&block) {
                if name.contains(".ffn_") {
                    // Old files state no width, and some name the two matrices the wrong way round (clip.cpp,
                    // `load_tensors`).
                    encoder.n_ff = encoder.n_ff.max(ne0).max(ne1);
                    encoder.is_gated |= name.contains(".ffn_gate.");
                }
            } else if name.contains(".deepstack.") {
                if name.contains(".fc2.") {
                    encoder.kept = encoder.kept.saturating_add(ne1);
                }
            } else if !name.contains("posit") && !name.contains("pos_embed") {
                encoder.widest = encoder.widest.max(ne0).max(ne1);
            }
        }
        Ok(encoder)
    }

    /// Patches of the largest input, where images have at most so many tokens, and the inputs that are computed at
    /// once: tiles of InternVL's images (models.h, `support_batch`).
    fn input(&self, max_image_tokens: Option<u32>) -> (u64, u64) {
        let patches = match (max_image_tokens, self.least) {
            (Some(tokens), Some(least)) => product(&[u64::from(tokens), self.merged]).max(least),
            _ => self.patches,
        };
        let is_batched = self.projector == "internvl";
        let at_once = if is_batched { BATCH_TOKENS / patches.div_ceil(self.merged) } else { 1 };
        (patches, at_once.max(1))
    }

    /// An upper bound of the encoder's buffers for its largest input: of the one where it computes, on a device of this
    /// family or the host, and of the one on the host from which that is filled.
    ///
    /// With `P` positions, `E` = 4 · width · `P` and `F` = 4 · `n_ff` · `P` bytes of 32-bit floats, the largest of
    /// these steps:
    ///
    /// | step | bytes |
    /// |---|---|
    /// | patches | 5 `E` + 2 pictures |
    /// | attention | 8½ `E`; where it is not fused 7½ `E` + 4 · heads · `P`², and twice that where buffers are cut |
    /// | feed-forward | 3 `E` + `F`, gated 5 `E` + 3 `F` |
    /// | projector | 2 `E` + 3½ of its widest step |
    ///
    /// Beside it lie the picture, positions, features that are kept for the end, and one and a half masks of 4 · `P`²
    /// bytes where some blocks attend to windows. `benches/clip-buffers` holds it against what clip.cpp reserves, for
    /// images from 4 tokens to the largest by CUDA's, Vulkan's, Metal's and the CPU's rules. llama.cpp warms up with a
    /// smaller image where a projector takes any size (`set_warmup_n_tokens`, clip-model.h), and takes more when a
    /// larger one comes.
    fn buffers(&self, max_image_tokens: Option<u32>, family: Option<Family>, flash: FlashAttention) -> (u64, u64) {
        let n = Saturating::<u64>;
        let (patches, batch) = self.input(max_image_tokens);
        let tokens = n(patches.div_ceil(self.merged)) * n(batch);
        // Some encoders have a class token beside the patches.
        let (positions, batch) = (n(patches) + n(1), n(batch));
        let floats = n(4) * positions * batch;
        let (stream, wide) = (floats * n(self.width), floats * n(self.n_ff));
        let picture = n(self.patch) * positions * batch;
        let kept = n(4) * n(self.kept) * tokens;
        let mask = n(if self.is_masked { 4 } else { 0 }) * positions * positions;
        let step = n(4) * n(self.widest) * tokens;

        let fuses = match family {
            _ if flash == FlashAttention::Off => false,
            None => true,
            Some(Family::Other) => false,
            Some(_) => FUSED_HEADS.contains(&self.head),
        };
        let scores = floats * n(self.n_head) * positions;
        let attention = stream * n(15) / n(2);
        let attended = match family {
            _ if fuses => attention + stream,
            None | Some(Family::Cuda | Family::Metal) => attention + scores,
            // What is cut into blocks leaves gaps that the next scores do not fit.
            Some(_) => attention + scores * n(if scores > n(BLOCK / 2) { 2 } else { 1 }),
        };
        let forward = match self.is_gated {
            true => stream * n(5) + wide * n(3),
            false => stream * n(3) + wide,
        };
        // With a row of its own after each row of tokens, of which an image has at most an eighth as many, from 8 x 8
        // on.
        let projector = stream * n(2) + step * n(7) / n(2);
        // The picture as numbers, the same in the buffer from which it is copied, and four positions per patch at most
        // with the order of windows (models/qwen2vl.cpp, `clip_graph_qwen2vl::build`).
        let inputs = picture + n(5) * floats;
        let most = (stream * n(5) + picture * n(2)).max(attended).max(forward).max(projector);
        let device = inputs + kept + mask * n(3) / n(2) + most + n(SLACK);
        // What a GPU cannot fuse the CPU does (clip.cpp, `warmup`), with queries, keys and values of its own.
        let unfused = if fuses { n(0) } else { attention };
        (device.0, (inputs + picture + kept + mask + step + unfused).0)
    }

    /// Bytes of the widest activations of the largest input, in 32-bit floats.
    fn activations(&self, max_image_tokens: Option<u32>) -> u64 {
        let (patches, batch) = self.input(max_image_tokens);
        // Queries, keys and values may be one matrix.
        let widest = self.n_ff.max(product(&[3, self.width]));
        product(&[4, widest, patches.saturating_add(1), batch])
    }
}

/// Whether a word is in a list of them.
fn is_listed(list: &str, word: &str) -> bool {
    list.split(' ').any(|listed| listed == word)
}

/// A file without this key, or with 0 for it.
fn missing(header: &Header, key: &str) -> Error {
    Error::Missing { file: file(header), key: key.to_owned() }
}
