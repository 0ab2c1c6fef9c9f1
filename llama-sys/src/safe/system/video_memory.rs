//! How Windows counts a process's video memory: the budget on each GPU, and the memory in use.
//!
//! For each GPU, Windows gives each process a budget of memory. A process that exceeds its budget does not fail: the
//! system moves its memory to the host's, where the GPU reads it over PCIe. CUDA and NVML do not report that, but DXGI
//! does (`IDXGIAdapter3::QueryVideoMemoryInfo`).

use windows::Win32::Graphics::Dxgi::{
    CreateDXGIFactory1, DXGI_MEMORY_SEGMENT_GROUP, DXGI_MEMORY_SEGMENT_GROUP_LOCAL,
    DXGI_MEMORY_SEGMENT_GROUP_NON_LOCAL, DXGI_QUERY_VIDEO_MEMORY_INFO, IDXGIAdapter3, IDXGIFactory1,
};
use windows::core::Interface;

/// A GPU as Windows lists it.
#[derive(Debug, Clone)]
pub struct VideoMemory {
    adapter: IDXGIAdapter3,
    description: String,
}

/// This process's budget on a GPU, and its use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VideoMemoryUse {
    /// The GPU's own memory that the process may use before the system moves some of it to the host.
    pub budget: u64,
    /// The GPU's own memory in use.
    pub used: u64,
    /// The host's memory that is used for this GPU: buffers that were moved there, and buffers that were allocated
    /// there.
    pub on_host: u64,
}

impl VideoMemory {
    /// All GPUs in Windows' order. The list is empty if DXGI does not answer.
    #[must_use]
    pub fn adapters() -> Vec<Self> {
        // SAFETY: the function takes no arguments, and returns an interface that counts its references.
        let factory: IDXGIFactory1 = match unsafe { CreateDXGIFactory1() } {
            Ok(factory) => factory,
            Err(error) => {
                tracing::debug!(%error, "DXGI does not start");
                return Vec::new();
            }
        };
        (0..)
            // SAFETY: any index may be passed; the one after the last is refused (DXGI_ERROR_NOT_FOUND).
            .map_while(|index| unsafe { factory.EnumAdapters1(index) }.ok())
            .filter_map(|adapter| {
                // SAFETY: the adapter is an interface that counts its references.
                let described = unsafe { adapter.GetDesc1() }.ok()?;
                let name = &described.Description;
                let end = name.iter().position(|&c| c == 0).unwrap_or(name.len());
                Some(Self { adapter: adapter.cast().ok()?, description: String::from_utf16_lossy(&name[..end]) })
            })
            .collect()
    }

    /// The GPU's name, such as `NVIDIA GeForce RTX 4090`.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// This process's budget and use on this GPU; `None` if Windows does not report it.
    #[must_use]
    pub fn usage(&self) -> Option<VideoMemoryUse> {
        let local = self.ask(DXGI_MEMORY_SEGMENT_GROUP_LOCAL)?;
        let host = self.ask(DXGI_MEMORY_SEGMENT_GROUP_NON_LOCAL)?;
        Some(VideoMemoryUse { budget: local.Budget, used: local.CurrentUsage, on_host: host.CurrentUsage })
    }

    fn ask(&self, group: DXGI_MEMORY_SEGMENT_GROUP) -> Option<DXGI_QUERY_VIDEO_MEMORY_INFO> {
        let mut info = DXGI_QUERY_VIDEO_MEMORY_INFO::default();
        // SAFETY: `info` is valid for writes during the call. Node 0 is the GPU itself, unless several GPUs are linked
        // into one.
        unsafe { self.adapter.QueryVideoMemoryInfo(0, group, &raw mut info) }.ok()?;
        Some(info)
    }
}
