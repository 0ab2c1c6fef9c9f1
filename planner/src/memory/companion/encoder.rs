//! What an encoder of images or sound computes with.

use std::num::Saturating;

use crate::gguf::Header;
use crate::memory::backend::Family;

use super::error::missing;
use super::projector::{Images, Projector, is_whisper};
use super::{Error, file, product};

/// Frames of Whisper's spectrogram: 30 seconds (clip-model.h, `warmup_audio_size`; mtmd-audio.cpp).
const FRAMES: u64 = 3000;

/// Tokens of the images that are computed at once (mtmd.cpp, `mtmd_context_params_default`, `batch_max_tokens`).
const BATCH_TOKENS: u64 = 1024;

/// The blocks that Vulkan cuts its buffers into (ggml-vulkan.cpp, `ggml_vk_get_device`).
const BLOCK: u64 = 1 << 30;

/// What the alignment of some hundred tensors may add.
const ALIGNMENT: u64 = 64 << 10;

/// An encoder and its projector: the sizes that decide its compute buffer.
///
/// # The bound
///
/// With `P` positions of the largest input (patches, and the class token), `E` = 4 · width · `P` and `F` = 4 · `n_ff` ·
/// `P` bytes of 32-bit floats, the largest of these steps:
///
/// | step | bytes |
/// |---|---|
/// | patches | 5 `E` + 2 inputs |
/// | fused attention | 7½ `E`; on Metal `E` and its scratch more |
/// | attention | 7½ `E` + 4 · heads · `P`²; twice the latter where buffers are cut (Vulkan) |
/// | feed-forward | 3 `E` + `F`, gated 5 `E` + 3 `F` |
/// | projector | 2 `E` + 2 or 3½ of its widest step |
///
/// Beside it lie the inputs (the image as 32-bit floats), features that are kept for the end, one and a half
/// masks of 4 · `P`² bytes where some blocks attend to windows, and twice the matrix that Gemma 3 turns around.
///
/// The table was held against what clip.cpp reserves where [`is_checked`](Self::is_checked) says so: CUDA's, Vulkan's,
/// Metal's and the CPU's rules, images from 4 tokens to the largest, with fused attention and without
/// (`benches/clip-buffers`). It is never less, and for the largest image on CUDA at most half as much again. llama.cpp
/// warms up with a smaller image where a projector takes any size (`set_warmup_n_tokens`, clip-model.h), and takes more
/// when a larger one comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoder {
    name: String,
    is_checked: bool,
    /// Bytes of a patch as 32-bit floats: three colours, of all frames; of sound a column of the spectrogram.
    patch: u64,
    /// Patches that become one token.
    merged: u64,
    /// Patches of the largest image, where nobody limits its tokens.
    patches: u64,
    /// Patches that an image has whatever its tokens are limited to.
    least: u64,
    limit: Limit,
    /// Positions that are no patches.
    extra: u64,
    /// Whether several images are computed at once.
    batches: bool,
    width: u64,
    n_ff: u64,
    n_head: u64,
    pub(super) head: u64,
    is_gated: bool,
    /// Whether some blocks attend to windows, by a mask.
    is_masked: bool,
    /// Rows or columns of the widest matrix of the projector.
    widest: u64,
    /// Whether rows are added to what the projector gives.
    is_framed: bool,
    /// Width of all features that are kept beside the last block's.
    kept: u64,
    /// Bytes of the matrix that is turned around on every run (models/siglip.cpp, `clip_graph_siglip::build`).
    turned: u64,
}

/// What a limit of the tokens of an image does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Nothing,
    /// It is the only limit.
    Alone,
    /// It is one of two, and may be the larger one.
    Beside,
}

/// The largest input: positions and tokens of one image, images that are computed at once, bytes of one.
struct Input {
    positions: u64,
    tokens: u64,
    batch: u64,
    bytes: u64,
}

/// Bytes of an encoder's buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffers {
    /// Where it computes, inputs included.
    pub(super) compute: u64,
    /// On the host: what it is given, before it is copied, and what it returns.
    pub(super) inputs: u64,
    /// Queries, keys, values and the result of one attention.
    pub(super) attention: u64,
}

