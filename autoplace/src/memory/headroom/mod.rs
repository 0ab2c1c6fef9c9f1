//! Bytes left free on purpose, in three named parts.
//!
//! No breakdown of llama.cpp counts what a driver takes for itself, what grows after the load, or what another process does
//! meanwhile (llama.cpp PRs 20595 and 18354, issue 22107; Ollama issues 13235 and 7654). Until it is learned from measurements, per device, driver and backend, it comes from a table that rather leaves too much.

use serde::{Deserialize, Serialize};

use crate::machine::{Gpu, Host, mib};
use crate::profile::ModelProfile;

use super::ContextSizes;
use super::backend::Family;

/// Bytes left free on a device, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HeadroomParts {
    /// What the driver takes for itself when it is used: a context, code of kernels.
    pub driver: u64,
    /// What grows after the load: workspaces, pools, buffers of the first long prompt.
    pub growth: u64,
    /// What may be wrong: the estimate, or the world (another window, another process).
    pub margin: u64,
}

impl HeadroomParts {
    /// All parts together, in bytes; saturates.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.driver
            .saturating_add(self.growth)
            .saturating_add(self.margin)
    }
}

/// How much to leave free on each GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Headroom {
    /// By the table of the GPU's backend: see [`Headroom::of_gpu`].
    #[default]
    Default,
    /// So many bytes, whatever they are for.
    Bytes(u64),
    /// This share of the device's total, in percent; clamped to 0..=100, and not a number counts as 100.
    Percent(f32),
}

/// What a load makes a driver and its pools do, beside the buffers that are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Workload {
    /// Bytes of the widest activations of the largest batch, in 32-bit floats.
    pub activations: u64,
    /// Bytes of the largest matrix of a block, decoded to 16-bit floats.
    pub decoded_matrix: u64,
    /// Bytes of the vocabulary on the host, about.
    pub vocabulary: u64,
}

impl Workload {
    /// What this model does at these sizes.
    #[must_use]
    pub fn of(profile: &ModelProfile, sizes: &ContextSizes) -> Self {
        let hparams = &profile.hparams;
        let widest = hparams.widest_ff().max(hparams.widest_stream());
        let per_token = widest.saturating_mul(sizes.n_tokens);
        let logits = u64::from(hparams.n_vocab).saturating_mul(sizes.n_outputs);
        let elements = |weight: &crate::profile::Weight| {
            let [ne0, ne1, _, _] = weight.shape;
            ne0.saturating_mul(ne1)
        };
        let largest = profile
            .weights
            .blocks
            .iter()
            .flat_map(|block| &block.weights)
            .map(elements)
            .max()
            .unwrap_or(0);
        Self {
            activations: per_token.max(logits).saturating_mul(4),
            decoded_matrix: largest.saturating_mul(2),
            // A token's text, its score and type, two hash-map entries: measured at 100 to 200 bytes (llama-vocab.cpp).
            vocabulary: u64::from(hparams.n_vocab).saturating_mul(256),
        }
    }
}

/// Of a CUDA device per process: 107 MiB (4060 Ti) to 555 MiB (RTX PRO 6000) for the context, 451-456 MiB uncounted on a 4090
/// (llama.cpp PRs 20595 and 15860).
const CUDA_CONTEXT: u64 = mib(560);
/// The part of it that is still to come when free memory was read through CUDA itself, whose first query made the context:
/// kernels are loaded when they are first used. No number is published; half of the largest one.
const CUDA_KERNELS: u64 = mib(280);
/// cuBLAS at first use: 32 MiB from compute capability 9.0, 4 MiB before (cuBLAS documentation, `cublasSetWorkspace`).
const CUBLAS_WORKSPACE: u64 = mib(32);
/// A Vulkan device and its pipelines. No number is published; the order of what CUDA takes for the small cards.
const VULKAN_DEVICE: u64 = mib(128);

impl Headroom {
    /// What to leave free on this GPU, for this workload, where the estimate may be wrong by `uncertainty` bytes.
    ///
    /// | backend | driver | growth |
    /// |---|---|---|
    /// | CUDA, ROCm, MUSA | 560 MiB; 280 MiB where free memory was read through ggml | cuBLAS 32 MiB + 2 x activations (the pools of MMQ, MoE sorting, FA partials) |
    /// | Vulkan | 128 MiB | one decoded matrix + 2 x activations (prealloc_x, _y, split_k) |
    /// | Metal | none: its limit is advisory, the host's margin counts | activations |
    /// | others | 560 MiB | as CUDA and Vulkan together |
    ///
    /// The margin is 1 % of what is free, at least 64 and at most 256 MiB, and the uncertainty on top. Of what is free and not of
    /// the total: a card of 8 GiB of which others hold 3 is planned as one of 5.
    ///
    /// With [`Headroom::Bytes`] and [`Headroom::Percent`] the parts are filled in this order as far as the bytes go, and the
    /// rest is margin: the total is what was asked for.
    #[must_use]
    pub fn of_gpu(&self, gpu: &Gpu, workload: &Workload, uncertainty: u64) -> HeadroomParts {
        let family = Family::of(&gpu.backend);
        let driver = match family {
            Family::Cuda if gpu.ggml.is_some() => CUDA_KERNELS,
            Family::Cuda | Family::Other => CUDA_CONTEXT,
            Family::Vulkan => VULKAN_DEVICE,
            Family::Metal => 0,
        };
        let pools = workload.activations.saturating_mul(2);
        let growth = match family {
            Family::Cuda => CUBLAS_WORKSPACE.saturating_add(pools),
            Family::Vulkan => workload.decoded_matrix.saturating_add(pools),
            Family::Metal => workload.activations,
            Family::Other => CUBLAS_WORKSPACE
                .saturating_add(workload.decoded_matrix)
                .saturating_add(pools),
        };
        let margin = (gpu.free / 100)
            .clamp(mib(64), mib(256))
            .saturating_add(uncertainty);
        let table = HeadroomParts {
            driver,
            growth,
            margin,
        };
        match *self {
            Self::Default => table,
            Self::Bytes(bytes) => table.filled(bytes),
            Self::Percent(percent) => table.filled(share(gpu.total, percent)),
        }
    }

