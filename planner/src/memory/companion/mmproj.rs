//! An mmproj: encoders of images and sound with their projectors, as llama.cpp loads them (tools/mtmd/clip.cpp). If
//! llama.cpp has counted the bytes, its numbers are used. Otherwise the bytes of the weights are exact, and those of
//! the compute buffers are an upper bound.

use std::num::Saturating;

use crate::gguf::{Header, Tensor};
use crate::machine::Gpu;
use crate::memory::backend::{BackendRules, Family};
use crate::memory::{FlashAttention, Footprint, PeakSizes};
use crate::profile::ModelProfile;

use super::bytes::CompanionBytes;
use super::error::{Error, file};

/// Image projectors whose encoder has blocks like those of `build_vit` (clip.cpp). The values come from clip.cpp's
/// `load_hparams`: the tokens of the largest image (0 means a square of `image_size`, also for each tile of a larger
/// image), the patches per side of a token if the header does not state them, and whether the header's
/// `image_max_pixels` applies.
const PROJECTORS: &[(&str, u64, u64, bool)] = &[
    ("mlp ldp ldpv2 adapter resampler cogvlm janus_pro", 0, 1, false),
    ("idefics3 internvl llama4 nemotron_v2_vl lightonocr", 0, 1, false),
    ("gemma3 minicpmv4_6 step3vl", 0, 4, false),
    ("phi4 dots_ocr", 0, 1, true),
    ("paddleocr glm5v exaone4_5 mimovl", 0, 2, true),
    ("lfm2", 256, 1, false),
    ("minimax_m3", 576, 2, false),
    ("pixtral kimivl", 1024, 1, false),
    ("gemma4v", 1120, 3, false),
    ("qwen2vl_merger qwen2.5vl_merger qwen3vl_merger qwen2.5o ling3vl glm4v", 4096, 2, false),
    ("kimik25", 4096, 1, true),
    // llama.cpp's limit is 62,500. Our loads set the limit stated here (autoplace, `load/mmproj.rs`).
    ("youtuvl", 4096, 2, false),
    ("hunyuanvl", 16384, 2, true),
];

/// Image projectors that cut an image into slices of many shapes.
const SLICED: &str = "resampler minicpmv4_6";

/// Pixels of a side of Step3-VL's tiles. In addition to the tiles, an image of `image_size` is encoded (mtmd-image.h,
/// `default_image_crop_size`).
const STEP3_TILE: u64 = 504;

/// Sound encoders of Whisper's kind (models/whisper-enc.cpp). They read 30 seconds at once: 3000 frames of the
/// spectrogram (clip-model.h, `warmup_audio_size`; mtmd-audio.cpp), two of which form a patch.
const WHISPER: &str = "ultravox qwen2a qwen2.5o voxtral glma meralion musicflamingo";

/// An allowance for the alignment of some hundred tensors, the matrix that Gemma 3 transposes on every run
/// (models/siglip.cpp), and the padding of Metal's fused attention (ggml-metal-ops.cpp).
const SLACK: Saturating<u64> = Saturating(32 << 20);

/// Image projectors whose rows attend to all other rows of their image (mtmd.cpp, `mtmd_decode_use_non_causal`).
/// `gemma4v` is an exception at the widths of [`CAUSAL_GEMMA4V`]: there its rows attend causally.
const NON_CAUSAL: &str = "gemma3 gemma4v gemma4uv sensenova_u1 deepseek4v";
const CAUSAL_GEMMA4V: [u32; 2] = [1536, 2560];

/// Head sizes for which every known GPU fuses attention, as clip.cpp's `warmup` tests (ggml-cuda/fattn.cu,
/// `ggml_cuda_get_best_fattn_kernel`; ggml-vulkan.cpp, `ggml_backend_vk_device_supports_op`; ggml-metal-device.m,
/// `ggml_metal_device_supports_op`).
const FUSED_HEADS: &[u64] = &[40, 64, 72, 80, 96, 112, 128, 256];

/// An mmproj file with its encoders.
#[derive(Debug, Clone)]
pub(super) struct Mmproj {
    header: Header,
    encoders: Vec<Encoder>,
    pub(super) max_image_tokens: Option<u32>,
    pub(super) counted: Vec<Counted>,
}