/// The keys of one encoder: `vision` or `audio`.
struct Keys<'a>(&'a Header, &'static str);

impl Keys<'_> {
    fn name(&self, suffix: &str) -> String {
        format!("clip.{}.{suffix}", self.1)
    }

    fn optional(&self, suffix: &str) -> Result<Option<u64>, Error> {
        Ok(self.0.u32(&self.name(suffix))?.map(u64::from))
    }

    /// A number above 0 (clip.cpp, `load_hparams`).
    fn size(&self, suffix: &str, most: u64) -> Result<u64, Error> {
        let key = self.name(suffix);
        match self.optional(suffix)? {
            None => Err(missing(self.0, &key)),
            Some(value) if value == 0 || value > most => Err(Error::Value {
                file: file(self.0),
                key,
                value,
                limit: "llama.cpp takes sizes above 0, image_size up to 8192 and patch_size below 65536 (clip.cpp, `load_hparams`)",
            }),
            Some(value) => Ok(value),
        }
    }

    /// `clip.projector_type`, or where the file has several encoders this one's (clip.cpp, `load_hparams`).
    fn projector(&self) -> Result<String, Error> {
        let name = self.0.str("clip.projector_type")?.unwrap_or_default();
        let own = self.name("projector_type");
        Ok(match name {
            "" => self.0.str(&own)?.unwrap_or_default().to_owned(),
            name => name.to_owned(),
        })
    }
}

impl Encoder {
    /// The encoder of images that the header describes.
    pub(super) fn of_images(header: &Header) -> Result<Self, Error> {
        let keys = Keys(header, "vision");
        let name = keys.projector()?;
        let Some(projector) = Projector::of_images(&name) else {
            return Err(unread(header, "an image", &name));
        };
        let side = keys.size("patch_size", 65_535)?;
        let image = keys.size("image_size", 8192)?;
        let area = product(&[side, side]);
        let merge = projector.merge(header)?;
        let squares = |length: u64| product(&[length / side, length / side]);
        let of_tokens = |tokens: u32| product(&[u64::from(tokens), merge, merge]);
        // Its tiles are squares of 512 pixels (mtmd-image.h, `mtmd_image_preprocessor_lfm2`).
        let least = if name == "lfm2" { squares(512) } else { 0 };
        let stated = keys.optional("image_max_pixels")?.map(|all| all / area);
        let (patches, limit) = match (projector.images, stated) {
            (Images::Square, _) => (squares(image), Limit::Nothing),
            (Images::Tokens(tokens), _) | (Images::PixelsOr(tokens), None) => {
                (of_tokens(tokens), Limit::Alone)
            }
            // The header's limit is heard last (clip.cpp, `load_hparams`).
            (Images::Pixels | Images::PixelsOr(_), Some(patches)) => (patches, Limit::Beside),
            (Images::Pixels, None) => return Err(missing(header, &keys.name("image_max_pixels"))),
            (Images::LongestEdge, _) => {
                let longest = keys.optional("preproc_image_size")?.unwrap_or(image);
                // Sides are rounded up to whole tokens (mtmd-image.cpp, `calc_size_preserved_ratio`).
                let per_side = longest.div_ceil(side).next_multiple_of(merge);
                (product(&[per_side, per_side]), Limit::Beside)
            }
        };
        Ok(Self {
            is_checked: projector.is_checked,
            patch: product(&[4, area, 3, u64::from(projector.frames)]),
            merged: product(&[merge, merge]),
            patches: patches.max(least),
            least,
            limit,
            extra: u64::from(header.tensor("v.class_embd").is_some()),
            batches: projector.batches,
            ..Self::read(&keys, name)?
        })
    }

