//! The parameters of a load, and checks for values with which llama.cpp would end the process.

use std::ffi::CString;
use std::ptr;

use crate::raw;
use crate::safe::call::Error;
use crate::safe::device::{Backend, Device};

/// The parameters of a load. The fields are those of `llama_model_params`.
pub struct ModelParams {
    /// How many layers are offloaded, counted backwards from the output layer. 0 offloads no layer, 1 only the output
    /// layer, and the number of blocks + 1 all layers. A negative number means all layers.
    pub n_gpu_layers: i32,
    /// Devices to offload to, in this order. `None` means every GPU that ggml found, but integrated GPUs only if this
    /// machine has no other GPUs. An empty list means no GPU, and no GPU is opened at all.
    pub devices: Option<Vec<Device>>,
    /// The proportion of layers for each device. If the list is empty, free memory decides.
    pub tensor_split: Vec<f32>,
    /// Patterns for tensors that lie elsewhere than their layer. The first pattern that matches a tensor decides.
    pub overrides: Vec<TensorOverride>,
    /// How the file is read.
    pub load_mode: LoadMode,
    /// Reads only the metadata and simulates every allocation; such a model cannot compute. Needs [`LoadMode::None`].
    pub no_alloc: bool,
    /// Reads the vocabulary and no tensor; such a model cannot have a context.
    pub vocab_only: bool,
    /// Also loads the blocks that predict further tokens (MTP), if the file has any.
    pub load_mtp: bool,
    /// Allows buffer types that repack weights for the CPU.
    pub use_extra_bufts: bool,
    /// This function is called with the progress, from 0.0 to 1.0. If it returns `false`, the load is cancelled.
    pub progress: Option<Box<dyn FnMut(f32) -> bool + Send>>,
}

impl Default for ModelParams {
    fn default() -> Self {
        Self {
            n_gpu_layers: -1,
            devices: None,
            tensor_split: Vec::new(),
            overrides: Vec::new(),
            load_mode: LoadMode::Auto,
            no_alloc: false,
            vocab_only: false,
            load_mtp: false,
            use_extra_bufts: true,
            progress: None,
        }
    }
}

/// How a model file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadMode {
    /// Memory-mapped if every device allows it.
    #[default]
    Auto,
    /// Read into allocated buffers.
    None,
}

/// Puts tensors into the memory of one device. A regular expression over names chooses the tensors.
#[derive(Debug, Clone)]
pub struct TensorOverride {
    /// A regular expression in C++'s ECMAScript syntax, such as `blk\.(1[0-9])\.ffn_.*_exps`.
    pub pattern: String,
    /// The tensors lie in this device's default buffer type. A CPU device stands for host memory, where weights are
    /// repacked if the CPU then computes faster.
    pub device: Device,
}

impl ModelParams {
    /// Refuses parameters with which llama.cpp would end the process.
    pub(super) fn check(&self, backend: Backend) -> Result<(), Error> {
        // ggml-backend.cpp: a scheduler has at most GGML_SCHED_MAX_BACKENDS = 16 backends, including the CPU and
        // accelerators.
        const MAX_BACKENDS: usize = 16;
        let all = backend.devices();
        let helpers = all.iter().filter(|device| !device.is_gpu()).count().max(1);
        let used = self.devices.as_ref().map_or_else(|| all.len() - helpers.min(all.len()), Vec::len);
        if used + helpers > MAX_BACKENDS {
            return Err(Error::parameter(
                "devices",
                format!("{used} devices"),
                format!("llama.cpp computes with at most {} besides the CPU", MAX_BACKENDS - helpers),
            ));
        }
        if let Some(devices) = &self.devices {
            if let Some(device) = devices.iter().find(|device| !device.is_gpu()) {
                return Err(Error::parameter("devices", device.name(), "only a GPU can take layers"));
            }
            let is_twice = |(index, device): &(usize, &Device)| devices[..*index].contains(device);
            if let Some((index, device)) = devices.iter().enumerate().find(is_twice) {
                return Err(Error::parameter(
                    "devices",
                    device.name(),
                    format!("the list has this device twice, again at index {index}"),
                ));
            }
        }
        // SAFETY: a constant.
        let max_devices = unsafe { raw::llama_max_devices() };
        if self.tensor_split.len() > max_devices {
            return Err(Error::parameter(
                "tensor_split",
                format!("{} numbers", self.tensor_split.len()),
                format!("there must be at most {max_devices}"),
            ));
        }
        if let Some(bad) = self.tensor_split.iter().find(|part| !part.is_finite() || **part < 0.0) {
            return Err(Error::parameter("tensor_split", bad, "a proportion must be finite and not negative"));
        }
        // `load_tensors` in llama-model.cpp asserts that a no_alloc load maps nothing.
        if self.no_alloc && self.load_mode == LoadMode::Auto {
            return Err(Error::parameter("load_mode", "Auto", "a load with no_alloc needs LoadMode::None"));
        }
        Ok(())
    }
}

