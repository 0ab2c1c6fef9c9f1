//! A GPU: what it is, who drives it, and how many bytes are free on it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bandwidth::{Bandwidth, BandwidthSource};
use super::bytes::Bytes;
use super::cards::{GpuProcess, MigSlice};
use super::catalogue::{self, CatalogueError};
use super::measured::{LearnedHeadroom, MeasuredRates};
use super::pci::PciId;
use super::pcie::PcieLink;
use super::pools::Pools;

/// A device that llama.cpp can place layers on.
///
/// Detected ones come from [`Machine::detect`](super::Machine::detect); hypothetical ones are written down
/// ([`Gpu::named`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Gpu {
    /// Its short name for people, without the maker: `RTX 4090`. Two equal cards have equal names.
    pub name: String,
    /// Its full name as the driver gives it: `NVIDIA GeForce RTX 4090`.
    pub description: String,
    /// Where its memory is.
    pub kind: GpuKind,
    /// The ggml backend that drives it, as ggml's registry names it: `CUDA`, `Vulkan`, `MTL`, `ROCm`, `RPC`.
    pub backend: String,
    /// Its name in ggml (`CUDA0`), by which a load asks for it; `None` for a card that only NVML has seen or that
    /// is hypothetical.
    pub device: Option<String>,
    /// Its PCI address, where one is known.
    pub pci_id: Option<PciId>,
    /// Bytes that the backend can use of it when nothing runs.
    pub total: u64,
    /// Bytes free now: the smallest of what was read, never more than `total`.
    pub free: u64,
    /// Of an integrated GPU, which of its bytes are its own and which the host's, where the system tells them apart.
    /// `None`: all are the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Pools>,
    /// What every tensor on it begins at a multiple of, in bytes, where that is the device's own affair and known:
    /// Vulkan's `minStorageBufferOffsetAlignment`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alignment: Option<u64>,
    /// How fast its memory is read, by the best source there is: measured, the driver, its data sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// Its PCIe link, where one is known. A GPU in the host's memory has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// Threads that all its multiprocessors hold at once, where the number follows from its name (NVIDIA's cards):
    /// CUDA keeps memory for each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_threads: Option<u32>,
    /// The version of its driver, where it reports one: `550.54.14`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// What it took beside the buffers that llama.cpp counts, where that has been measured with this driver and build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<LearnedHeadroom>,
    /// What ggml's operations were measured to do on it, where they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<MeasuredRates>,
    /// The slice that it is, where it is one of a card in MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigSlice>,
    /// The other programs that have opened the card, this process left out, the largest holder first. `None` where
    /// nothing reports them, which is not the same as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<GpuProcess>>,
    /// What ggml's backend said, unaltered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ggml: Option<Reading>,
    /// What NVIDIA's driver (NVML) said, unaltered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvml: Option<Reading>,
}

/// Where a GPU's memory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuKind {
    /// A card with memory of its own.
    #[default]
    Discrete,
    /// A GPU in the host's memory: bytes placed on it are taken from the host, those apart that were set aside for it
    /// ([`Gpu::pools`]).
    Integrated,
    /// A device of another machine, reached through llama.cpp's RPC backend.
    Remote,
}

/// What one source said about a GPU's memory, in bytes, before any rule was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Reading {
    /// Total bytes. ggml's CUDA total is what CUDA can use; NVML's is the whole card.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes that the driver keeps for itself, counted in NVML's `total` (only its second memory query reports them).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}

impl Reading {
    /// A source's total and free bytes.
    pub const fn new(total: u64, free: u64) -> Self {
        Self { total, free, reserved: None }
    }

    /// The same, with the bytes that the driver keeps for itself.
    pub const fn reserved(mut self, bytes: u64) -> Self {
        self.reserved = Some(bytes);
        self
    }
}

impl Gpu {
    /// A card by its name, with no memory yet: give it some with [`total`](Self::total).
    ///
    /// It is discrete and driven by CUDA until set otherwise; the maker is left out of `name` and kept
    /// in `description`. Control characters are left out: another machine may say what its GPUs are called.
    pub fn new(name: impl Into<String>) -> Self {
        let description = name.into().replace(char::is_control, " ");
        Self { name: short_name(&description).to_owned(), description, backend: "CUDA".to_owned(), ..Self::default() }
    }

    /// A card of the catalogue that is not there: `RTX 4090`, `RTX 3060 12GB`, `RTX 4090 Laptop GPU`,
    /// `Apple M4 Max 64GB`.
    ///
    /// Size and bandwidth are the maker's, for some 170 common cards; the name may be written as the driver or as
    /// people do. What drivers keep of a card, about a thirty-second part, counts as not free. Of an Apple chip, whose
    /// size is the computer's, `total` is what Metal recommends to use: two thirds, and three quarters from 36 GB on.
    ///
    /// ```
    /// use autoplace_planner::machine::{Gpu, bytes::gib};
    /// let card = Gpu::named("RTX 4090").unwrap().free(gib(22));
    /// assert_eq!(card.to_string(), "RTX 4090: 22.0 GiB free of 24.0 GiB");
    /// ```
    ///
    /// # Errors
    ///
    /// [`CatalogueError`] where no card or more than one has that name, with the names that may have been meant.
    pub fn named(name: &str) -> Result<Self, CatalogueError> {
        catalogue::named(name)
    }

    /// Another card like this one, hypothetical: what drivers keep of a card, about a thirty-second part, is not free,
    /// and nothing else holds any of it.
    pub fn another(&self) -> Self {
        catalogue::another(self)
    }

