//! Headroom: bytes that are left free on purpose, in three named parts. llama.cpp's breakdown does not count the
//! driver's own memory, growth after the load, or other processes (llama.cpp PRs 20595 and 18354, issue 22107; Ollama
//! issues 13235 and 7654). The values come from a table until measurements replace them. The table's values err on the
//! large side.

mod known;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

use super::ContextSizes;
use crate::machine::{Gpu, Host, mib};
use crate::profile::{ModelProfile, Weight};

/// The properties of a load that determine the memory of the driver and of the backend's pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeakSizes {
    /// Bytes of the widest activations of the largest batch, in 32-bit floats.
    pub activations: u64,
    /// Bytes of the largest matrix of a block, decoded to 16-bit floats.
    pub decoded_matrix: u64,
    /// Approximate bytes of the vocabulary on the host.
    pub vocabulary: u64,
}

impl PeakSizes {
    /// The peak sizes of this model in a context of these sizes.
    pub fn new(profile: &ModelProfile, sizes: &ContextSizes) -> Self {
        let hparams = &profile.hparams;
        let per_token = hparams.widest().saturating_mul(sizes.n_tokens);
        let logits = u64::from(hparams.n_vocab).saturating_mul(sizes.n_outputs);
        let weights = profile.weights.blocks.iter().flatten();
        let elements = |weight: &Weight| weight.shape[0].saturating_mul(weight.shape[1]);
        let largest = weights.map(elements).max().unwrap_or(0);
        Self {
            activations: per_token.max(logits).saturating_mul(4),
            decoded_matrix: largest.saturating_mul(2),
            // A token has a text, a score, a type and two hash-map entries: 100 to 200 bytes measured
            // (llama-vocab.cpp).
            vocabulary: u64::from(hparams.n_vocab).saturating_mul(256),
        }
    }
}

/// Bytes left free on a device, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[non_exhaustive]
pub struct HeadroomParts {
    /// The driver's own memory: its context and the code of kernels.
    pub driver: u64,
    /// Growth after the load: workspaces, pools, and buffers of the first long prompt.
    pub growth: u64,
    /// The margin for errors of the estimate and for other programs.
    pub margin: u64,
    /// Bytes that the prompt store may take later ([`Request::prompt_store`](crate::plan::Request::prompt_store)); only
    /// on the host.
    #[serde(default)]
    pub prompt_store: u64,
}

/// A format without field names, such as that of a worker's messages, gets every field. JSON leaves out a
/// `prompt_store` of 0.
impl Serialize for HeadroomParts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { driver, growth, margin, prompt_store } = self;
        let has_store = !to.is_human_readable() || *prompt_store > 0;
        let mut parts = to.serialize_struct("HeadroomParts", 3 + usize::from(has_store))?;
        parts.serialize_field("driver", driver)?;
        parts.serialize_field("growth", growth)?;
        parts.serialize_field("margin", margin)?;
        if has_store {
            parts.serialize_field("prompt_store", prompt_store)?;
        }
        parts.end()
    }
}

impl HeadroomParts {
    /// The sum of all parts, in bytes; saturates.
    pub const fn total(&self) -> u64 {
        self.driver.saturating_add(self.growth).saturating_add(self.margin).saturating_add(self.prompt_store)
    }

    /// Distributes `bytes` over driver and growth in this order; the rest is margin.
    fn filled(self, bytes: u64) -> Self {
        let driver = self.driver.min(bytes);
        let growth = self.growth.min(bytes - driver);
        Self { driver, growth, margin: bytes - driver - growth, prompt_store: 0 }
    }
}

/// How much memory to leave free on each GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Headroom {
    /// Leaves memory for the driver, pools, and the possible error of the estimate, but none for other programs. This
    /// is meant for a card that only this program uses.
    Tight,
    /// Leaves memory for the driver and pools, and 1 % of the free memory; see [`Headroom::of_gpu`].
    #[default]
    Default,
    /// As [`Default`](Self::Default), but all programs together use at most 85 % of the card's total. This is meant for
    /// a shared card.
    Cautious,
    /// This many bytes in total.
    Bytes(u64),
    /// This percentage of the card's total. `Percent(15.0)` follows the rule of thumb that a card spills above 85 %
    /// usage. The percentage is clamped to the range from 0 to 100; NaN counts as 100.
    Percent(f32),
}

/// The loss by rounding, which always occurs, because drivers allocate pieces of 2 MiB (CUDA's granularity,
/// `cuMemGetAllocationGranularity`), and weights, cache, compute buffers and the driver's own memory each take a few
/// pieces.
const ROUNDING: u64 = mib(16);

/// The part of the free memory that a card under WSL reports but cannot use. If a program uses this part, Windows
/// silently moves memory to the host: 23371 of 23859 MiB were usable on a card of 24 GiB
/// (github.com/syv-ai/qwen38-27b-rtx3090, pull 83; llama.cpp issue 4498 reports the same on Windows).
pub const WSL_HEADROOM: u64 = mib(512);

