//! Bytes left free on purpose, in three named parts: no breakdown of llama.cpp counts what a driver takes for itself,
//! what grows after the load, or what another process does meanwhile (llama.cpp PRs 20595 and 18354, issue 22107;
//! Ollama issues 13235 and 7654). Until it is learned from measurements, it comes from a table that rather leaves too
//! much.

mod known;

use serde::{Deserialize, Serialize};

use super::ContextSizes;
use crate::machine::{Gpu, Host, mib};
use crate::profile::{ModelProfile, Weight};

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
    pub fn of(profile: &ModelProfile, sizes: &ContextSizes) -> Self {
        let hparams = &profile.hparams;
        let per_token = hparams.widest().saturating_mul(sizes.n_tokens);
        let logits = u64::from(hparams.n_vocab).saturating_mul(sizes.n_outputs);
        let weights = profile.weights.blocks.iter().flatten();
        let elements = |weight: &Weight| weight.shape[0].saturating_mul(weight.shape[1]);
        let largest = weights.map(elements).max().unwrap_or(0);
        Self {
            activations: per_token.max(logits).saturating_mul(4),
            decoded_matrix: largest.saturating_mul(2),
            // A token's text, its score and type, two hash-map entries: measured at 100 to 200 bytes (llama-vocab.cpp).
            vocabulary: u64::from(hparams.n_vocab).saturating_mul(256),
        }
    }
}

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
    pub const fn total(&self) -> u64 {
        self.driver.saturating_add(self.growth).saturating_add(self.margin)
    }

    /// The same parts as far as `bytes` go; what is left over is margin.
    fn filled(self, bytes: u64) -> Self {
        let driver = self.driver.min(bytes);
        let growth = self.growth.min(bytes - driver);
        Self { driver, growth, margin: bytes - driver - growth }
    }
}

/// How much to leave free on each GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Headroom {
    /// What driver and pools take, and room for an error of the estimate: nothing for other programs. For a card
    /// that is ours alone.
    Tight,
    /// What driver and pools take, and 1 % of what is free: see [`Headroom::of_gpu`].
    #[default]
    Default,
    /// As [`Default`](Self::Default), and at most 85 % of the card's total in use by everything: for a card
    /// that others use.
    Cautious,
    /// So many bytes, whatever they are for.
    Bytes(u64),
    /// This share of the card's total in percent, whatever it is for: `Percent(15.0)` is the rule of thumb that a card
    /// spills when more than 85 % of it are in use. Clamped to 0 to 100; NaN counts as 100.
    Percent(f32),
}

/// What is certain to be lost: a driver hands out memory in pieces of 2 MiB (CUDA's granularity,
/// `cuMemGetAllocationGranularity`), and weights, cache, computing and the driver's own come in a few pieces each.
const ROUNDING: u64 = mib(16);

/// What a card can take less under WSL than it says before Windows moves memory to the host, in silence: 23371
/// of 23859 MiB on a card of 24 GiB (github.com/syv-ai/qwen38-27b-rtx3090, pull 83; llama.cpp issue 4498 on the
/// same under Windows).
pub const WSL_HEADROOM: u64 = mib(512);

