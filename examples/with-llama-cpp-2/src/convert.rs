//! Converts between autoplace and llama-cpp-2: devices to a [`Machine`], and a [`Plan`] to parameters.
//!
//! Copy this file into your program. The file needs `autoplace-planner`, `llama-cpp-2`, `llama-cpp-sys-2` and
//! `thiserror`, and no `unsafe`.
//!
//! A plan states exact numbers of bytes, so it is applied completely or not at all. If llama-cpp-2 0.1.160 has no
//! setter for a parameter, the result is an [`Error`]. The error names a request that avoids the parameter.
//!
//! | in the plan | in llama-cpp-2 |
//! |---|---|
//! | `n_gpu_layers` | `with_n_gpu_layers` |
//! | `placements` | `with_devices`; none for a plan without GPUs |
//! | `tensor_split` | no setter: one GPU at a time, as [`plan()`] ensures |
//! | `overrides` | `add_cpu_buft_override`; none to a GPU |
//! | `context.mmap` | `with_use_mmap` |
//! | `context.repack` | no setter: `use_extra_bufts` stays on |
//! | `context.moe_cache_size` | no setter: 0, as [`request`] sets |
//! | `context.n_outputs_max` | no setter: 0, for all tokens of a batch, as [`request`] sets |
//! | the rest of `context` | the setter with the same name |

use std::cmp::Ordering;
use std::ffi::CString;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::pin::Pin;

use autoplace_planner::machine::{Detector, GgmlDevice, GgmlKind, Gpu, Machine};
use autoplace_planner::memory::{self, FlashAttention, KvType, Place, TensorOverride};
use autoplace_planner::plan::{self, MoeCache, Placement, Plan, Planner, Policy, Request};
use autoplace_planner::profile::ModelProfile;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::{LlamaBackendDevice, LlamaBackendDeviceType, LlamaCppError};

