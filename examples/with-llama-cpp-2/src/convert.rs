//! Between autoplace and llama-cpp-2: its devices flow in as a [`Machine`], and a [`Plan`] flows out as its parameters.
//!
//! Copy this file into your program. It needs `autoplace-planner`, `llama-cpp-2`, `llama-cpp-sys-2` and
//! `thiserror`, and no `unsafe`.
//!
//! A plan is a promise about bytes, so it is carried out whole or not at all: what llama-cpp-2 0.1.160 has no setter
//! for is an [`Error`] that says what to ask of the planner instead.
//!
//! | of the plan | in llama-cpp-2 |
//! |---|---|
//! | `n_gpu_layers` | `with_n_gpu_layers` |
//! | `placements` | `with_devices`; none for a plan without GPUs |
//! | `tensor_split` | no setter: one GPU at a time, which [`plan()`] sees to |
//! | `overrides` | `add_cpu_buft_override`; none to a GPU |
//! | `context.mmap` | `with_use_mmap` |
//! | `context.repack` | no setter: `use_extra_bufts` stays on |
//! | `context.n_outputs_max` | no setter: 0, all of a batch, which [`request`] asks for |
//! | the rest of `context` | the setter of its name |

use std::cmp::Ordering;
use std::ffi::CString;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::pin::Pin;

use autoplace_planner::machine::{Detector, GgmlDevice, GgmlKind, Gpu, Machine};
use autoplace_planner::memory::{self, FlashAttention, KvType, Place, TensorOverride};
use autoplace_planner::plan::{self, Placement, Plan, Planner, Policy, Request};
use autoplace_planner::profile::ModelProfile;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::{LlamaBackendDevice, LlamaBackendDeviceType, LlamaCppError};

/// Why llama-cpp-2 cannot carry out a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan counts on something that llama-cpp-2 has no setter for.
    #[error("llama-cpp-2 has no setter for {parameter} = {value}: {instead}")]
    NoSetter {
        /// llama.cpp's name of it.
        parameter: &'static str,
        /// What the plan says.
        value: String,
        /// What can be asked of the planner instead.
        instead: &'static str,
    },
    /// A GPU of the plan is none of llama-cpp-2's devices.
    #[error("the plan is for {gpu} ({backend}), but llama-cpp-2 has {}", list(present))]
    NoDevice {
        /// The GPU.
        gpu: String,
        /// The ggml backend that was to drive it.
        backend: String,
        /// The devices that there are.
        present: Vec<String>,
    },
    /// A GPU of the plan may be any of several devices.
    #[error("the plan is for {gpu}, which could be {}: plan with `machine`, which knows their names", list(devices))]
    SeveralDevices {
        /// The GPU.
        gpu: String,
        /// The devices that it may be.
        devices: Vec<String>,
    },
    /// The plan's parameters are none that llama.cpp takes: it was not made by the planner.
    #[error(transparent)]
    Context(#[from] memory::Error),
    /// llama-cpp-2 refused the devices.
    #[error("llama-cpp-2 does not take the plan's devices: {0}")]
    Devices(#[from] LlamaCppError),
}

/// This computer as llama-cpp-2 sees it (`list_llama_ggml_backend_devices`), checked against NVIDIA's driver.
///
/// Better than `Machine::detect`, which has NVIDIA's driver alone: here are the GPUs of every backend that llama-cpp-2
/// was built with, under the names by which [`model_params`] finds them again.
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

/// The default request, as far as llama-cpp-2 can carry it out.
///
/// llama-cpp-2 leaves `n_outputs_max` at 0: llama.cpp then makes room for the logits of every token of a batch, and not
/// of one. With a vocabulary of 128k that is 256 MiB for a `n_ubatch` of 512 on the device of the output layer, and on
/// the host as much again for 512 tokens of `n_batch`. So `n_batch` is 512 here instead of 2048; a smaller `n_ubatch`
/// gives a card more of it back.
#[must_use]
pub fn request() -> Request {
    Request::new().n_outputs_max(0).n_batch(512)
}

/// The best plan on one GPU: llama-cpp-2 has no setter for how several share the layers, and llama.cpp would share
/// them out by the bytes that are free at that moment, which is no plan.
///
/// # Errors
///
/// As [`Planner::plan`]; where it fits no GPU nor the host, the error is that of the first GPU.
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

/// By predicted speed, where that is what is asked for and both have one; else by layers.
fn compare(policy: Policy, one: &Plan, other: &Plan) -> Ordering {
    let layers = one.n_gpu_layers.cmp(&other.n_gpu_layers);
    match (policy, &one.speed, &other.speed) {
        (Policy::Fastest, Some(one), Some(other)) => {
            one.tokens_per_second.total_cmp(&other.tokens_per_second).then(layers)
        }
        _ => layers,
    }
}

/// The parameters of a load, with what they point to: use it wherever a `&LlamaModelParams` is wanted.
#[derive(Debug)]
pub struct ModelParams {
    params: Pin<Box<LlamaModelParams>>,
    /// llama-cpp-2 keeps the addresses of the patterns alone.
    _patterns: Vec<CString>,
}

impl Deref for ModelParams {
    type Target = LlamaModelParams;

    fn deref(&self) -> &LlamaModelParams {
        &self.params
    }
}

/// The parameters of the load that the plan describes. `devices` are those of `list_llama_ggml_backend_devices`.
///
/// # Errors
///
/// [`Error::NoSetter`] for a plan on several GPUs, without repacking, or with weights moved to a GPU;
/// [`Error::NoDevice`] and [`Error::SeveralDevices`] where its GPU cannot be identified among the devices.
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
        // An empty list is no device at all; without a list llama.cpp takes them all, and a model on the host still
        // costs each GPU a context and buffers.
        .with_devices(&used)?;
    // The default maps the file where every device can. `with_use_mmap(true)` would map it anyhow. Metal maps more of a
    // file than the weights of the GPU (llama-model.cpp, `load_tensors`), which no plan counts.
    if !plan.context.mmap || gpus.iter().any(|gpu| gpu.backend == "MTL") {
        params = params.with_use_mmap(false);
    }
    let mut params = Box::pin(params);
    for pattern in &patterns {
        params.as_mut().add_cpu_buft_override(pattern);
    }
    Ok(ModelParams { params, _patterns: patterns })
}

/// The parameters of the context that the plan describes. Threads are left to the caller: they cost no memory.
///
/// # Errors
///
/// [`Error::NoSetter`] for a plan with fewer outputs than a batch has tokens, or that scales positions;
/// [`Error::Context`] for one that llama.cpp would not take.
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

/// The index of the device that is this GPU.
fn find(gpu: &Placement, devices: &[LlamaBackendDevice]) -> Result<usize, Error> {
    let is_gpu = |device: &LlamaBackendDevice| {
        use LlamaBackendDeviceType::{Gpu, IntegratedGpu};
        matches!(device.device_type, Gpu | IntegratedGpu)
    };
    let is_it = |device: &&LlamaBackendDevice| match &gpu.device {
        Some(name) => device.name == *name,
        // A plan for a card that no ggml has seen: by `Machine::detect`, or by its name.
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

/// The pattern of weights that go to the CPU, as llama-cpp-2 takes it: it panics over what is not ASCII.
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