    /// Sets the bytes it has. All of them count as free unless [`free`](Self::free) says less.
    pub const fn total(mut self, bytes: u64) -> Self {
        if self.free == self.total || self.free > bytes {
            self.free = bytes;
        }
        self.total = bytes;
        self
    }

    /// Sets the bytes that are free; more than its total counts as its total.
    pub const fn free(mut self, bytes: u64) -> Self {
        self.free = if self.total > 0 && bytes > self.total { self.total } else { bytes };
        self
    }

    setters! {
        /// Sets what its tensors begin at multiples of: a power of two, in bytes.
        alignment(bytes: u64) alignment = Some(bytes);
        /// Sets where its memory is.
        kind(kind: GpuKind) kind = kind;
        /// Sets which bytes of an integrated GPU are its own and which the host's.
        pools(pools: Pools) pools = Some(pools);
        /// Sets its PCI address.
        pci_id(id: PciId) pci_id = Some(id);
        /// Sets how fast its memory is read, in bytes per second, as a stated figure.
        bandwidth(bytes_per_second: u64) bandwidth = Some(Bandwidth::new(bytes_per_second, BandwidthSource::Stated));
        /// Sets its PCIe link.
        pcie(link: PcieLink) pcie = Some(link);
        /// Sets what it was seen to take beside the buffers that llama.cpp counts.
        learned(learned: LearnedHeadroom) learned = Some(learned);
        /// Sets the ggml backend that drives it (`CUDA`, `Vulkan`, `MTL`, `ROCm`, `RPC`).
        backend(backend: impl Into<String>) backend = backend.into();
        /// Sets its name in ggml (`CUDA0`).
        device(device: impl Into<String>) device = Some(device.into());
    }

    /// Whether bytes placed on it may be taken from the host's memory.
    pub fn shares_host_memory(&self) -> bool {
        self.kind == GpuKind::Integrated && self.pools.is_none_or(|pools| pools.shared.total > 0)
    }

    /// Free bytes that are not the host's.
    pub fn own_free(&self) -> u64 {
        match self.kind {
            GpuKind::Discrete | GpuKind::Remote => self.free,
            GpuKind::Integrated => self.pools.map_or(0, |pools| pools.own.free.min(self.free)),
        }
    }

    /// How many of `bytes` placed on it are taken from the host's memory: what its own pool does not hold, `headroom`
    /// being left free in that pool.
    pub fn bytes_of_host(&self, bytes: u64, headroom: u64) -> u64 {
        match self.kind {
            GpuKind::Discrete | GpuKind::Remote => 0,
            GpuKind::Integrated => bytes.saturating_sub(self.own_free().saturating_sub(headroom)),
        }
    }

    /// Takes bytes of what is free, of its own pool first.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.free = self.free.saturating_sub(bytes);
        if let Some(pools) = &mut self.pools {
            pools.own.free = pools.own.free.saturating_sub(bytes);
        }
    }

    /// Whether `free` was read after the backend had opened the device, so that what opening costs (a CUDA context:
    /// 107 to 555 MiB) is already gone from it. False for NVML-only and hypothetical cards: there it is still to come.
    pub fn free_is_after_opening(&self) -> bool {
        self.ggml.is_some()
    }
}

impl Gpu {
    /// Its name, with its MIG profile and the name of ggml's device where there are such: `H100 MIG 1g.10gb (CUDA0)`.
    pub(super) fn title(&self) -> String {
        let mut title = self.name.clone();
        if let Some(profile) = self.mig.as_ref().and_then(|slice| slice.profile.as_ref()) {
            title += &format!(" MIG {profile}");
        }
        if let Some(device) = &self.device {
            title += &format!(" ({device})");
        }
        title
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.title())?;
        write!(f, ": {} free of {}", Bytes(self.free), Bytes(self.total))?;
        let own = self.pools.map_or(0, |pools| pools.own.total);
        f.write_str(match self.kind {
            GpuKind::Discrete => "",
            GpuKind::Remote => ", on another machine",
            GpuKind::Integrated if !self.shares_host_memory() => ", set aside for it",
            GpuKind::Integrated if own == 0 => ", shared with the host",
            GpuKind::Integrated => {
                return write!(f, ", {} set aside for it, the rest shared with the host", Bytes(own));
            }
        })
    }
}

/// `RTX 4090` from `NVIDIA GeForce RTX 4090`; what is no known maker's prefix stays.
pub(super) fn short_name(description: &str) -> &str {
    let mut name = description.trim();
    for prefix in ["NVIDIA ", "GeForce ", "AMD ", "Intel(R) ", "Intel "] {
        name = name.strip_prefix(prefix).unwrap_or(name).trim_start();
    }
    // Mesa adds the driver's name for the chip: "Radeon RX 7900 XTX (RADV NAVI31)".
    name.split_once(" (RADV").map_or(name, |(name, _)| name).trim()
}

#[cfg(test)]
mod tests {
    use super::Gpu;
    use crate::machine::bytes::gib;

    #[test]
    fn free_and_total_may_be_said_in_either_order_and_free_is_never_more() {
        let card = || Gpu::new("RTX 4090");
        let sizes = |gpu: Gpu| (gpu.free, gpu.total);
        assert_eq!(sizes(card().total(gib(24))), (gib(24), gib(24)));
        assert_eq!(sizes(card().total(gib(24)).free(gib(22))), (gib(22), gib(24)));
        assert_eq!(sizes(card().free(gib(22)).total(gib(24))), (gib(22), gib(24)));
        assert_eq!(sizes(card().total(gib(8)).free(gib(9))), (gib(8), gib(8)));
        assert_eq!(sizes(card().free(gib(9)).total(gib(8))), (gib(8), gib(8)));
        assert!(!card().free_is_after_opening());
    }
}