/// The bytes that llama.cpp itself has counted for a device.
#[derive(Debug, Clone)]
pub(super) struct Counted {
    /// ggml's name of the GPU; `None` for the host.
    pub(super) device: Option<String>,
    pub(super) flash: FlashAttention,
    pub(super) bytes: CompanionBytes,
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
        Ok(Self { header: header.clone(), encoders, max_image_tokens: None, counted: Vec::new() })
    }

    /// Checks that the output is as wide as the main model's input (mtmd.cpp, `mtmd_context::mtmd_context`), for
    /// projectors whose output tensor is known (clip.cpp, `clip_n_mmproj_embd`).
    pub(super) fn compatible_with(&self, main: &Header) -> Result<(), Error> {
        let hparams = ModelProfile::from_header(main)?.hparams;
        let of_main = u64::from(hparams.n_embd).saturating_mul(1 + u64::from(hparams.n_deepstack_layers));
        // A row of Qwen3-VL has further parts for later blocks.
        let mut parts = 1;
        let (tensor, dim) = match self.encoders[0].projector.as_str() {
            "mlp" | "pixtral" | "qwen2vl_merger" | "qwen2.5vl_merger" => ("mm.2.weight", 1),
            "qwen3vl_merger" => {
                let is_part = |tensor: &Tensor| {
                    tensor.name().starts_with("v.deepstack.") && tensor.name().ends_with(".fc1.weight")
                };
                parts += self.header.tensors().filter(|tensor| is_part(tensor)).count() as u64;
                ("mm.2.weight", 1)
            }
            "gemma3" => ("mm.input_projection.weight", 0),
            "idefics3" => ("mm.model.fc.weight", 1),
            "internvl" => ("mm.model.mlp.3.weight", 1),
            "resampler" => ("resampler.proj.weight", 0),
            "minicpmv4_6" => ("mm.down.weight", 1),
            _ => return Ok(()),
        };
        match self.header.tensor(tensor).map(|tensor| tensor.shape()[dim].saturating_mul(parts)) {
            Some(of_mmproj) if of_mmproj != of_main => {
                Err(Error::Width { file: file(&self.header), main: file(main), of_mmproj, of_main })
            }
            _ => Ok(()),
        }
    }

    /// The number of rows of the largest image, if each row of an image attends to all others: the model must then
    /// compute all rows of an image at once. Otherwise `None`.
    pub(super) fn rows_at_once(&self) -> Option<u32> {
        let of_images = |encoder: &&Encoder| encoder.is_non_causal;
        self.encoders.iter().filter(of_images).map(|encoder| encoder.rows(self.max_image_tokens)).max()
    }

    /// The mmproj's contribution to the headroom.
    pub(super) fn peak_sizes(&self) -> PeakSizes {
        let activations = |encoder: &Encoder| (encoder.positions(self.max_image_tokens) * encoder.widest).0;
        let matrices = self.header.tensors().filter(|tensor| tensor.n_dims() == 2);
        PeakSizes {
            activations: self.encoders.iter().map(activations).max().unwrap_or(0),
            decoded_matrix: matrices.map(Tensor::elements).max().unwrap_or(0).saturating_mul(2),
            vocabulary: 0,
        }
    }

    pub(super) fn bytes(&self, gpu: Option<&Gpu>, flash: FlashAttention) -> CompanionBytes {
        let is_there = |counted: &&Counted| match gpu {
            None => counted.device.is_none(),
            Some(gpu) => counted.device.is_some() && counted.device == gpu.device,
        };
        let counted = self.counted.iter().filter(is_there).find(|counted| counted.flash == flash);
        counted.map_or_else(|| self.bound(gpu, flash), |counted| counted.bytes)
    }

    /// The exact bytes of the weights, and an upper bound of the buffers for the largest image.
    fn bound(&self, gpu: Option<&Gpu>, flash: FlashAttention) -> CompanionBytes {
        // All weights go to one buffer type, and never to one that rearranges weights (clip.cpp, `load_tensors`).
        let rules = gpu.map_or(BackendRules::HOST, |gpu| BackendRules::of_gpu(gpu).0);
        let weights =
            self.header.tensors().map(|tensor| Saturating(rules.alloc(tensor.ty(), tensor.shape()[0], tensor.bytes())));
        let weights = weights.fold(Saturating(0), |sum, bytes| sum + bytes).0;
        // Each tensor passes through host memory on its way to the GPU, before the first image (clip.cpp,
        // `load_tensors`).
        let largest = self.header.tensors().map(Tensor::bytes).max().unwrap_or(0);
        let family = gpu.map(|gpu| Family::from_backend(&gpu.backend));
        // Buffers that are split into chunks have gaps, and the scores of the next block do not fit into these gaps
        // (ggml-vulkan.cpp, `ggml_vk_get_device`).
        let unfused = if matches!(family, None | Some(Family::Cuda | Family::Metal)) { 1 } else { 2 };
        let (mut compute, mut inputs) = (Saturating(0), Saturating(0));
        for encoder in &self.encoders {
            let fuses = flash != FlashAttention::Off
                && family.is_none_or(|family| family != Family::Other && FUSED_HEADS.contains(&encoder.head));
            let (device, host) = encoder.buffers(self.max_image_tokens, if fuses { 0 } else { unfused });
            compute += device;
            inputs += host;
        }
        let (all, inputs) = (Footprint::new(weights, 0, compute.0), inputs.0.max(largest));
        let zero = CompanionBytes::default();
        match gpu {
            None => CompanionBytes { host: all, host_uncertainty: compute.0 / 4, ..zero },
            Some(_) => CompanionBytes {
                gpu: all,
                host: Footprint::new(0, 0, inputs),
                gpu_uncertainty: compute.0 / 4,
                host_uncertainty: inputs / 4,
            },
        }
    }
}

