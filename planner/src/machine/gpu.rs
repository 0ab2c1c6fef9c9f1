//! A GPU: its identity, its backend and its free bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bandwidth::{Bandwidth, BandwidthSource};
use super::bytes::Bytes;
use super::catalogue::{self, CatalogueError};
use super::gpu_process::GpuProcess;
use super::measured::{LearnedHeadroom, MeasuredRates};
use super::mig::MigSlice;
use super::pci::PciId;
use super::pcie::PcieLink;
use super::pools::Pools;
use super::reading::Reading;

/// A device on which llama.cpp can place layers.
///
/// [`Machine::detect`](super::Machine::detect) finds real GPUs; [`Gpu::named`] makes hypothetical ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Gpu {
    /// The short name for people, without the maker: `RTX 4090`. Identical cards have identical names.
    pub name: String,
    /// The full name from the driver: `NVIDIA GeForce RTX 4090`.
    pub description: String,
    /// Where the GPU's memory is.
    pub kind: GpuKind,
    /// The ggml backend that drives the GPU, as in ggml's registry: `CUDA`, `Vulkan`, `MTL`, `ROCm`, `RPC`.
    pub backend: String,
    /// The name in ggml (`CUDA0`), which a load uses. `None` for a hypothetical card, and for a card that only NVML
    /// lists.
    pub device: Option<String>,
    /// The PCI address, if known.
    pub pci_id: Option<PciId>,
    /// Bytes that the backend can use on an idle GPU.
    pub total: u64,
    /// Bytes that are free now: the smallest of all readings, never more than `total`.
    pub free: u64,
    /// For an integrated GPU, its own bytes and the host's bytes, if the system distinguishes them. `None` means that
    /// all bytes are the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Pools>,
    /// Alignment of every tensor in bytes, if it depends on the device and is known: Vulkan's
    /// `minStorageBufferOffsetAlignment`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alignment: Option<u64>,
    /// The memory's read bandwidth: a stated figure, the driver's figure, or that of the data sheet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// The PCIe link, if known. An integrated GPU has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// The number of threads that all multiprocessors together can hold, if the catalogue lists the card (only NVIDIA's
    /// cards). CUDA reserves memory for each of these threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_threads: Option<u32>,
    /// The driver's version, if reported: `550.54.14`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Memory that is used outside the buffers that llama.cpp counts, if it was measured with this driver and build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<LearnedHeadroom>,
    /// Rates of ggml's operations, if measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<MeasuredRates>,
    /// The slice, if this GPU is a slice of a card in MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigSlice>,
    /// The other programs that have opened the card; the program with the most memory comes first. `None` if no source
    /// reports them; an empty list means that there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<GpuProcess>>,
    /// The unaltered reading of ggml's backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ggml: Option<Reading>,
    /// The unaltered reading of NVIDIA's driver: the reading of NVML or, with a driver before 510, of `nvidia-smi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvml: Option<Reading>,
}

/// Where a GPU's memory is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuKind {
    /// A card with its own memory.
    #[default]
    Discrete,
    /// A GPU that uses the host's memory: its bytes come from the host, except bytes that were set aside for the GPU
    /// ([`Gpu::pools`]).
    Integrated,
    /// A device of another machine, reached through llama.cpp's RPC backend.
    Remote,
}

impl Gpu {
    /// A card with this name and without memory; [`total`](Self::total) sets the memory.
    ///
    /// Unless set otherwise, it is discrete and driven by CUDA. The field `name` leaves out the maker, and
    /// `description` keeps the maker. Control characters are removed, because the name may come from another machine.
    pub fn new(name: impl Into<String>) -> Self {
        let description = name.into().replace(char::is_control, " ");
        Self { name: short_name(&description).to_owned(), description, backend: "CUDA".to_owned(), ..Self::default() }
    }

    /// A hypothetical card of the catalogue: `RTX 4090`, `RTX 3060 12GB`, `RTX 4090 Laptop GPU`, `Apple M4 Max 64GB`.
    ///
    /// The catalogue has the makers' sizes and bandwidths of about 170 common cards. The name may be the driver's name
    /// or a common one. About 1/32 of a card's memory counts as not free, because the driver keeps it. For an Apple
    /// chip, the stated size is that of the computer's memory, and `total` is the limit that Metal recommends: two
    /// thirds of the memory, or three quarters from 36 GB on.
    ///
    /// ```
    /// use autoplace_planner::machine::{Gpu, bytes::gib};
    /// let card = Gpu::named("RTX 4090").unwrap().free(gib(22));
    /// assert_eq!(card.to_string(), "RTX 4090: 22.0 GiB free of 24.0 GiB");
    /// ```
    ///
    /// # Errors
    ///
    /// [`CatalogueError`] if no card has this name, or more than one. The message lists similar names.
    pub fn named(name: &str) -> Result<Self, CatalogueError> {
        catalogue::named(name)
    }