    /// What to leave free on the host: the vocabulary and work buffers that the load makes, what a GPU's driver keeps on the
    /// host, and a margin of 1 % of the memory, at least 64 and at most 512 MiB. The policy of the GPUs does not apply here.
    #[must_use]
    pub fn of_host(
        host: &Host,
        workload: &Workload,
        with_gpu: bool,
        uncertainty: u64,
    ) -> HeadroomParts {
        HeadroomParts {
            // The libraries of CUDA and its mappings, in resident memory of the process; no number is published.
            driver: if with_gpu { mib(256) } else { 0 },
            // The CPU's work buffer holds one converted batch (ggml-cpu.c, ggml_graph_plan).
            growth: workload.vocabulary.saturating_add(workload.activations),
            margin: (host.total / 100)
                .clamp(mib(64), mib(512))
                .saturating_add(uncertainty),
        }
    }
}

impl HeadroomParts {
    /// The same parts as far as `bytes` go; what is left over is margin.
    fn filled(self, bytes: u64) -> Self {
        let driver = self.driver.min(bytes);
        let growth = self.growth.min(bytes - driver);
        Self {
            driver,
            growth,
            margin: bytes - driver - growth,
        }
    }
}

/// `percent` of `total`, computed in whole hundredths of a percent so that no rounding of floats gets into the bytes.
fn share(total: u64, percent: f32) -> u64 {
    let percent = if percent.is_nan() {
        100.0
    } else {
        percent.clamp(0.0, 100.0)
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 10000
    let hundredths = (percent * 100.0).round() as u32;
    let bytes = u128::from(total) * u128::from(hundredths) / 10_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Headroom, HeadroomParts, Workload};
    use crate::machine::{Gpu, Host, gib, mib};

    fn workload() -> Workload {
        Workload {
            activations: mib(28),
            decoded_matrix: mib(112),
            vocabulary: mib(32),
        }
    }

    #[test]
    fn cuda_leaves_its_context_cublas_pools_and_one_percent_of_what_is_free() {
        let gpu = Gpu::new("RTX 4060").total(gib(12)).free(gib(8));
        let parts = Headroom::Default.of_gpu(&gpu, &workload(), 0);
        let expected = HeadroomParts {
            driver: mib(560),
            growth: mib(32 + 2 * 28),
            margin: gib(8) / 100,
        };
        assert_eq!(parts, expected);
        assert_eq!(parts.total(), mib(648) + gib(8) / 100);
    }

    #[test]
    fn the_margin_has_a_floor_and_a_ceiling_and_grows_with_the_uncertainty() {
        let margin = |free, uncertainty| {
            let gpu = Gpu::new("card").total(gib(96)).free(free);
            Headroom::Default
                .of_gpu(&gpu, &workload(), uncertainty)
                .margin
        };
        assert_eq!(margin(gib(2), 0), mib(64));
        assert_eq!(margin(gib(80), 0), mib(256));
        assert_eq!(margin(gib(80), mib(10)), mib(266));
    }

    #[test]
    fn bytes_and_percent_are_what_was_asked_for() {
        let gpu = Gpu::new("card").total(gib(10));
        let bytes = Headroom::Bytes(mib(600)).of_gpu(&gpu, &workload(), mib(99));
        assert_eq!(bytes.total(), mib(600));
        assert_eq!((bytes.driver, bytes.growth), (mib(560), mib(40)));
        let none = Headroom::Bytes(0).of_gpu(&gpu, &workload(), 0);
        assert_eq!(none.total(), 0);
        let share = Headroom::Percent(12.5).of_gpu(&gpu, &workload(), 0);
        assert_eq!(share.total(), gib(10) / 8);
    }

    #[test]
    fn a_percentage_out_of_range_is_clamped() {
        let gpu = Gpu::new("card").total(gib(10));
        let total = |percent| {
            Headroom::Percent(percent)
                .of_gpu(&gpu, &workload(), 0)
                .total()
        };
        assert_eq!(total(-5.0), 0);
        assert_eq!(total(250.0), gib(10));
        assert_eq!(total(f32::NAN), gib(10));
    }

    #[test]
    fn the_host_leaves_room_for_a_driver_only_with_a_gpu() {
        let host = Host::new(gib(16));
        let alone = Headroom::of_host(&host, &workload(), false, 0);
        let with = Headroom::of_host(&host, &workload(), true, 0);
        assert_eq!(alone.total() + mib(256), with.total());
    }
}