    /// The encoder of sound that the header describes.
    pub(super) fn of_sound(header: &Header) -> Result<Self, Error> {
        let keys = Keys(header, "audio");
        let name = keys.projector()?;
        if !is_whisper(&name) {
            return Err(unread(header, "an audio", &name));
        }
        Ok(Self {
            is_checked: name == "ultravox",
            patch: product(&[8, keys.size("num_mel_bins", 256)?]),
            merged: keys.optional("projector.stack_factor")?.unwrap_or(1).max(1),
            patches: FRAMES / 2,
            ..Self::read(&keys, name)?
        })
    }

    /// What does not depend on the projector.
    fn read(keys: &Keys<'_>, name: String) -> Result<Self, Error> {
        let n_embd = keys.size("embedding_length", u64::from(u32::MAX))?;
        let n_head = keys.size("attention.head_count", u64::from(u32::MAX))?;
        let head = keys.optional("attention.head_dim")?.unwrap_or(0);
        let head = if head > 0 { head } else { n_embd / n_head };
        let windows = ["window_size", "wa_pattern_mode", "wa_layer_indexes"];
        let mut windows = windows.iter().map(|key| keys.0.get(&keys.name(key)));
        let mut encoder = Self {
            is_checked: false,
            patch: 0,
            merged: 1,
            patches: 0,
            least: 0,
            limit: Limit::Nothing,
            extra: 0,
            batches: false,
            width: n_embd.max(product(&[n_head, head])),
            n_ff: keys.optional("feed_forward_length")?.unwrap_or(0),
            n_head,
            head,
            is_gated: false,
            is_masked: keys.optional("n_wa_pattern")?.unwrap_or(0) > 0
                || windows.any(|window| window.is_some()),
            widest: n_embd,
            is_framed: false,
            kept: 0,
            turned: 0,
            name,
        };
        let block = format!("{}.blk.", &keys.1[..1]);
        for tensor in keys.0.tensors() {
            let [ne0, ne1, ..] = tensor.shape();
            let name = tensor.name();
            if name.starts_with("v.token_embd") || name.starts_with("adapter.boi") {
                encoder.is_framed = true;
                continue;
            }
            if tensor.n_dims() != 2 || !name.ends_with(".weight") {
                continue;
            }
            if name.starts_with(&block) {
                if name.contains(".ffn_") {
                    // Old files state no width, and some name the two matrices the wrong way round (clip.cpp,
                    // `load_tensors`).
                    encoder.n_ff = encoder.n_ff.max(if ne0 == n_embd { ne1 } else { ne0 });
                    encoder.is_gated |= name.contains(".ffn_gate.");
                }
            } else if name.contains(".deepstack.") {
                if name.contains(".fc2.") {
                    encoder.kept = encoder.kept.saturating_add(ne1);
                }
            } else if !name.contains("posit") && !name.contains("pos_embed") {
                encoder.widest = encoder.widest.max(ne0).max(ne1);
                if encoder.name == "gemma3" && name.starts_with("mm.input_projection.") {
                    encoder.turned = tensor.bytes();
                }
            }
        }
        Ok(encoder)
    }

    /// `clip.projector_type`.
    pub fn projector(&self) -> &str {
        &self.name
    }

    /// Whether the bound of its compute buffer was held against what clip.cpp reserves; else it is that of
    /// encoders like it.
    pub const fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Tokens of the largest image that llama.cpp would hand it, with at most `max_image_tokens` where that matters; of
    /// the longest sound likewise.
    pub fn tokens(&self, max_image_tokens: Option<u32>) -> u64 {
        self.input(max_image_tokens).tokens
    }

    /// The width of what the projector gives, where we know which tensor says that (clip.cpp, `clip_n_mmproj_embd`).
    pub(super) fn width_in(&self, header: &Header) -> Option<u64> {
        let (name, dim) = match self.name.as_str() {
            "mlp" | "pixtral" | "qwen2vl_merger" | "qwen2.5vl_merger" => ("mm.2.weight", 1),
            "gemma3" => ("mm.input_projection.weight", 0),
            "idefics3" => ("mm.model.fc.weight", 1),
            "internvl" => ("mm.model.mlp.3.weight", 1),
            _ => return None,
        };
        Some(header.tensor(name)?.shape()[dim])
    }