    /// A hypothetical second card like this one. No program uses this card; about 1/32 of its memory counts as not
    /// free, because the driver keeps that part.
    pub fn another(&self) -> Self {
        catalogue::another(self)
    }

    /// Sets the total bytes. All bytes count as free unless [`free`](Self::free) sets fewer.
    pub const fn total(mut self, bytes: u64) -> Self {
        if self.free == self.total || self.free > bytes {
            self.free = bytes;
        }
        self.total = bytes;
        self
    }

    /// Sets the free bytes, at most the total.
    pub const fn free(mut self, bytes: u64) -> Self {
        self.free = if self.total > 0 && bytes > self.total { self.total } else { bytes };
        self
    }

    /// Sets the alignment of tensors: a power of two, in bytes.
    pub fn alignment(mut self, bytes: u64) -> Self {
        self.alignment = Some(bytes);
        self
    }

    /// Sets where the GPU's memory is.
    pub fn kind(mut self, kind: GpuKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets an integrated GPU's own bytes and the host's bytes.
    pub fn pools(mut self, pools: Pools) -> Self {
        self.pools = Some(pools);
        self
    }

    /// Sets the PCI address.
    pub fn pci_id(mut self, id: PciId) -> Self {
        self.pci_id = Some(id);
        self
    }

    /// Sets the memory's bandwidth in bytes per second, as a stated figure.
    pub fn bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.bandwidth = Some(Bandwidth::new(bytes_per_second, BandwidthSource::Stated));
        self
    }

    /// Sets the PCIe link.
    pub fn pcie(mut self, link: PcieLink) -> Self {
        self.pcie = Some(link);
        self
    }

    /// Sets the measured memory outside the buffers that llama.cpp counts.
    pub fn learned(mut self, learned: LearnedHeadroom) -> Self {
        self.learned = Some(learned);
        self
    }

    /// Sets the ggml backend (`CUDA`, `Vulkan`, `MTL`, `ROCm`, `RPC`).
    pub fn backend(mut self, backend: impl Into<String>) -> Self {
        self.backend = backend.into();
        self
    }

    /// Sets the name in ggml (`CUDA0`).
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Whether bytes placed on the GPU may come from the host's memory.
    pub fn shares_host_memory(&self) -> bool {
        self.kind == GpuKind::Integrated && self.pools.is_none_or(|pools| pools.shared.total > 0)
    }

    /// Free bytes that do not come from the host's memory.
    pub fn own_free(&self) -> u64 {
        match self.kind {
            GpuKind::Discrete | GpuKind::Remote => self.free,
            GpuKind::Integrated => self.pools.map_or(0, |pools| pools.own.free.min(self.free)),
        }
    }

    /// How many of the `bytes` placed on the GPU come from the host's memory: the bytes that do not fit into the GPU's
    /// own pool, in which `headroom` bytes stay free.
    pub fn bytes_of_host(&self, bytes: u64, headroom: u64) -> u64 {
        match self.kind {
            GpuKind::Discrete | GpuKind::Remote => 0,
            GpuKind::Integrated => bytes.saturating_sub(self.own_free().saturating_sub(headroom)),
        }
    }

    /// Subtracts bytes from the free memory, first from the GPU's own pool.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.free = self.free.saturating_sub(bytes);
        if let Some(pools) = &mut self.pools {
            pools.own.free = pools.own.free.saturating_sub(bytes);
        }
    }

    /// Whether `free` was read after the backend had opened the device. If so, the cost of opening (for a CUDA context
    /// 107 to 555 MiB) was already subtracted. False for hypothetical cards and for cards that only NVML lists: opening
    /// such a card will still cost memory.
    pub fn free_is_after_opening(&self) -> bool {
        self.ggml.is_some()
    }
}

impl Gpu {
    /// The name, with the MIG profile and ggml's device name if there are any: `H100 MIG 1g.10gb (CUDA0)`.
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

/// `RTX 4090` for `NVIDIA GeForce RTX 4090`; the name of an unknown maker stays.
pub(super) fn short_name(description: &str) -> &str {
    let mut name = description.trim();
    for prefix in ["NVIDIA ", "GeForce ", "AMD ", "Intel(R) ", "Intel "] {
        name = name.strip_prefix(prefix).unwrap_or(name).trim_start();
    }
    // Mesa appends the driver's name for the chip: "Radeon RX 7900 XTX (RADV NAVI31)".
    name.split_once(" (RADV").map_or(name, |(name, _)| name).trim()
}

#[cfg(test)]
mod tests {
    use super::Gpu;
    use crate::machine::bytes::gib;

    #[test]
    fn free_and_total_may_be_set_in_either_order_and_free_is_at_most_total() {
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
