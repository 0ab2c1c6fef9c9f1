//! llama.cpp's own fit. A file, devices and a margin flow in; the split that the fit chooses flows out.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use autoplace_planner::gguf::Header;
use autoplace_planner::memory::{ContextParams, Split, TensorOverride};
use autoplace_planner::profile::ModelProfile;
use llama_sys::raw;

use crate::devices::{NO_OVERRIDE, handles, place_of};
use crate::params::native_context;

unsafe extern "C" {
    /// Defined in native/fit.cpp.
    fn bare_llama_fit(
        path: *const c_char,
        model: *mut raw::llama_model_params,
        context: *mut raw::llama_context_params,
        tensor_split: *mut f32,
        overrides: *mut raw::llama_model_tensor_buft_override,
        margins: *mut usize,
        n_ctx_min: u32,
    ) -> c_int;
}

/// The input of llama.cpp's fit. The fit may use only the listed devices.
#[derive(Debug)]
pub struct FitRequest<'a> {
    /// The model.
    pub path: &'a Path,
    /// Names of the devices: `CUDA0`, `SIM0`.
    pub devices: &'a [String],
    /// The context.
    pub params: &'a ContextParams,
    /// Bytes to leave free on each device.
    pub margins: &'a [u64],
    /// CPU threads.
    pub threads: u32,
}

/// The raw answer of llama.cpp's fit.
#[derive(Debug)]
pub struct Fit {
    devices: Vec<raw::ggml_backend_dev_t>,
    n_gpu_layers: i32,
    tensor_split: Vec<f32>,
    overrides: Vec<raw::llama_model_tensor_buft_override>,
}

impl FitRequest<'_> {
    /// Runs the fit.
    ///
    /// # Errors
    ///
    /// The fit finds no split or fails, or no device has one of the names.
    pub fn fit(&self) -> Result<Fit> {
        let path = CString::new(self.path.to_str().context("a path of UTF-8")?)?;
        let mut devices = handles(self.devices)?;
        // SAFETY: functions without arguments.
        let (mut model, most_devices, most_overrides) = unsafe {
            (raw::llama_model_default_params(), raw::llama_max_devices(), raw::llama_max_tensor_buft_overrides())
        };
        model.devices = devices.as_mut_ptr();
        let mut context = native_context(self.params, self.threads);
        let mut tensor_split = vec![0.0; most_devices];
        let mut overrides = vec![NO_OVERRIDE; most_overrides + 1];
        let mut margins = vec![0; most_devices];
        for (to, &margin) in margins.iter_mut().zip(self.margins) {
            *to = usize::try_from(margin)?;
        }
        // SAFETY: the path is NUL-terminated; every buffer has the length that common/fit.h asks for and outlives the
        // call; no other thread uses llama.cpp.
        let status = unsafe {
            bare_llama_fit(
                path.as_ptr(),
                &raw mut model,
                &raw mut context,
                tensor_split.as_mut_ptr(),
                overrides.as_mut_ptr(),
                margins.as_mut_ptr(),
                self.params.n_ctx,
            )
        };
        match status {
            0 => {}
            1 => bail!("llama.cpp's fit finds no split that leaves {:?} bytes free", self.margins),
            _ => bail!("llama.cpp's fit fails ({status})"),
        }
        ensure!(
            context.n_ctx == self.params.n_ctx,
            "llama.cpp's fit has changed the context to {} tokens from {}",
            context.n_ctx,
            self.params.n_ctx
        );
        if model.tensor_split.is_null() {
            tensor_split.clear();
        } else {
            tensor_split.truncate(self.devices.len());
        }
        Ok(Fit { devices, n_gpu_layers: model.n_gpu_layers, tensor_split, overrides })
    }

    /// Converts the result of a fit into a split.
    ///
    /// # Errors
    ///
    /// The result uses memory of a device that is not listed, or the header of the file cannot be read.
    pub fn read(&self, fit: Fit) -> Result<Split> {
        // A negative number means all layers.
        let layers = match u32::try_from(fit.n_gpu_layers) {
            Ok(layers) => layers,
            Err(_) => ModelProfile::from_header(&Header::open(self.path)?)?.full_offload(),
        };
        let written = fit.overrides.iter();
        let overrides = written
            .take_while(|one| !one.pattern.is_null())
            .map(|one| {
                // SAFETY: not null, and of common_fit_params, whose patterns are static strings.
                let pattern = unsafe { CStr::from_ptr(one.pattern) };
                Ok(TensorOverride::new(pattern.to_str()?, place_of(one.buft, &fit.devices)?))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Split::layers(layers).tensor_split(fit.tensor_split).overrides(overrides))
    }
}