    /// The largest input, where images have at most so many tokens.
    fn input(&self, max_image_tokens: Option<u32>) -> Input {
        let most = max_image_tokens.map(|tokens| product(&[u64::from(tokens), self.merged]));
        let patches = match (self.limit, most) {
            (Limit::Alone, Some(most)) => most.max(self.least),
            (Limit::Beside, Some(most)) => most.max(self.patches),
            _ => self.patches,
        };
        let tokens = patches.div_ceil(self.merged).max(1);
        let at_once = (BATCH_TOKENS / tokens).max(1);
        Input {
            positions: patches.saturating_add(self.extra),
            tokens,
            batch: if self.batches { at_once } else { 1 },
            bytes: product(&[self.patch, patches]),
        }
    }

    /// The bound of the encoder's buffers for its largest input on a device of this family, or on the host; `fuses`:
    /// attention is one fused step there.
    pub(super) fn buffers(
        &self,
        max_image_tokens: Option<u32>,
        family: Option<Family>,
        fuses: bool,
    ) -> Buffers {
        let n = Saturating::<u64>;
        let input = self.input(max_image_tokens);
        let (batch, tokens) = (n(input.batch), n(input.tokens) * n(input.batch));
        let (heads, head) = (n(self.n_head) * batch, n(self.head));
        let positions = n(input.positions);
        let floats = n(4) * positions * batch;
        let (stream, wide) = (floats * n(self.width), floats * n(self.n_ff));
        let bytes = n(input.bytes) * batch;
        // Four positions per patch at most, and the order of windows (models/qwen2vl.cpp, `clip_graph_qwen2vl::build`).
        let inputs = bytes + n(20) * positions * batch;
        let kept = n(4) * n(self.kept) * tokens;
        let mask = n(if self.is_masked { 4 } else { 0 }) * positions * positions;
        let step = n(4) * n(self.widest) * tokens;

        let attention = stream * n(15) / n(2);
        let may_be =
            |known: Family| matches!(family, Some(it) if it == known || it == Family::Other);
        let scores = heads * n(4) * positions * positions;
        let scratch = match fuses {
            // Rows of results, padding, and keys and values in 16 bits (ggml-metal-ops.cpp,
            // `ggml_metal_op_flash_attn_ext_extra_*`).
            true if may_be(Family::Metal) => heads * (head + n(2)) * n(4352) + stream,
            true => n(0),
            // What is cut into blocks leaves gaps that the next scores do not fit.
            false if may_be(Family::Vulkan) && scores > n(BLOCK / 2) => scores * n(2),
            false => scores,
        };
        let forward = match self.is_gated {
            true => stream * n(5) + wide * n(3),
            false => stream * n(3) + wide,
        };
        // With a row of its own after each row of tokens, of which an image has at most an eighth as many, from 8 x 8
        // on.
        let steps = step * n(if self.is_framed { 7 } else { 4 }) / n(2);
        let most = (stream * n(5) + bytes * n(2))
            .max(attention + scratch)
            .max(forward)
            .max(stream * n(2) + steps);
        // A matrix that is turned lies where it leaves a gap of its own size.
        let beside = inputs + kept + mask * n(3) / n(2) + n(self.turned) * n(2) + n(ALIGNMENT);
        Buffers {
            compute: (beside + most).0,
            // The picture as numbers, the same in the buffer from which it is copied, and the embeddings.
            inputs: (inputs + bytes + mask + step + kept).0,
            attention: attention.0,
        }
    }

    /// Bytes of the widest activations of the largest input, in 32-bit floats.
    pub(super) fn activations(&self, max_image_tokens: Option<u32>) -> u64 {
        let input = self.input(max_image_tokens);
        // Queries, keys and values may be one matrix.
        let widest = self.n_ff.max(product(&[3, self.width]));
        product(&[4, widest, input.positions, input.batch])
    }
}

/// A file with a projector of this kind that we have not read.
pub(super) fn unread(header: &Header, kind: &str, projector: &str) -> Error {
    Error::Unread { file: file(header), what: format!("{kind} projector `{projector}`") }
}