/// The memory that the raw parameters point to.
pub(super) struct Storage {
    devices: Option<Vec<raw::ggml_backend_dev_t>>,
    tensor_split: Vec<f32>,
    _patterns: Vec<CString>,
    overrides: Vec<raw::llama_model_tensor_buft_override>,
}

impl Storage {
    pub(super) fn new(params: &ModelParams) -> Result<Self, Error> {
        // A list must end with NULL. llama.cpp copies `llama_max_devices` proportions, whatever the length of our list
        // (llama-model.cpp, the constructor).
        let devices =
            params.devices.as_ref().map(|list| list.iter().map(Device::as_ptr).chain([ptr::null_mut()]).collect());
        let mut tensor_split = params.tensor_split.clone();
        // SAFETY: a constant.
        tensor_split.resize(unsafe { raw::llama_max_devices() }, 0.0);
        let patterns = params
            .overrides
            .iter()
            .map(|rule| {
                CString::new(rule.pattern.as_str()).map_err(|_| {
                    Error::parameter("tensor_buft_overrides", &rule.pattern, "a pattern must not contain a NUL byte")
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut overrides = Vec::with_capacity(patterns.len() + 1);
        for (pattern, rule) in patterns.iter().zip(&params.overrides) {
            let buft = rule.device.buffer_type(false)?;
            overrides.push(raw::llama_model_tensor_buft_override { pattern: pattern.as_ptr(), buft });
        }
        overrides.push(raw::llama_model_tensor_buft_override { pattern: ptr::null(), buft: ptr::null_mut() });
        Ok(Self { devices, tensor_split, _patterns: patterns, overrides })
    }

    /// llama.cpp's own struct, which points into this storage; the caller sets the progress callback.
    pub(super) fn native(&self, params: &ModelParams) -> raw::llama_model_params {
        // SAFETY: returns a plain struct.
        let mut native = unsafe { raw::llama_model_default_params() };
        native.n_gpu_layers = params.n_gpu_layers;
        native.devices = self.devices.as_ref().map_or(ptr::null_mut(), |list| list.as_ptr().cast_mut());
        native.tensor_buft_overrides = if params.overrides.is_empty() { ptr::null() } else { self.overrides.as_ptr() };
        native.split_mode = raw::LLAMA_SPLIT_MODE_LAYER;
        native.tensor_split = if params.tensor_split.is_empty() { ptr::null() } else { self.tensor_split.as_ptr() };
        native.load_mode = match params.load_mode {
            LoadMode::Auto => raw::LLAMA_LOAD_MODE_AUTO,
            LoadMode::None => raw::LLAMA_LOAD_MODE_NONE,
        };
        native.no_alloc = params.no_alloc;
        native.vocab_only = params.vocab_only;
        native.load_mtp = params.load_mtp;
        native.use_extra_bufts = params.use_extra_bufts;
        native
    }
}
