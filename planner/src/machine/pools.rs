//! The memory pools of an integrated GPU: bytes that are reserved for the GPU at boot (the *carve-out*), which the host
//! does not see, and bytes that the GPU takes from the host's memory when needed. In: Linux's report on an AMD GPU.
//! Out: [`Pools`].
//!
//! Each backend uses the pools differently (docs/machines.md has the sources):
//!
//! - Vulkan reports the sum of both pools (ggml-vulkan.cpp, `ggml_backend_vk_get_device_memory`); the driver fills the
//!   carve-out first.
//! - ROCm uses one of the pools: the carve-out, or the shared pool if that is larger (the kernel's `apu_prefer_gtt`).
//! - Metal, CUDA and Intel's GPUs have no relevant carve-out: if there are no pools, all of a GPU's bytes are the
//!   host's.

use serde::{Deserialize, Serialize};

use super::pci::PciId;
use super::tree::{Notes, Tree};

/// The memory that the backend of an integrated GPU uses, divided by its owner. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pools {
    /// The GPU's own part of the memory (a BIOS carve-out, UMA frame buffer); the host cannot use it.
    pub own: Pool,
    /// The part of the host's memory that the GPU can take (GTT).
    pub shared: Pool,
}

/// One pool of memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pool {
    /// Total bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
}

impl Pool {
    /// A pool with this many total and free bytes.
    pub const fn new(total: u64, free: u64) -> Self {
        Self { total, free }
    }
}

impl Pools {
    /// Pools with these own and shared bytes.
    pub const fn new(own: Pool, shared: Pool) -> Self {
        Self { own, shared }
    }

    /// The pools of the GPU at this address, from amdgpu's report (`mem_info_*`, kernel documentation of amdgpu), as
    /// `backend` uses them. `total` is the backend's total. `None` if amdgpu does not drive the GPU, or for an unknown
    /// backend.
    pub(super) fn of_amdgpu(tree: Tree<'_>, id: PciId, backend: &str, total: u64, notes: &mut Notes) -> Option<Self> {
        let mut read = |what: &str| {
            let file = format!("/sys/bus/pci/devices/{id}/mem_info_{what}");
            tree.read(&file, notes)?.trim().parse::<u64>().ok()
        };
        let mut pool = |name: &str| {
            let total = read(&format!("{name}_total"))?;
            let used = read(&format!("{name}_used"))?;
            Some(Pool::new(total, total.saturating_sub(used)))
        };
        let (own, shared) = (pool("vram")?, pool("gtt")?);
        match backend {
            "Vulkan" => Some(Self::new(own, shared)),
            // With kernels before 6.10, ROCm uses the carve-out whatever its size. The backend's total shows whether
            // this is the case.
            "ROCm" if own.total >= shared.total || total <= own.total => Some(Self::new(own, Pool::default())),
            "ROCm" => Some(Self::new(Pool::default(), shared)),
            _ => None,
        }
    }
}
