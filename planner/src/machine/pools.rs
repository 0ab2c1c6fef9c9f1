//! The pools of an integrated GPU: bytes that were set aside for it when the computer started, which the host does
//! not see, and bytes that it takes of the host's memory on demand. What Linux reports of an AMD GPU flows in,
//! [`Pools`] flow out.
//!
//! Which pool a backend takes from (docs/machines.md has the sources):
//!
//! - Vulkan sees the sum of both (ggml-vulkan.cpp, `ggml_backend_vk_get_device_memory`); the driver fills the
//!   carve-out first.
//! - ROCm uses one of them: the carve-out, or where the shared pool is larger, that one alone (the kernel's
//!   `apu_prefer_gtt`).
//! - Metal, CUDA and Intel's GPUs have no carve-out that counts: without pools all of a GPU's bytes are the host's.

use serde::{Deserialize, Serialize};

use super::pci::PciId;
use super::tree::{Notes, Tree};

/// Where the bytes of an integrated GPU lie, as far as its backend takes from there. Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pools {
    /// The GPU's own part of the memory (a BIOS carve-out, UMA frame buffer): no byte of it is the host's.
    pub own: Pool,
    /// What it can take of the host's memory (GTT).
    pub shared: Pool,
}

/// One pool: how many bytes it has, and how many of them are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pool {
    /// All of it.
    pub total: u64,
    /// What nobody has taken.
    pub free: u64,
}

impl Pool {
    /// A pool of so many bytes, of which so many are free.
    pub const fn new(total: u64, free: u64) -> Self {
        Self { total, free }
    }
}

impl Pools {
    /// A GPU with bytes of its own and bytes that it takes of the host's.
    pub const fn new(own: Pool, shared: Pool) -> Self {
        Self { own, shared }
    }

    /// The pools that amdgpu reports for the GPU at this address (`mem_info_*`, kernel documentation of amdgpu), as
    /// `backend` uses them; it says that the GPU has `total` bytes. `None` where amdgpu does not drive the GPU, or
    /// where it is not known how the backend takes memory.
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
            // Kernels before 6.10 keep ROCm in the carve-out whatever its size; then the backend's total says so.
            "ROCm" if own.total >= shared.total || total <= own.total => Some(Self::new(own, Pool::default())),
            "ROCm" => Some(Self::new(Pool::default(), shared)),
            _ => None,
        }
    }
}
