//! The bound of what an encoder computes in; its table is at [`Encoder`].

use super::encoder::{Encoder, Input};
use super::{product, sum};

/// The blocks that Vulkan cuts its buffers into (ggml-vulkan.cpp, `ggml_vk_get_device`).
const BLOCK: u64 = 1 << 30;

/// What the alignment of some hundred tensors may add.
const ALIGNMENT: u64 = 64 << 10;

/// What of a backend matters to an encoder's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backend {
    /// Whether attention is one fused step.
    pub(super) fuses: bool,
    /// Whether fused attention reserves memory of its own.
    pub(super) has_scratch: bool,
    /// Whether buffers are cut into blocks of at most 1 GiB.
    pub(super) cuts: bool,
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

impl Encoder {
    /// The bound of the encoder's buffers for its largest input.
    pub(super) fn buffers(&self, max_image_tokens: Option<u32>, backend: Backend) -> Buffers {
        let input = self.input(max_image_tokens);
        let Input {
            positions, batch, ..
        } = input;
        let tokens = product(&[input.tokens, batch]);
        let bytes = product(&[input.bytes, batch]);
        let stream = product(&[4, self.width, positions, batch]);
        let streams = |halves: u64| product(&[stream, halves]) / 2;
        let square = product(&[positions, positions]);
        let mask = if self.is_masked {
            product(&[4, square])
        } else {
            0
        };
        // Four positions per patch at most, and the order of windows (models/qwen2vl.cpp, `clip_graph_qwen2vl::build`).
        let inputs = sum(&[bytes, product(&[20, positions, batch])]);
        let kept = product(&[4, self.kept, tokens]);

        let patches = sum(&[streams(10), product(&[2, bytes]), mask]);
        let attention = streams(15);
        let attend = if backend.fuses {
            sum(&[
                attention,
                mask,
                mask / 2,
                self.scratch(backend, positions, batch),
            ])
        } else {
            let scores = product(&[4, self.n_head, square, batch]);
            // What is cut into blocks leaves gaps that the next scores do not fit.
            let times = if backend.cuts && scores > BLOCK / 2 {
                2
            } else {
                1
            };
            sum(&[attention, product(&[scores, times]), mask])
        };
        let wide = product(&[4, self.n_ff, positions, batch]);
        let (streaming, widths) = if self.is_gated { (10, 3) } else { (6, 1) };
        let forward = sum(&[streams(streaming), product(&[wide, widths])]);
        let forward = if backend.fuses && mask > 0 {
            // Where the first mask was is room for whole steps only: less than one is lost.
            let reused = mask.saturating_sub(wide).min(product(&[wide, widths]));
            sum(&[forward, mask, mask / 2]).saturating_sub(reused)
        } else {
            forward.saturating_add(mask)
        };
        let step = product(&[4, self.widest, tokens]);
        let project = if self.is_framed {
            // With a row of its own after each row of tokens, of which an image has an eighth as many at
            // most, from 8 x 8 on.
            sum(&[streams(4), product(&[3, step]), step / 2, kept, mask])
        } else {
            sum(&[streams(4), product(&[2, step]), kept, mask])
        };
        let most = patches.max(attend).max(forward).max(project);
        Buffers {
            // A matrix that is turned lies where it leaves a gap of its own size.
            compute: sum(&[inputs, kept, most, product(&[2, self.turned]), ALIGNMENT]),
            // The picture as numbers, the same in the buffer from which it is copied, and the embeddings.
            inputs: sum(&[inputs, bytes, mask, step, kept]),
            attention,
        }
    }

    /// Bytes of the widest activations of the largest input, in 32-bit floats.
    pub(super) fn activations(&self, max_image_tokens: Option<u32>) -> u64 {
        let input = self.input(max_image_tokens);
        // Queries, keys and values may be one matrix.
        let widest = self.n_ff.max(product(&[3, self.width]));
        product(&[4, widest, input.positions, input.batch])
    }

    /// What Metal's fused attention works in beside its result (ggml-metal-ops.cpp,
    /// `ggml_metal_op_flash_attn_ext_extra_*`).
    fn scratch(&self, backend: Backend, positions: u64, batch: u64) -> u64 {
        if !backend.has_scratch {
            return 0;
        }
        let results = product(&[4, 32, 32, self.head.saturating_add(2)]);
        let padding = product(&[64, 2, 2, self.head]);
        let heads = product(&[self.n_head, batch, results.saturating_add(padding)]);
        let of_mask = if self.is_masked {
            product(&[128, positions]).saturating_add(product(&[positions, positions]) / 512)
        } else {
            0
        };
        // And keys and values in 16 bits, whatever they are.
        let converted = product(&[4, self.width, positions, batch]);
        sum(&[heads, of_mask, converted])
    }
}
