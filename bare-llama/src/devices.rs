//! ggml's devices and their memory, by name.

use std::ffi::CString;
use std::ptr::{self, NonNull};

use anyhow::{Context as _, Result, ensure};
use autoplace_planner::memory::estimate::Place;
use llama_sys::{Backend, raw};

/// The end of a list of overrides.
pub(super) const NO_OVERRIDE: raw::llama_model_tensor_buft_override =
    raw::llama_model_tensor_buft_override { pattern: ptr::null(), buft: ptr::null_mut() };

/// The devices with these names, followed by the null that ends the list. With an empty list, everything is on the
/// host.
pub(super) fn handles(devices: &[String]) -> Result<Vec<raw::ggml_backend_dev_t>> {
    Backend::init()?;
    let mut list = Vec::new();
    for name in devices {
        let text = CString::new(name.as_str())?;
        // SAFETY: the name is NUL-terminated; the registry is initialised.
        let device = unsafe { raw::ggml_backend_dev_by_name(text.as_ptr()) };
        ensure!(!device.is_null(), "there is no device {name}");
        list.push(device);
    }
    list.push(ptr::null_mut());
    Ok(list)
}

/// The buffer type of a place, for a null-terminated list of devices.
pub(super) fn memory_of(place: Place, devices: &[raw::ggml_backend_dev_t]) -> Result<raw::ggml_backend_buffer_type_t> {
    match place {
        // SAFETY: a function without arguments.
        Place::Host => Ok(unsafe { raw::ggml_backend_cpu_buffer_type() }),
        Place::Gpu(gpu) => {
            let device = devices.get(gpu).filter(|device| !device.is_null());
            let device = device.with_context(|| format!("there is no GPU {gpu}"))?;
            // SAFETY: a device that is found lives until the process ends, and has a buffer type.
            Ok(unsafe { raw::ggml_backend_dev_buffer_type(*device) })
        }
    }
}

/// The place for a buffer type.
#[cfg(feature = "fit")]
pub(super) fn place_of(buft: raw::ggml_backend_buffer_type_t, devices: &[raw::ggml_backend_dev_t]) -> Result<Place> {
    // SAFETY: a function without arguments.
    if buft == unsafe { raw::ggml_backend_cpu_buffer_type() } {
        return Ok(Place::Host);
    }
    let found = devices.iter().position(|&device| {
        // SAFETY: a device that is found lives until the process ends, and has a buffer type.
        !device.is_null() && buft == unsafe { raw::ggml_backend_dev_buffer_type(device) }
    });
    Ok(Place::Gpu(found.context("llama.cpp's fit puts weights into memory of no device that it was given")?))
}

/// A buffer that takes memory on a device and is not used otherwise. Dropping it frees the memory.
#[derive(Debug)]
pub struct Buffer(NonNull<raw::ggml_backend_buffer>);

impl Buffer {
    /// Allocates this many bytes on the device with this name. `None` if the device cannot allocate them at once.
    ///
    /// # Errors
    ///
    /// No device has this name.
    pub fn allocate(device: &str, bytes: u64) -> Result<Option<Self>> {
        let devices = handles(&[device.to_owned()])?;
        let memory = memory_of(Place::Gpu(0), &devices)?;
        let Ok(bytes) = usize::try_from(bytes) else { return Ok(None) };
        // SAFETY: a buffer type of a device lives as long as the device, which lives until the process ends.
        Ok(NonNull::new(unsafe { raw::ggml_backend_buft_alloc_buffer(memory, bytes) }).map(Self))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: made by `allocate`, and freed once.
        unsafe { raw::ggml_backend_buffer_free(self.0.as_ptr()) };
    }
}