impl Headroom {
    /// What to leave free on this GPU, for this workload, where the estimate may be wrong by `uncertainty` bytes.
    /// `wsl`: the machine is a Linux inside of Windows ([`Machine::wsl`](crate::machine::Machine::wsl)).
    ///
    /// **Driver and growth** come from a table until they have been measured on the device
    /// (by the warm-up of a load, [`Gpu::learned`]):
    ///
    /// | backend | driver | growth |
    /// |---|---|---|
    /// | CUDA | a context: 16 MiB and 2 KiB per thread that the card holds at once ([`Gpu::resident_threads`]), 560 MiB
    /// where that is not known; half of it where free memory was read through ggml, whose first query opens the context
    /// (kernels are loaded when they are first used; no number is published) | cuBLAS 32 MiB + 2 x activations (the
    /// pools of MMQ, MoE sorting, FA partials) |
    /// | ROCm, MUSA | 560 MiB, or half of it | as CUDA |
    /// | Vulkan | 128 MiB | one decoded matrix + 2 x activations (prealloc_x, _y, split_k) |
    /// | Metal | none: its limit is advisory, the host's margin counts | activations |
    /// | others | 560 MiB | as CUDA and Vulkan together |
    ///
    /// What was measured replaces the table's number, with two exceptions in which it can only raise it: growth, where
    /// this workload is larger in anything than the one it was measured with, and both, where nothing reports the
    /// driver's version, which may be another by now. On a device that is yet to be opened, the table's context counts.
    ///
    /// **The margin** is the user's:
    ///
    /// | | margin | source |
    /// |---|---|---|
    /// | [`Tight`](Self::Tight) | 16 MiB | what is certain to be lost: memory is handed out in pieces of 2 MiB |
    /// | [`Default`](Self::Default) | 1 % of what is free, at least 64 and at most 256 MiB | other programs; of what is
    /// free and not of the total, since a card of 8 GiB of which others hold 3 is planned as one of 5 |
    /// | [`Cautious`](Self::Cautious) | as `Default`, and so much that driver, growth and margin are 15 % of the total
    /// | the rule of thumb that a card spills when more than 85 % of it are in use |
    ///
    /// The uncertainty comes on top of each, and under WSL 512 MiB, which `Cautious` counts into its 15 %. What other
    /// programs hold is in use: of a card of which they hold 85 %, `Cautious` takes nothing.
    ///
    /// With [`Headroom::Bytes`] and [`Headroom::Percent`] the parts are filled in this order as far as the bytes go,
    /// and the rest is margin: the total is what was asked for.
    pub fn of_gpu(&self, gpu: &Gpu, workload: &Workload, uncertainty: u64, wsl: bool) -> HeadroomParts {
        let driver = known::driver(gpu);
        let growth = known::growth(gpu, workload);
        let spill = if wsl { WSL_HEADROOM } else { 0 };
        let usual = (gpu.free / 100).clamp(mib(64), mib(256)) + spill;
        let with = |margin: u64| HeadroomParts { driver, growth, margin: margin.saturating_add(uncertainty) };
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

    /// Whether the bytes are what was asked for, without the uncertainty of an estimate on top.
    pub(crate) const fn is_exact(&self) -> bool {
        matches!(self, Self::Bytes(_) | Self::Percent(_))
    }

    /// What to leave free on the host: the vocabulary and work buffers that the load makes, what a GPU's driver
    /// keeps on the host, and a margin of 1 % of the memory, at least 64 and at most 512 MiB. The policy of the GPUs
    /// does not apply here.
    pub fn of_host(host: &Host, workload: &Workload, with_gpu: bool, uncertainty: u64) -> HeadroomParts {
        HeadroomParts {
            // The libraries of CUDA and its mappings, in resident memory of the process; no number is published.
            driver: if with_gpu { mib(256) } else { 0 },
            // The CPU's work buffer holds one converted batch (ggml-cpu.c, ggml_graph_plan).
            growth: workload.vocabulary.saturating_add(workload.activations),
            margin: (host.total / 100).clamp(mib(64), mib(512)).saturating_add(uncertainty),
        }
    }
}

/// `percent` of `total`, rounded up. Computed in whole hundredths of a percent, so that no rounding of floats gets into
/// the bytes.
fn share(total: u64, percent: f32) -> u64 {
    let percent = if percent.is_nan() { 100.0 } else { percent.clamp(0.0, 100.0) };
    let hundredths = (percent * 100.0).round() as u32;
    let bytes = (u128::from(total) * u128::from(hundredths)).div_ceil(10_000);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Headroom, HeadroomParts, Workload};
    use crate::machine::{Gpu, gib, mib};

    pub(super) const WORKLOAD: Workload =
        Workload { activations: mib(28), decoded_matrix: mib(112), vocabulary: mib(32) };

    #[test]
    fn each_preset_leaves_its_parts() {
        use Headroom::{Bytes, Cautious, Default, Percent, Tight};
        let (driver, growth) = (mib(560), mib(32 + 2 * 28));
        // What 15 % leave to the margin.
        let rest = |total: u64| total - driver - growth;
        for (headroom, total, free, unsure, margin) in [
            // Of what is free one percent, with a floor and a ceiling.
            (Default, 12, gib(8), 0, gib(8) / 100),
            (Default, 96, gib(2), 0, mib(64)),
            (Default, 96, gib(80), 0, mib(256)),
            (Default, 96, gib(80), mib(10), mib(266)),
            // The uncertainty and what rounding takes.
            (Tight, 24, gib(24), mib(7), mib(16 + 7)),
            // At most 85 percent of the total in use; of a small card the usual margin is more.
            (Cautious, 20, gib(19), 0, rest(gib(3))),
            (Cautious, 20, gib(19), mib(5), rest(gib(3)) + mib(5)),
            (Cautious, 2, gib(2), 0, mib(64)),
            // Whatever they are for.
            (Bytes(mib(700)), 10, gib(10), mib(99), mib(52)),
            (Percent(15.0), 20, gib(19), mib(99), rest(gib(3))),
        ] {
            let gpu = Gpu::new("card").total(gib(total)).free(free);
            let parts = headroom.of_gpu(&gpu, &WORKLOAD, unsure, false);
            assert_eq!(parts, HeadroomParts { driver, growth, margin }, "{headroom:?} of {total} GiB");
            // What spills in silence inside of Windows; 15 percent of a card of 20 GiB hold it, those of 2 GiB do not.
            let more = if headroom.is_exact() || (headroom, total) == (Cautious, 20) { 0 } else { mib(512) };
            let inside = headroom.of_gpu(&gpu, &WORKLOAD, unsure, true);
            assert_eq!(inside.margin, margin + more, "{headroom:?} of {total} GiB");
        }
    }

    #[test]
    fn a_share_is_of_the_total_and_never_less_than_none_or_more_than_all() {
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
            // What others hold of the card does not matter.
            let gpu = Gpu::new("card").total(gib(10)).free(gib(4));
            let parts = Headroom::Percent(percent).of_gpu(&gpu, &WORKLOAD, mib(99), true);
            assert_eq!(parts.total(), bytes, "{percent}");
        }
    }
}