/// The reason why llama-cpp-2 cannot apply a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan needs a parameter for which llama-cpp-2 has no setter.
    #[error("llama-cpp-2 has no setter for {parameter} = {value}: {instead}")]
    NoSetter {
        /// llama.cpp's name of the parameter.
        parameter: &'static str,
        /// The plan's value.
        value: String,
        /// A request to the planner that avoids the parameter.
        instead: &'static str,
    },
    /// A GPU of the plan is not among llama-cpp-2's devices.
    #[error("the plan is for {gpu} ({backend}), but llama-cpp-2 has {}", list(present))]
    NoDevice {
        /// The GPU.
        gpu: String,
        /// The ggml backend of the GPU.
        backend: String,
        /// The available devices.
        present: Vec<String>,
    },
    /// A GPU of the plan matches several devices.
    #[error("the plan is for {gpu}, which could be {}: plan with `machine`, which knows their names", list(devices))]
    SeveralDevices {
        /// The GPU.
        gpu: String,
        /// The matching devices.
        devices: Vec<String>,
    },
    /// llama.cpp does not accept the plan's parameters, so the plan was not made by the planner.
    #[error(transparent)]
    Context(#[from] memory::Error),
    /// llama-cpp-2 refused the devices.
    #[error("llama-cpp-2 does not take the plan's devices: {0}")]
    Devices(#[from] LlamaCppError),
}

/// This computer, as described by llama-cpp-2's list of devices (`list_llama_ggml_backend_devices`) and by NVIDIA's
/// driver.
///
/// The machine has the GPUs of every backend in this build of llama-cpp-2, under names by which [`model_params`] finds
/// them again. `Machine::detect` finds fewer GPUs, because it uses only NVIDIA's driver.
#[must_use]
pub fn machine(devices: &[LlamaBackendDevice]) -> Machine {
    let describe = |device: &LlamaBackendDevice| {
        let kind = match device.device_type {
            LlamaBackendDeviceType::Cpu => GgmlKind::Cpu,
            LlamaBackendDeviceType::Gpu => GgmlKind::Gpu,
            LlamaBackendDeviceType::IntegratedGpu => GgmlKind::IntegratedGpu,
            LlamaBackendDeviceType::Accelerator => GgmlKind::Accelerator,
            LlamaBackendDeviceType::Unknown => GgmlKind::Meta,
        };
        GgmlDevice::new(&device.name, &device.backend, kind)
            .description(&device.description)
            .memory(device.memory_total as u64, device.memory_free as u64)
    };
    Detector::new().detect_with(&devices.iter().map(describe).collect::<Vec<_>>())
}

/// The default request, adapted to llama-cpp-2.
///
/// llama-cpp-2 leaves `n_outputs_max` at 0, so llama.cpp allocates logits for every token of a batch and not only for
/// one. With a vocabulary of 128k tokens, these logits take 256 MiB on the output layer's device if `n_ubatch` is 512,
/// and 256 MiB on the host for each 512 tokens of `n_batch`. So `n_batch` is 512 here instead of 2048. A smaller
/// `n_ubatch` leaves more memory of a card for layers. llama-cpp-2 also has no setter for a cache of experts.
#[must_use]
pub fn request() -> Request {
    Request::new().n_outputs_max(0).n_batch(512).moe_cache(MoeCache::Off)
}

/// The best plan on one GPU. llama-cpp-2 has no setter for sharing layers among several GPUs, and llama.cpp's own
/// default shares them by the free bytes at load time, which no plan can predict.
///
/// # Errors
///
/// The errors of [`Planner::plan`]. If the model fits neither on a GPU nor on the host, the error for the first GPU is
/// returned.
pub fn plan(profile: &ModelProfile, machine: &Machine, request: &Request) -> Result<Plan, plan::Error> {
    let plan_on = |machine: &Machine| Planner::new(profile, machine).request(request.clone()).plan();
    let alone = |gpu: &Gpu| {
        let mut alone = machine.clone();
        alone.gpus = vec![gpu.clone()];
        plan_on(&alone)
    };
    let better = |best: Result<Plan, _>, next: Result<Plan, _>| match (&best, &next) {
        (Ok(known), Ok(new)) if compare(request.policy, new, known).is_gt() => next,
        (Err(_), Ok(_)) => next,
        _ => best,
    };
    let plans = machine.gpus.iter().map(alone);
    let mut best = plans.reduce(better).unwrap_or_else(|| plan_on(machine))?;
    if machine.gpus.len() > 1 {
        best.notes.push(format!(
            "of {} GPUs one at most is used: llama-cpp-2 has no setter for `tensor_split`",
            machine.gpus.len()
        ));
    }
    Ok(best)
}

/// Compares by predicted speed if the policy requires it and both plans have a prediction; otherwise by layers.
fn compare(policy: Policy, one: &Plan, other: &Plan) -> Ordering {
    let layers = one.n_gpu_layers.cmp(&other.n_gpu_layers);
    match (policy, &one.speed, &other.speed) {
        (Policy::Fastest, Some(one), Some(other)) => {
            one.tokens_per_second.total_cmp(&other.tokens_per_second).then(layers)
        }
        _ => layers,
    }
}

/// The parameters of a load, with the data that they point to. Dereferences to `LlamaModelParams`.
#[derive(Debug)]
pub struct ModelParams {
    params: Pin<Box<LlamaModelParams>>,
    /// The patterns must be kept here, because llama-cpp-2 stores only their addresses.
    _patterns: Vec<CString>,
}

impl Deref for ModelParams {
    type Target = LlamaModelParams;

    fn deref(&self) -> &LlamaModelParams {
        &self.params
    }
}

/// The load parameters of a plan. `devices` is the result of `list_llama_ggml_backend_devices`.
///
/// # Errors
///
/// [`Error::NoSetter`] for a plan on several GPUs, without repacking, or with weights moved to a GPU;
/// [`Error::NoDevice`] or [`Error::SeveralDevices`] if the plan's GPU cannot be identified among the devices.
pub fn model_params(plan: &Plan, devices: &[LlamaBackendDevice]) -> Result<ModelParams, Error> {
    let gpus: Vec<&Placement> = plan.gpus().collect();
    if gpus.len() > 1 {
        return Err(Error::NoSetter {
            parameter: "tensor_split",
            value: format!("{:?}", plan.tensor_split),
            instead: "plan on one GPU, as `convert::plan` does",
        });
    }
    if !plan.context.repack {
        return Err(Error::NoSetter {
            parameter: "use_extra_bufts",
            value: "false".to_owned(),
            instead: "plan with `repack`, or build ggml with GGML_CPU_REPACK=OFF",
        });
    }
    let patterns = plan.overrides.iter().map(cpu_pattern).collect::<Result<Vec<_>, _>>()?;
    let used = gpus.iter().map(|gpu| find(gpu, devices)).collect::<Result<Vec<_>, _>>()?;
    let mut params = LlamaModelParams::default()
        .with_n_gpu_layers(plan.n_gpu_layers)
        // An empty list means no device. Without a list, llama.cpp uses all devices, and even a model on the host takes
        // a context and buffers on each GPU.
        .with_devices(&used)?;
    // The default maps the file only if every device supports it. `with_use_mmap(true)` would always map the file.
    // Metal maps more of a file than the GPU's weights (llama-model.cpp, `load_tensors`), which no plan counts.
    if !plan.context.mmap || gpus.iter().any(|gpu| gpu.backend == "MTL") {
        params = params.with_use_mmap(false);
    }
    let mut params = Box::pin(params);
    for pattern in &patterns {
        params.as_mut().add_cpu_buft_override(pattern);
    }
    Ok(ModelParams { params, _patterns: patterns })
}

/// The context parameters of a plan. The caller sets the threads, which take no memory.
///
/// # Errors
///
/// [`Error::NoSetter`] for a plan with fewer outputs than a batch has tokens, with a cache of experts, or with scaled
/// positions;
/// [`Error::Context`] for a plan that llama.cpp would not accept.
pub fn context_params(plan: &Plan) -> Result<LlamaContextParams, Error> {
    let context = &plan.context;
    context.sizes()?;
    if context.n_outputs_max != 0 {
        return Err(Error::NoSetter {
            parameter: "n_outputs_max",
            value: context.n_outputs_max.to_string(),
            instead: "plan with `n_outputs_max(0)`, room for the logits of a whole batch",
        });
    }
    if context.moe_cache_size != 0 {
        return Err(Error::NoSetter {
            parameter: "moe_cache_size",
            value: context.moe_cache_size.to_string(),
            instead: "plan with `moe_cache(MoeCache::Off)`",
        });
    }
    if context.rope != <_>::default() {
        return Err(Error::NoSetter {
            parameter: "rope_* and yarn_*",
            value: format!("{:?}", context.rope),
            instead: "leave them out of the plan, and set them on the `LlamaContextParams` that this returns",
        });
    }
    Ok(LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(context.n_ctx))
        .with_n_batch(context.n_batch)
        .with_n_ubatch(context.n_ubatch)
        .with_n_seq_max(context.n_seq_max)
        .with_type_k(kv_type(context.type_k))
        .with_type_v(kv_type(context.type_v))
        .with_flash_attention_policy(flash_attention(context.flash_attn))
        .with_offload_kqv(context.offload_kqv)
        .with_op_offload(context.op_offload)
        .with_swa_full(context.swa_full)
        .with_kv_unified(context.kv_unified))
}