/// An encoder with its projector: the number of patches, and the bytes for each patch.
#[derive(Debug, Clone)]
struct Encoder {
    projector: String,
    /// Patches of the largest input if its size is fixed. If the size is free, `tokens` is the number of the input's
    /// tokens, and `merged` is the number of patches in each token.
    patches: Saturating<u64>,
    tokens: u64,
    merged: Saturating<u64>,
    /// The number of tiles of an image in one computation.
    batch: Saturating<u64>,
    /// Bytes for each patch: `beside` counts the picture and the projector's results; `attention` counts queries, keys,
    /// values and their results; `step` counts a block's other steps; `widest` counts the widest activation.
    beside: Saturating<u64>,
    attention: Saturating<u64>,
    step: Saturating<u64>,
    widest: Saturating<u64>,
    /// Bytes of attention scores and masks for each pair of patches.
    scores: Saturating<u64>,
    masks: Saturating<u64>,
    head: u64,
    is_non_causal: bool,
}

impl Encoder {
    fn read(header: &Header, kind: &str) -> Result<Self, Error> {
        let n = Saturating::<u64>;
        let key = |suffix: &str| format!("clip.{kind}.{suffix}");
        let optional =
            |suffix: &str| Ok::<_, Error>(header.u32(&key(suffix))?.map(u64::from).filter(|&value| value > 0));
        let size = |suffix: &str| optional(suffix)?.ok_or_else(|| missing(header, &key(suffix)));
        // In a file with several encoders, each encoder may name a projector of its own (clip.cpp, `load_hparams`).
        let projector = match header.str("clip.projector_type")?.unwrap_or_default() {
            "" => header.str(&key("projector_type"))?.unwrap_or_default(),
            projector => projector,
        };
        let known = PROJECTORS.iter().find(|known| is_listed(known.0, projector));
        let (picture, patches, tokens, merged) = match (kind, known) {
            ("vision", Some(&(_, tokens, merge, reads_max_pixels))) => {
                let stated = optional("projector.scale_factor")?.or(optional("spatial_merge_size")?);
                let merge = stated.unwrap_or(merge);
                let (side, mut image) = (size("patch_size")?, size("image_size")?);
                if projector == "step3vl" {
                    image = image.max(STEP3_TILE);
                }
                let longest = optional("preproc_image_size")?.filter(|_| projector == "lightonocr");
                let stated =
                    optional("image_max_pixels")?.filter(|_| reads_max_pixels).map(|pixels| pixels / side / side);
                // llama.cpp rounds each side up to whole tokens (mtmd-image.cpp, `calc_size_preserved_ratio`).
                let per_side = n(longest.unwrap_or(image).div_ceil(side).next_multiple_of(merge));
                let square = if tokens == 0 { per_side * per_side } else { n(0) };
                // The sides of a slice are rounded, which makes narrow slices larger (mtmd-image.cpp,
                // `get_best_resize`).
                let square = if is_listed(SLICED, projector) { square * n(3) / n(2) } else { square };
                let tokens = if stated.is_some() { 0 } else { tokens };
                // A patch has three colours in each of two frames.
                (n(6 * side) * n(side), square.max(n(stated.unwrap_or(0))), tokens, n(merge) * n(merge))
            }
            ("audio", _) if is_listed(WHISPER, projector) => (n(2 * size("num_mel_bins")?), n(1500), 0, n(0)),
            _ => {
                let what = format!("the {kind} projector `{projector}`");
                return Err(Error::Unread { file: file(header), what });
            }
        };
        let (n_embd, n_head) = (size("embedding_length")?, size("attention.head_count")?);
        let head = optional("attention.head_dim")?.unwrap_or(n_embd / n_head);
        let (mut n_ff, mut is_gated, mut projected) = (optional("feed_forward_length")?.unwrap_or(0), false, n(0));
        for tensor in header.tensors().filter(|tensor| tensor.n_dims() == 2) {
            let ([ne0, ne1, ..], name) = (tensor.shape(), tensor.name());
            if name.starts_with(&format!("{}.blk.", &kind[..1])) && name.contains(".ffn_") {
                // Old files state no width, and some swap the names of the two matrices (clip.cpp, `load_tensors`).
                n_ff = n_ff.max(ne0).max(ne1);
                is_gated |= name.contains(".ffn_gate.");
            } else if !name.contains(".blk.") && !name.contains("posit") && !name.contains("pos_embed") {
                projected += ne1;
            }
        }
        let width = header.u32(&key("projection_dim"))?.unwrap_or(0);
        let is_causal = projector == "gemma4v" && CAUSAL_GEMMA4V.contains(&width);
        let windows = ["n_wa_pattern", "window_size", "wa_pattern_mode", "wa_layer_indexes"];
        let is_masked = windows.iter().any(|window| header.get(&key(window)).is_some());
        let (stream, wide) = (n(4) * n(n_embd).max(n(n_head) * n(head)), n(4) * n(n_ff));
        let forward = if is_gated { n(5) * stream + n(3) * wide } else { n(3) * stream + wide };
        let per_token = merged.max(n(1));
        Ok(Self {
            projector: projector.to_owned(),
            patches,
            tokens,
            merged,
            // InternVL's tiles are encoded in batches (models.h, `support_batch`; mtmd.cpp,
            // `mtmd_context_params_default`, `batch_max_tokens`).
            batch: if projector == "internvl" { (n(1024) * per_token / patches).max(n(1)) } else { n(1) },
            // The picture also occupies the buffer from which it is copied. At most four indices describe the order of
            // windows (models/qwen2vl.cpp, `clip_graph_qwen2vl::build`).
            beside: n(4) * (n(2) * picture + projected / per_token + n(6)),
            attention: stream * n(17) / n(2),
            step: forward.max(n(5) * stream + n(4) * picture),
            // Queries, keys and values may be one matrix.
            widest: (n(3) * stream).max(wide),
            scores: n(4) * n(n_head),
            masks: n(if is_masked { 6 } else { 0 }),
            head,
            is_non_causal: kind == "vision" && is_listed(NON_CAUSAL, projector) && !is_causal,
        })
    }

