//! Translates our parameters into llama.cpp's structs, and llama.cpp's counts into our types. It is for tests that call
//! llama.cpp directly. The library has a translation of its own, which these tests check.
use autoplace::llama_sys::{self, Backend, Device, DeviceKind, MemoryBreakdown};
use autoplace::memory::{ContextParams, FlashAttention, Footprint, Footprints, KvType, Place, Pooling, TensorOverride};

/// The parameters for a context with one thread.
pub(crate) fn context(params: &ContextParams) -> llama_sys::ContextParams {
    llama_sys::ContextParams {
        n_ctx: params.n_ctx,
        n_batch: params.n_batch,
        n_ubatch: params.n_ubatch,
        n_seq_max: params.n_seq_max,
        n_outputs_max: params.n_outputs_max,
        n_threads: Some(1),
        n_threads_batch: Some(1),
        flash_attention: match params.flash_attn {
            FlashAttention::Off => llama_sys::FlashAttention::Disabled,
            FlashAttention::On => llama_sys::FlashAttention::Enabled,
            _ => llama_sys::FlashAttention::Auto,
        },
        type_k: kv_type(params.type_k),
        type_v: kv_type(params.type_v),
        offload_kqv: params.offload_kqv,
        op_offload: params.op_offload,
        swa_full: params.swa_full,
        kv_unified: params.kv_unified,
        embeddings: params.embeddings.is_some(),
        pooling: pooling(params.embeddings),
        mtp: if params.mtp { llama_sys::Mtp::Trunk } else { llama_sys::Mtp::Off },
        n_rs_seq: params.n_rs_seq,
        moe_cache_size: params.moe_cache_size,
        rope: llama_sys::Rope::default(),
        rows: false,
    }
}

/// The parameters for the second context, which predicts further tokens.
pub(crate) fn heads(params: &ContextParams) -> llama_sys::ContextParams {
    llama_sys::ContextParams {
        n_batch: params.n_batch.min(params.n_ubatch),
        n_outputs_max: params.n_seq_max,
        mtp: llama_sys::Mtp::Heads,
        n_rs_seq: 0,
        moe_cache_size: 0,
        ..context(params)
    }
}

fn pooling(pooling: Option<Pooling>) -> llama_sys::Pooling {
    match pooling {
        None | Some(Pooling::Model) => llama_sys::Pooling::Unspecified,
        Some(Pooling::None) => llama_sys::Pooling::None,
        Some(Pooling::Mean) => llama_sys::Pooling::Mean,
        Some(Pooling::Cls) => llama_sys::Pooling::Cls,
        Some(Pooling::Last) => llama_sys::Pooling::Last,
        Some(Pooling::Rank) => llama_sys::Pooling::Rank,
    }
}

/// Finds the type that has this name in ggml.
fn kv_type(ty: KvType) -> llama_sys::KvType {
    ty.to_string().parse().unwrap()
}

/// The overrides of a model's tensors, for these devices.
pub(crate) fn overrides(rules: &[TensorOverride], devices: &[Device]) -> Vec<llama_sys::TensorOverride> {
    let all = Backend::init().unwrap().devices();
    let cpu = all.iter().find(|device| device.kind() == DeviceKind::Cpu);
    let native = |rule: &TensorOverride| {
        let device = match rule.place {
            Place::Host => cpu.unwrap(),
            Place::Gpu(gpu) => &devices[gpu],
        };
        llama_sys::TensorOverride { pattern: rule.pattern.clone(), device: device.clone() }
    };
    rules.iter().map(native).collect()
}

/// The memory that llama.cpp counts on each of these devices, and on the host.
pub(crate) fn footprints(breakdown: &MemoryBreakdown, devices: &[Device]) -> Footprints {
    let sum = |rows: &mut dyn Iterator<Item = &llama_sys::BufferUse>| {
        rows.fold(Footprint::default(), |mut sum, row| {
            sum += Footprint::new(row.model + row.transforms, row.context, row.compute).with_experts(row.experts);
            sum
        })
    };
    let gpus = devices.iter().map(|device| sum(&mut breakdown.on(device)));
    Footprints::new(gpus.collect(), sum(&mut breakdown.on_host()))
}
