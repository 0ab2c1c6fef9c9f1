//! A GPU: what it is, who drives it, and how many bytes are free on it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::pci::PciId;

/// A device that llama.cpp can place layers on.
///
/// Detected ones come from [`Machine::detect`](super::Machine::detect); hypothetical ones are written down:
///
/// ```
/// use autoplace::machine::{Gpu, bytes::gib};
/// let card = Gpu::new("RTX 4090").total(gib(24)).free(gib(22));
/// assert_eq!(card.to_string(), "RTX 4090: 22.0 GiB free of 24.0 GiB");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Gpu {
    /// Its short name for people, without the maker: `RTX 4090`. Two equal cards have equal names.
    pub name: String,
    /// Its full name as the driver gives it: `NVIDIA GeForce RTX 4090`.
    pub description: String,
    /// Where its memory is.
    pub kind: GpuKind,
    /// The ggml backend that drives it, as ggml's registry names it: `CUDA`, `Vulkan`, `MTL`, `ROCm`, `RPC`.
    pub backend: String,
    /// Its name in ggml (`CUDA0`), by which a load asks for it; `None` for a card that only NVML has seen or that is hypothetical.
    pub device: Option<String>,
    /// Its PCI address, where one is known.
    pub pci_id: Option<PciId>,
    /// Bytes that the backend can use of it when nothing runs.
    pub total: u64,
    /// Bytes free now: the smallest of what was read, never more than `total`.
    pub free: u64,
    /// What every tensor on it begins at a multiple of, in bytes, where that is the device's own affair and known: Vulkan's
    /// `minStorageBufferOffsetAlignment`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alignment: Option<u64>,
    /// What ggml's backend said, unaltered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ggml: Option<Reading>,
    /// What NVIDIA's driver (NVML) said, unaltered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvml: Option<Reading>,
}

/// Where a GPU's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GpuKind {
    /// A card with memory of its own.
    Discrete,
    /// A GPU that uses the host's memory: bytes placed on it are bytes taken from the host.
    Integrated,
    /// A device of another machine, reached through llama.cpp's RPC backend.
    Remote,
}

/// What one source said about a GPU's memory, in bytes, before any rule was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reading {
    /// Total bytes. ggml's CUDA total is what CUDA can use; NVML's is the whole card.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes that the driver keeps for itself, counted in NVML's `total` (only its second memory query tells).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}

impl Reading {
    /// A source's total and free bytes.
    #[must_use]
    pub const fn new(total: u64, free: u64) -> Self {
        Self {
            total,
            free,
            reserved: None,
        }
    }

    /// The same, with the bytes that the driver keeps for itself.
    #[must_use]
    pub const fn reserved(mut self, bytes: u64) -> Self {
        self.reserved = Some(bytes);
        self
    }
}

impl Gpu {
    /// A card by its name, with no memory yet: give it some with [`total`](Self::total).
    ///
    /// It is discrete and driven by CUDA until told otherwise; the maker is left out of `name` and kept in `description`.
    pub fn new(name: impl Into<String>) -> Self {
        let description = name.into();
        Self {
            name: short_name(&description).to_owned(),
            description,
            kind: GpuKind::Discrete,
            backend: "CUDA".to_owned(),
            device: None,
            pci_id: None,
            total: 0,
            free: 0,
            alignment: None,
            ggml: None,
            nvml: None,
        }
    }

    /// Sets the bytes it has. All of them count as free unless [`free`](Self::free) says less.
    #[must_use]
    pub const fn total(mut self, bytes: u64) -> Self {
        let untold = self.free == self.total;
        if untold || self.free > bytes {
            self.free = bytes;
        }
        self.total = bytes;
        self
    }

    /// Sets the bytes that are free; more than its total counts as its total.
    #[must_use]
    pub const fn free(mut self, bytes: u64) -> Self {
        self.free = if self.total > 0 && bytes > self.total {
            self.total
        } else {
            bytes
        };
        self
    }

    /// Sets what its tensors begin at multiples of: a power of two, in bytes.
    #[must_use]
    pub const fn alignment(mut self, bytes: u64) -> Self {
        self.alignment = Some(bytes);
        self
    }

    /// Sets where its memory is.
    #[must_use]
    pub const fn kind(mut self, kind: GpuKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the ggml backend that drives it (`CUDA`, `Vulkan`, `MTL`, `ROCm`, `RPC`).
    #[must_use]
    pub fn backend(mut self, backend: impl Into<String>) -> Self {
        self.backend = backend.into();
        self
    }

    /// Sets its name in ggml (`CUDA0`).
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Sets its PCI address.
    #[must_use]
    pub const fn pci_id(mut self, id: PciId) -> Self {
        self.pci_id = Some(id);
        self
    }

    /// Whether bytes placed on it are taken from the host's memory.
    #[must_use]
    pub fn shares_host_memory(&self) -> bool {
        self.kind == GpuKind::Integrated
    }

    /// Whether `free` was read after the backend had opened the device, so that what opening costs (a CUDA context:
    /// 107 to 555 MiB) is already gone from it. False for NVML-only and hypothetical cards: there it is still to come.
    #[must_use]
    pub fn free_is_after_opening(&self) -> bool {
        self.ggml.is_some()
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(device) = &self.device {
            write!(f, " ({device})")?;
        }
        write!(f, ": {} free of {}", Bytes(self.free), Bytes(self.total))?;
        match self.kind {
            GpuKind::Discrete => Ok(()),
            GpuKind::Integrated => f.write_str(", shared with the host"),
            GpuKind::Remote => f.write_str(", on another machine"),
        }
    }
}

/// A GPU that is in this machine but cannot be planned for, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnusedGpu {
    /// The card as far as it is known.
    pub gpu: Gpu,
    /// Why nothing can be placed on it.
    pub reason: UnusedReason,
}