/// The index of this GPU's device.
fn find(gpu: &Placement, devices: &[LlamaBackendDevice]) -> Result<usize, Error> {
    let is_gpu = |device: &LlamaBackendDevice| {
        use LlamaBackendDeviceType::{Gpu, IntegratedGpu};
        matches!(device.device_type, Gpu | IntegratedGpu)
    };
    let is_it = |device: &&LlamaBackendDevice| match &gpu.device {
        Some(name) => device.name == *name,
        // The plan has no device name of ggml, because it was made for the result of `Machine::detect` or for a card's
        // name.
        None => device.backend == gpu.backend && is_gpu(device) && Gpu::new(&device.description).name == gpu.name,
    };
    let names = |devices: Vec<&LlamaBackendDevice>| {
        let name = |device: &LlamaBackendDevice| format!("{} ({})", device.name, device.description);
        devices.into_iter().map(name).collect()
    };
    let found: Vec<&LlamaBackendDevice> = devices.iter().filter(is_it).collect();
    match found[..] {
        [device] => Ok(device.index),
        [] => Err(Error::NoDevice {
            gpu: gpu.device.as_ref().unwrap_or(&gpu.name).clone(),
            backend: gpu.backend.clone(),
            present: names(devices.iter().collect()),
        }),
        _ => Err(Error::SeveralDevices { gpu: gpu.name.clone(), devices: names(found) }),
    }
}

/// The pattern of weights for the CPU. llama-cpp-2 panics on patterns that are not ASCII.
fn cpu_pattern(rule: &TensorOverride) -> Result<CString, Error> {
    let refuse = |instead| Error::NoSetter {
        parameter: "tensor_buft_overrides",
        value: format!("`{}` to {:?}", rule.pattern, rule.place),
        instead,
    };
    if rule.place != Place::Host {
        return Err(refuse("weights can be moved to the CPU only"));
    }
    CString::new(rule.pattern.as_str())
        .ok()
        .filter(|_| rule.pattern.is_ascii())
        .ok_or_else(|| refuse("a pattern is ASCII and has no NUL"))
}

const fn kv_type(ty: KvType) -> KvCacheType {
    match ty {
        KvType::F32 => KvCacheType::F32,
        KvType::F16 => KvCacheType::F16,
        KvType::BF16 => KvCacheType::BF16,
        KvType::Q8_0 => KvCacheType::Q8_0,
        KvType::Q5_0 => KvCacheType::Q5_0,
        KvType::Q5_1 => KvCacheType::Q5_1,
        KvType::Q4_0 => KvCacheType::Q4_0,
        KvType::Q4_1 => KvCacheType::Q4_1,
        KvType::IQ4_NL => KvCacheType::IQ4_NL,
    }
}

const fn flash_attention(policy: FlashAttention) -> llama_cpp_sys_2::llama_flash_attn_type {
    match policy {
        FlashAttention::Auto => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO,
        FlashAttention::On => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    }
}

fn list(names: &[String]) -> String {
    match names {
        [] => "no device".to_owned(),
        names => names.join(", "),
    }
}