    /// The number of rows of the largest image.
    fn rows(&self, max_image_tokens: Option<u32>) -> u32 {
        let square = (self.patches / self.merged.max(Saturating(1))).0;
        let tokens = if self.tokens == 0 { square } else { max_image_tokens.map_or(self.tokens, u64::from) };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// The number of positions of one computation for images of at most `max_image_tokens` tokens. Some encoders add a
    /// class token to each image, and LFM2's tiles have 256 tokens (mtmd-image.h, `mtmd_image_preprocessor_lfm2`).
    fn positions(&self, max_image_tokens: Option<u32>) -> Saturating<u64> {
        let tokens = max_image_tokens.map_or(self.tokens, |limit| u64::from(limit).max(self.tokens.min(256)));
        (self.patches.max(self.merged * Saturating(tokens)) + Saturating(1)) * self.batch
    }

    /// Upper bounds of the encoder's buffers for its largest input: on the device that computes, and on the host, which
    /// fills the inputs. `scores` is the number of unfused score matrices that exist at the same time.
    ///
    /// `benches/clip-buffers` compares this bound with clip.cpp's reservation, for images from 4 tokens to the largest
    /// and with the rules of CUDA, Vulkan, Metal and the CPU. llama.cpp warms up with a smaller image if a projector
    /// takes any size (`set_warmup_n_tokens`, clip-model.h), and allocates more when a larger image comes later.
    fn buffers(&self, max_image_tokens: Option<u32>, scores: u64) -> (Saturating<u64>, Saturating<u64>) {
        let (positions, scores) = (self.positions(max_image_tokens), Saturating(scores));
        let pairs = positions * positions / self.batch;
        let beside = positions * self.beside + pairs * self.masks + SLACK;
        let attention = positions * self.attention;
        let device = beside + (attention + scores * pairs * self.scores).max(positions * self.step);
        // If a GPU cannot fuse attention, the CPU computes it (clip.cpp, `warmup`) and keeps its own queries, keys and
        // values.
        (device, beside + attention * scores)
    }
}

/// Whether a list separated by spaces contains this word.
fn is_listed(list: &str, word: &str) -> bool {
    list.split(' ').any(|listed| listed == word)
}

/// The error for a key that is missing or 0.
fn missing(header: &Header, key: &str) -> Error {
    Error::Missing { file: file(header), key: key.to_owned() }
}
