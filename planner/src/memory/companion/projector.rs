//! The projectors that we have read: how large an image each is handed, and how many patches become one token.

use crate::gguf::Header;

use super::Error;

/// What decides the largest image of a projector (clip.cpp, `load_hparams`; which preprocessor:
/// mtmd.cpp, `init_vision`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Images {
    /// Every image, or each tile of it, is a square of `image_size`.
    Square,
    /// So many tokens, which `--image-max-tokens` changes.
    Tokens(u32),
    /// The header's `image_max_pixels`.
    Pixels,
    /// The header's `image_max_pixels`, else so many tokens.
    PixelsOr(u32),
    /// No side is longer than the header's `preproc_image_size`, else `image_size`.
    LongestEdge,
}

/// A projector of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Projector {
    pub(super) images: Images,
    /// Patches that are merged into a token, per side, where the header does not say.
    merge: u32,
    /// The key that says.
    merge_key: Option<&'static str>,
    /// Frames of a video that are computed at once (clip.cpp, `clip_model_n_temporal_merge`).
    pub(super) frames: u32,
    /// Whether several images are computed at once (models.h, `support_batch`).
    pub(super) batches: bool,
    /// Whether the bound was held against what clip.cpp reserves.
    pub(super) is_checked: bool,
}

const SCALE: Option<&str> = Some("clip.vision.projector.scale_factor");
const SPATIAL: Option<&str> = Some("clip.vision.spatial_merge_size");

/// Whether `clip.projector_type` names an encoder of sound that is Whisper's (clip.cpp, `load_hparams`;
/// models/whisper-enc.cpp), which hears 30 seconds at once.
pub(super) fn is_whisper(name: &str) -> bool {
    matches!(
        name,
        "ultravox" | "qwen2a" | "qwen2.5o" | "voxtral" | "glma" | "meralion" | "musicflamingo"
    )
}

impl Projector {
    /// What `clip.projector_type` names, where it is an encoder of images made of blocks like `build_vit`'s (clip.cpp).
    pub(super) fn of_images(name: &str) -> Option<Self> {
        let (images, merge, merge_key) = match name {
            "mlp" | "ldp" | "ldpv2" | "adapter" | "resampler" | "cogvlm" | "janus_pro" => {
                (Images::Square, 1, None)
            }
            "gemma3" => (Images::Square, 4, SCALE),
            "idefics3" | "internvl" | "llama4" | "nemotron_v2_vl" => (Images::Square, 1, SCALE),
            "pixtral" => (Images::Tokens(1024), 1, SPATIAL),
            // `qwen2.5o` sees by the encoder of Qwen2.5-VL (clip.cpp, `load_hparams`).
            "qwen2vl_merger" | "qwen2.5vl_merger" | "qwen3vl_merger" | "qwen2.5o" | "ling3vl"
            | "glm4v" => (Images::Tokens(4096), 2, SPATIAL),
            "lfm2" => (Images::Tokens(256), 1, SCALE),
            "kimivl" => (Images::Tokens(1024), 1, SCALE),
            "kimik25" => (Images::PixelsOr(4096), 1, SCALE),
            "gemma4v" => (Images::Tokens(1120), 3, SCALE),
            "minimax_m3" => (Images::Tokens(576), 2, SPATIAL),
            "hunyuanvl" => (Images::PixelsOr(16384), 2, SPATIAL),
            "phi4" => (Images::Pixels, 1, None),
            "paddleocr" => (Images::Pixels, 2, None),
            "dots_ocr" => (Images::Pixels, 1, SCALE),
            "glm5v" | "exaone4_5" | "mimovl" => (Images::Pixels, 2, SPATIAL),
            "lightonocr" => (Images::LongestEdge, 1, SPATIAL),
            _ => return None,
        };
        let is_qwen = name.starts_with("qwen");
        Some(Self {
            images,
            merge,
            merge_key,
            frames: if is_qwen || name == "ling3vl" { 2 } else { 1 },
            batches: name == "internvl",
            is_checked: is_qwen
                || matches!(name, "mlp" | "gemma3" | "idefics3" | "internvl" | "pixtral"),
        })
    }

    /// Patches per side of a token.
    pub(super) fn merge(&self, header: &Header) -> Result<u64, Error> {
        let stated = match self.merge_key {
            Some(key) => header.u32(key)?,
            None => None,
        };
        Ok(u64::from(stated.unwrap_or(self.merge)).max(1))
    }
}