/// Why a GPU that is there cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnusedReason {
    /// No backend of this build can drive it: an NVIDIA card and neither CUDA nor Vulkan built in, for instance.
    NoBackend,
    /// `CUDA_VISIBLE_DEVICES` hides it.
    Hidden,
    /// A backend that could drive it is there but does not list it: the driver is too old for the CUDA it was built with, or
    /// the card is.
    NotListed {
        /// The backend that does not list it.
        backend: String,
    },
    /// It is the same hardware as a device already in use through another backend. llama.cpp makes the same choice
    /// (llama.cpp:232-262).
    SameAs {
        /// The ggml name of the device in use.
        device: String,
    },
    /// Its backend says that it has 0 bytes: ggml's CUDA backend answers so when the query fails.
    NoMemory,
    /// Neither its backend nor the driver says how much memory it has.
    UnknownMemory,
}

impl fmt::Display for UnusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBackend => f.write_str("this build has no backend for it"),
            Self::Hidden => f.write_str("CUDA_VISIBLE_DEVICES hides it"),
            Self::NotListed { backend } => {
                write!(f, "the {backend} backend of this build does not list it")
            }
            Self::SameAs { device } => write!(f, "the same hardware is in use as {device}"),
            Self::NoMemory => f.write_str("its backend says that it has no memory"),
            Self::UnknownMemory => f.write_str("nothing says how much memory it has"),
        }
    }
}

impl fmt::Display for UnusedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.gpu.name)?;
        if let Some(device) = &self.gpu.device {
            write!(f, " ({device})")?;
        }
        write!(f, " is not used: {}", self.reason)
    }
}

/// `RTX 4090` from `NVIDIA GeForce RTX 4090`; what is no known maker's prefix stays.
pub(super) fn short_name(description: &str) -> &str {
    let mut name = description.trim();
    for prefix in ["NVIDIA ", "GeForce ", "AMD ", "Intel(R) ", "Intel "] {
        name = name.strip_prefix(prefix).unwrap_or(name).trim_start();
    }
    // Mesa adds the driver's name for the chip: "Radeon RX 7900 XTX (RADV NAVI31)".
    let name = name.split_once(" (RADV").map_or(name, |(name, _)| name);
    name.trim()
}

#[cfg(test)]
mod tests {
    use super::{Gpu, GpuKind, UnusedGpu, UnusedReason, short_name};
    use crate::machine::bytes::gib;

    #[test]
    fn a_card_of_which_nothing_is_said_is_free() {
        let card = Gpu::new("RTX 4090").total(gib(24));
        assert_eq!((card.total, card.free), (gib(24), gib(24)));
        assert!(!card.free_is_after_opening());
    }

    #[test]
    fn free_and_total_may_be_said_in_either_order() {
        let total_first = Gpu::new("RTX 4090").total(gib(24)).free(gib(22));
        let free_first = Gpu::new("RTX 4090").free(gib(22)).total(gib(24));
        assert_eq!(total_first, free_first);
        assert_eq!(total_first.free, gib(22));
    }

    #[test]
    fn more_free_than_total_counts_as_total() {
        assert_eq!(Gpu::new("x").total(gib(8)).free(gib(9)).free, gib(8));
        assert_eq!(Gpu::new("x").free(gib(9)).total(gib(8)).free, gib(8));
    }

    #[test]
    fn the_makers_name_is_left_out_of_the_short_name() {
        let names = [
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("NVIDIA H200", "H200"),
            ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "Radeon RX 7900 XTX"),
            (
                "Intel(R) Arc(tm) A770 Graphics (DG2)",
                "Arc(tm) A770 Graphics (DG2)",
            ),
            ("Apple M3 Max", "Apple M3 Max"),
            ("NVIDIA ", "NVIDIA"),
            ("", ""),
        ];
        for (description, name) in names {
            assert_eq!(short_name(description), name);
        }
    }

    #[test]
    fn it_prints_what_a_person_needs() {
        let card = Gpu::new("NVIDIA GeForce RTX 4090")
            .total(gib(24))
            .free(gib(22))
            .device("CUDA0");
        assert_eq!(
            card.to_string(),
            "RTX 4090 (CUDA0): 22.0 GiB free of 24.0 GiB"
        );
        let shared = Gpu::new("Apple M3")
            .kind(GpuKind::Integrated)
            .total(gib(16));
        assert_eq!(
            shared.to_string(),
            "Apple M3: 16.0 GiB free of 16.0 GiB, shared with the host"
        );
        let unused = UnusedGpu {
            gpu: card,
            reason: UnusedReason::NoBackend,
        };
        assert_eq!(
            unused.to_string(),
            "RTX 4090 (CUDA0) is not used: this build has no backend for it"
        );
    }
}
