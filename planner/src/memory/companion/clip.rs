//! An mmproj: encoders of images and sound, and the projectors behind them, as llama.cpp loads them
//! (tools/mtmd/clip.cpp).

use crate::gguf::{Header, Tensor};
use crate::machine::Gpu;
use crate::memory::backend::{BackendRules, Family};
use crate::memory::{FlashAttention, Footprint, Workload};
use crate::profile::ModelProfile;

use super::encoder::{Encoder, unread};
use super::error::missing;
use super::{CompanionBytes, Error, file};

/// What an encoder of unchecked shape may take beyond its bound, at least.
const UNCHECKED: u64 = 64 << 20;

/// A file of encoders.
#[derive(Debug, Clone)]
pub(super) struct Mmproj {
    header: Header,
    pub(super) name: String,
    pub(super) encoders: Vec<Encoder>,
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
        let has = |kind: &str| {
            let key = format!("clip.has_{kind}_encoder");
            Ok::<_, Error>(header.bool(&key)?.unwrap_or(false))
        };
        let mut encoders = Vec::new();
        if has("vision")? {
            encoders.push(Encoder::of_images(header)?);
        }
        if has("audio")? {
            encoders.push(Encoder::of_sound(header)?);
        }
        if has("gen_audio")? {
            let projector = header.str("clip.gen.audio.projector_type")?;
            return Err(unread(header, "a speech", projector.unwrap_or_default()));
        }
        if encoders.is_empty() {
            return Err(missing(header, "clip.has_vision_encoder"));
        }
        let stem = || Some(header.path().file_stem()?.to_string_lossy().into_owned());
        let name = header.name().map(str::to_owned).or_else(stem);
        Ok(Self {
            header: header.clone(),
            name: name.unwrap_or_default(),
            encoders,
            max_image_tokens: None,
        })
    }

    /// Whether what it gives is as wide as the main model's embeddings (mtmd.cpp, `mtmd_context::mtmd_context`).
    pub(super) fn compatible_with(&self, main: &Header) -> Result<(), Error> {
        let of_main = u64::from(ModelProfile::from_header(main)?.hparams.n_embd);
        let encoder = self.encoders.first();
        match encoder.and_then(|encoder| encoder.width_in(&self.header)) {
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
            let fuses = fuses(family, flash, encoder.head);
            let buffers = encoder.buffers(self.max_image_tokens, family, fuses);
            compute = compute.saturating_add(buffers.compute);
            inputs = inputs.saturating_add(buffers.inputs);
            if gpu.is_some() && flash == FlashAttention::On && !fuses {
                // The CPU does what the GPU cannot (clip.cpp, `warmup`), with queries, keys and values of its own.
                inputs = inputs.saturating_add(buffers.attention);
            }
        }
        let uncertainty = match self.encoders.iter().all(Encoder::is_checked) {
            true => compute / 8,
            false => compute.max(UNCHECKED),
        };
        if gpu.is_none() {
            return CompanionBytes {
                host: Footprint::new(weights, 0, compute),
                host_uncertainty: uncertainty,
                ..CompanionBytes::default()
            };
        }
        // Each tensor is read into memory of the host on its way (clip.cpp, `load_tensors`), before the
        // first image comes.
        let largest = self.header.tensors().map(Tensor::bytes).max();
        let inputs = inputs.max(largest.unwrap_or(0));
        CompanionBytes {
            gpu: Footprint::new(weights, 0, compute),
            host: Footprint::new(0, 0, inputs),
            gpu_uncertainty: uncertainty,
            host_uncertainty: inputs / 8,
        }
    }
}

/// Whether attention with heads of this size is one fused step: asked of the backend with `Auto` (clip.cpp, `warmup`),
/// as far as can be told without the device. Without a cache any backend that lists a size takes it here
/// (ggml-cuda/fattn.cu, `ggml_cuda_get_best_fattn_kernel`; ggml-vulkan.cpp, `ggml_backend_vk_device_supports_op`;
/// ggml-metal-device.m, `ggml_metal_device_supports_op`); the CPU takes all.
fn fuses(family: Option<Family>, flash: FlashAttention, head: u64) -> bool {
    if flash == FlashAttention::Off {
        return false;
    }
    let listed: &[u64] = match family {
        None => return true,
        Some(Family::Vulkan) => return head.is_multiple_of(8),
        Some(Family::Cuda) => &[40, 64, 72, 80, 96, 112, 128, 256],
        Some(Family::Metal) => &[32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256],
        Some(Family::Other) => &[],
    };
    listed.contains(&head)
}