impl Headroom {
    /// The bytes to leave free on this GPU for computations of these peak sizes. `uncertainty` is the estimate's
    /// possible error in bytes. `wsl` states whether the machine is Linux under WSL
    /// ([`Machine::wsl`](crate::machine::Machine::wsl)).
    ///
    /// **Driver and growth** come from a table until a load's warm-up has measured them on the device
    /// ([`Gpu::learned`]):
    ///
    /// - CUDA. Driver: one context, which needs 16 MiB plus 2 KiB for each thread that the card can hold at once
    ///   ([`Gpu::resident_threads`]), or 560 MiB if that number is unknown. If the free memory was read through ggml,
    ///   whose first query opens the context, only half of the context's memory is still to be taken: kernels are
    ///   loaded on first use, and no figure is published for them. Growth: 32 MiB for cuBLAS + 2 x activations for the
    ///   pools of MMQ, MoE sorting and FA partials.
    /// - ROCm and MUSA. Driver: 560 MiB, or half of it. Growth: as with CUDA.
    /// - Vulkan. Driver: 128 MiB. Growth: one decoded matrix + 2 x activations (prealloc_x, _y, split_k).
    /// - Metal. Driver: 0, because Metal's limit is only a recommendation, and the host's margin applies. Growth:
    ///   activations.
    /// - Other backends. Driver: 560 MiB. Growth: that of CUDA and that of Vulkan together.
    ///
    /// A measurement replaces the table's value, with two exceptions. If this workload exceeds the measured workload in
    /// any respect, the measurement can raise the value for growth, but not lower it. If the driver's version is
    /// unknown, the measurement can raise both values, but not lower them, because the version may have changed. For a
    /// device that is not yet open, the context's memory comes from the table.
    ///
    /// **The margin** depends on the preset:
    ///
    /// - [`Tight`](Self::Tight): 16 MiB, because drivers allocate pieces of 2 MiB.
    /// - [`Default`](Self::Default): 1 % of the free memory, at least 64 and at most 256 MiB, for other programs. It is
    ///   a share of the free memory, not of the total: a card of 8 GiB with 3 GiB in use is planned like a card of 5
    ///   GiB.
    /// - [`Cautious`](Self::Cautious): as `Default`, or more if driver, growth and margin would otherwise be less than
    ///   15 % of the total. The rule of thumb is that a card spills above 85 % usage.
    ///
    /// Each preset also adds the uncertainty. Under WSL 512 MiB are added, except that `Cautious` includes them in its
    /// 15 %. Memory that other programs use counts as usage: if they use 85 % of a card, `Cautious` leaves nothing for
    /// the plan.
    ///
    /// [`Headroom::Bytes`] and [`Headroom::Percent`] set the total. The driver's part is filled first, then the part
    /// for growth, and the rest is margin.
    pub fn of_gpu(&self, gpu: &Gpu, peak_sizes: &PeakSizes, uncertainty: u64, wsl: bool) -> HeadroomParts {
        let driver = known::driver(gpu);
        let growth = known::growth(gpu, peak_sizes);
        let spill = if wsl { WSL_HEADROOM } else { 0 };
        let usual = (gpu.free / 100).clamp(mib(64), mib(256)) + spill;
        let with =
            |margin: u64| HeadroomParts { driver, growth, margin: margin.saturating_add(uncertainty), prompt_store: 0 };
        match *self {
            Self::Tight => with(ROUNDING + spill),
            Self::Default => with(usual),
            Self::Cautious => {
                let rest = share(gpu.total, 15.0);
                with(usual.max(rest.saturating_sub(driver).saturating_sub(growth)))
            }
            Self::Bytes(bytes) => with(usual).filled(bytes),
            Self::Percent(percent) => with(usual).filled(share(gpu.total, percent)),
        }
    }

    /// Whether the total is fixed, so that the estimate's uncertainty is not added.
    pub(crate) const fn is_exact(&self) -> bool {
        matches!(self, Self::Bytes(_) | Self::Percent(_))
    }

    /// The bytes to leave free on the host: the load's vocabulary and work buffers, the host memory of a GPU's driver,
    /// and a margin of 1 % of the memory that this process may use ([`Host::usable_total`]), at least 64 and at most
    /// 512 MiB. The preset for GPUs does not apply here.
    pub fn of_host(host: &Host, peak_sizes: &PeakSizes, with_gpu: bool, uncertainty: u64) -> HeadroomParts {
        HeadroomParts {
            // Resident memory of CUDA's libraries and mappings; no figure is published.
            driver: if with_gpu { mib(256) } else { 0 },
            // The CPU's work buffer holds one converted batch (ggml-cpu.c, ggml_graph_plan).
            growth: peak_sizes.vocabulary.saturating_add(peak_sizes.activations),
            margin: (host.usable_total() / 100).clamp(mib(64), mib(512)).saturating_add(uncertainty),
            prompt_store: 0,
        }
    }
}

