//! The devices that ggml can compute on, and the backends that drive them.

mod backend;
pub(crate) mod registry;
mod rpc;
mod threadpool;

use std::fmt;
use std::ptr::NonNull;

use crate::raw;
use crate::safe::call::text::owned;
use crate::safe::call::{self, Error};

pub use backend::Backend;
#[cfg(feature = "prebuilt-runtime")]
pub use backend::shortcomings;
pub(crate) use threadpool::Threadpools;
pub use threadpool::{ThreadWait, attach_threads};

/// A handle to a device in ggml's registry. Registered devices live until the process ends.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Device {
    raw: NonNull<raw::ggml_backend_device>,
}

// SAFETY: a device is an entry of ggml's registry that is never moved or freed while it is registered. Queries read
// constants or ask the driver, and a backend guards its caches (ggml-backend.cpp passes devices between threads the
// same way).
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The kind of a device, in ggml's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's CPU and memory.
    Cpu,
    /// A GPU with its own memory.
    Gpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// A helper of the CPU without its own memory (BLAS, AMX).
    Accelerator,
    /// A device that stands for several devices.
    Meta,
}

/// Memory of a device at the moment of the query, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Free bytes, as the backend reports them. For the CPU ggml reports all of the host's memory.
    pub free: u64,
    /// Bytes in total.
    pub total: u64,
}

impl Device {
    pub(crate) fn from_raw(raw: raw::ggml_backend_dev_t) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw })
    }

    pub(crate) fn as_ptr(&self) -> raw::ggml_backend_dev_t {
        self.raw.as_ptr()
    }

    /// ggml's name, such as `CUDA0`. It is unique in the process.
    pub fn name(&self) -> String {
        // SAFETY: the device is registered, and the string lives as long as the device.
        unsafe { owned(raw::ggml_backend_dev_name(self.as_ptr())) }
    }

    /// The maker's name, such as `NVIDIA GeForce RTX 4090`.
    pub fn description(&self) -> String {
        // SAFETY: as in `name`.
        unsafe { owned(raw::ggml_backend_dev_description(self.as_ptr())) }
    }

    /// Name of the backend that drives the device, such as `CUDA`.
    pub fn backend(&self) -> String {
        // SAFETY: every device belongs to a registry entry with a name.
        unsafe { owned(raw::ggml_backend_reg_name(raw::ggml_backend_dev_backend_reg(self.as_ptr()))) }
    }

    /// The kind of the device.
    pub fn kind(&self) -> DeviceKind {
        // SAFETY: the device is registered.
        match unsafe { raw::ggml_backend_dev_type(self.as_ptr()) } {
            raw::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
            raw::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::IntegratedGpu,
            raw::GGML_BACKEND_DEVICE_TYPE_ACCEL => DeviceKind::Accelerator,
            raw::GGML_BACKEND_DEVICE_TYPE_META => DeviceKind::Meta,
            _ => DeviceKind::Gpu,
        }
    }

    /// Whether layers can be offloaded to the device.
    pub fn is_gpu(&self) -> bool {
        matches!(self.kind(), DeviceKind::Gpu | DeviceKind::IntegratedGpu)
    }

    /// Free and total bytes now. On CUDA the first query creates the driver's context on the device (107-555 MiB).
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if the driver does not answer.
    pub fn memory(&self) -> Result<DeviceMemory, Error> {
        let (mut free, mut total) = (0, 0);
        call::checked(|error| {
            // SAFETY: the device is registered and every pointer is valid.
            unsafe { raw::shim_device_memory(self.as_ptr(), &raw mut free, &raw mut total, error) }
        })
        .map_err(|failure| Error::Call { what: "asking a device for its memory", failure })?;
        Ok(DeviceMemory { free: free as u64, total: total as u64 })
    }

    /// Whether a model with layers on this device is memory-mapped under [`LoadMode::Auto`](crate::LoadMode::Auto)
    /// (llama-model.cpp, `load_tensors`). False for most devices that use the host's memory.
    pub fn lets_files_be_mapped(&self) -> bool {
        self.props().is_some_and(|props| props.caps.mmap_support)
    }

    /// Whether the device offers host memory that its driver pins. If a load uses such a device, the weights on the
    /// host lie in pinned memory, or in plain memory if the file is mapped. In both cases they are never rearranged for
    /// the CPU (llama-model.cpp, `make_cpu_buft_list`).
    pub fn pins_host_memory(&self) -> bool {
        self.buffer_type(true).is_ok_and(|buft| !buft.is_null())
    }

    /// The buffer type of the device's own memory. With `pinned`, the buffer type of the host memory that the device's
    /// driver pins.
    pub(crate) fn buffer_type(&self, pinned: bool) -> Result<raw::ggml_backend_buffer_type_t, Error> {
        // SAFETY: the device is registered.
        call::checked(|error| unsafe { raw::shim_device_buft(self.as_ptr(), pinned, error) })
            .map_err(|failure| Error::Call { what: "opening a device", failure })
    }

    fn props(&self) -> Option<raw::ggml_backend_dev_props> {
        // SAFETY: an all-zero properties struct is valid (pointers NULL, numbers 0).
        let mut props: raw::ggml_backend_dev_props = unsafe { std::mem::zeroed() };
        call::checked(|error| {
            // SAFETY: the device is registered and both pointers are valid.
            unsafe { raw::shim_device_props(self.as_ptr(), &raw mut props, error) }
        })
        .ok()?;
        Some(props)
    }

    /// The PCI address, such as `0000:01:00.0`; `None` if the backend does not know it.
    pub fn pci_id(&self) -> Option<String> {
        let id = self.props()?.device_id;
        // SAFETY: NULL, or a string that lives as long as the device (ggml-backend.h, device_id).
        (!id.is_null()).then(|| unsafe { owned(id) }).filter(|id| !id.is_empty())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).field("kind", &self.kind()).finish_non_exhaustive()
    }
}