/// `percent` of `total`, rounded up. The percentage is rounded to whole hundredths, so that floating-point rounding
/// cannot change the bytes.
fn share(total: u64, percent: f32) -> u64 {
    let percent = if percent.is_nan() { 100.0 } else { percent.clamp(0.0, 100.0) };
    let hundredths = (percent * 100.0).round() as u32;
    let bytes = (u128::from(total) * u128::from(hundredths)).div_ceil(10_000);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Headroom, HeadroomParts, PeakSizes};
    use crate::machine::{Gpu, Host, HostLimit, gib, mib};

    pub(super) const PEAK_SIZES: PeakSizes =
        PeakSizes { activations: mib(28), decoded_matrix: mib(112), vocabulary: mib(32) };

    #[test]
    fn each_preset_leaves_its_parts() {
        use Headroom::{Bytes, Cautious, Default, Percent, Tight};
        let (driver, growth) = (mib(560), mib(32 + 2 * 28));
        // The margin, if driver, growth and margin together have `total` bytes (below: 15 % of a card of 20 GiB).
        let rest = |total: u64| total - driver - growth;
        for (headroom, total, free, unsure, margin) in [
            // One percent of the free memory, with a minimum and a maximum.
            (Default, 12, gib(8), 0, gib(8) / 100),
            (Default, 96, gib(2), 0, mib(64)),
            (Default, 96, gib(80), 0, mib(256)),
            (Default, 96, gib(80), mib(10), mib(266)),
            // The margin of `Tight` is the uncertainty plus the loss by rounding.
            (Tight, 24, gib(24), mib(7), mib(16 + 7)),
            // At most 85 percent of the total are in use. On a small card the default margin is larger.
            (Cautious, 20, gib(19), 0, rest(gib(3))),
            (Cautious, 20, gib(19), mib(5), rest(gib(3)) + mib(5)),
            (Cautious, 2, gib(2), 0, mib(64)),
            // Fixed totals, in bytes and in percent.
            (Bytes(mib(700)), 10, gib(10), mib(99), mib(52)),
            (Percent(15.0), 20, gib(19), mib(99), rest(gib(3))),
        ] {
            let gpu = Gpu::new("card").total(gib(total)).free(free);
            let parts = headroom.of_gpu(&gpu, &PEAK_SIZES, unsure, false);
            assert_eq!(parts, HeadroomParts { driver, growth, margin, prompt_store: 0 }, "{headroom:?} of {total} GiB");
            // On a card of 20 GiB, 15 percent are enough for the memory that cannot be used under WSL. On a card of 2
            // GiB, they are not.
            let more = if headroom.is_exact() || (headroom, total) == (Cautious, 20) { 0 } else { mib(512) };
            let inside = headroom.of_gpu(&gpu, &PEAK_SIZES, unsure, true);
            assert_eq!(inside.margin, margin + more, "{headroom:?} of {total} GiB");
        }
    }

    #[test]
    fn the_margin_of_the_host_is_a_share_of_the_memory_that_the_process_may_use() {
        let cgroup = |bytes| HostLimit::Cgroup { file: "/sys/fs/cgroup/memory.max".to_owned(), bytes };
        let nodes = HostLimit::MemoryNodes { nodes: "0".to_owned(), bytes: gib(30) };
        for (limit, margin) in [
            (HostLimit::System, mib(512)),
            (HostLimit::Stated, mib(512)),
            (cgroup(gib(4)), mib(64)),
            (cgroup(gib(20)), gib(20) / 100),
            (nodes, gib(30) / 100),
            (HostLimit::AddressSpace { bytes: gib(10) }, gib(10) / 100),
            (HostLimit::DataSegment { bytes: gib(12) }, gib(12) / 100),
            // A limit above the physical memory has no effect.
            (cgroup(gib(1024)), mib(512)),
        ] {
            let mut host = Host::new(gib(256));
            host.limit = limit;
            let parts = Headroom::of_host(&host, &PEAK_SIZES, false, mib(3));
            assert_eq!(parts.margin, margin + mib(3), "{}", host.limit);
        }
    }

    #[test]
    fn a_percentage_is_of_the_total_and_between_nothing_and_all_of_it() {
        for (percent, bytes) in [
            (12.5, gib(10) / 8),
            (0.0, 0),
            (100.0, gib(10)),
            (-5.0, 0),
            (250.0, gib(10)),
            (f32::NAN, gib(10)),
            // Rounded up to the next byte.
            (33.33, (gib(10) * 3333).div_ceil(10_000)),
        ] {
            // The memory that other programs use does not matter.
            let gpu = Gpu::new("card").total(gib(10)).free(gib(4));
            let parts = Headroom::Percent(percent).of_gpu(&gpu, &PEAK_SIZES, mib(99), true);
            assert_eq!(parts.total(), bytes, "{percent}");
        }
    }
}
