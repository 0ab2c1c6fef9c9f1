//! Translates our parameters into llama.cpp's structs. The probe and the load share this code, so that the probe counts
//! exactly the bytes of the load.

use llama_sys::{Backend, Device, DeviceKind, LoadMode, Model, ModelParams};

use super::Error;
use crate::gguf::{Header, Tensor};
use crate::memory::backend::Family;
use crate::memory::{
    ContextParams, FileFacts, FlashAttention, KvType, NotMapped, Place, Pooling, Rope, RopeScaling, Split,
    TensorOverride,
};
use crate::plan;

/// The context parameters for llama.cpp. The caller sets the threads, which cost no memory.
pub(crate) fn context(params: &ContextParams) -> llama_sys::ContextParams {
    llama_sys::ContextParams {
        n_ctx: params.n_ctx,
        n_batch: params.n_batch,
        n_ubatch: params.n_ubatch,
        n_seq_max: params.n_seq_max,
        n_outputs_max: params.n_outputs_max,
        flash_attention: match params.flash_attn {
            FlashAttention::Auto => llama_sys::FlashAttention::Auto,
            FlashAttention::On => llama_sys::FlashAttention::Enabled,
            FlashAttention::Off => llama_sys::FlashAttention::Disabled,
        },
        type_k: kv_type(params.type_k),
        type_v: kv_type(params.type_v),
        offload_kqv: params.offload_kqv,
        op_offload: params.op_offload,
        swa_full: params.swa_full,
        kv_unified: params.kv_unified,
        embeddings: params.embeddings.is_some(),
        pooling: pooling(params.embeddings.unwrap_or_default()),
        mtp: if params.mtp { llama_sys::Mtp::Trunk } else { llama_sys::Mtp::Off },
        n_rs_seq: params.n_rs_seq,
        moe_cache_size: params.moe_cache_size,
        rope: rope(&params.rope),
        ..llama_sys::ContextParams::default()
    }
}

/// The parameters of the second context for multi-token prediction. This context computes up to one graph of a text's
/// tokens at once, and then drafts one token of each sequence at a time.
pub(crate) fn heads(params: &ContextParams) -> llama_sys::ContextParams {
    let n_batch = match params.n_ubatch {
        0 => params.n_batch,
        n_ubatch => params.n_batch.min(n_ubatch),
    };
    llama_sys::ContextParams {
        n_batch,
        n_outputs_max: params.n_seq_max,
        mtp: llama_sys::Mtp::Heads,
        n_rs_seq: 0,
        // The plan has room for only one cache of experts.
        moe_cache_size: 0,
        ..context(params)
    }
}

/// Loads the model of this header. llama.cpp opens the files a second time, so the load is refused if they have
/// changed.
pub(super) fn load(header: &Header, params: ModelParams) -> Result<Model, Error> {
    header.check_unchanged()?;
    let loaded = Model::load(header.path(), params);
    header.check_unchanged()?;
    Ok(loaded?)
}

/// How the file is loaded for GPUs of these backends: mapped or read.
///
/// The plan says whether the file is mapped. A plan of an earlier version may map it on Metal or in other cases that
/// would end the process, so these cases are checked again ([`NotMapped`]).
pub(crate) fn load_mode<'a>(
    params: &ContextParams,
    header: &Header,
    mut backends: impl Iterator<Item = &'a str>,
) -> LoadMode {
    let file = FileFacts::from_header(header);
    let is_mapped = params.mmap && NotMapped::check_file(file).is_none();
    if is_mapped && !backends.any(|backend| Family::from_backend(backend) == Family::Metal) {
        LoadMode::Auto
    } else {
        LoadMode::None
    }
}

/// The tensor overrides for llama.cpp, expanded to the tensor names of this header. An override for the host names the
/// CPU's buffer type, in which weights may be repacked.
pub(crate) fn overrides(
    split: &Split,
    header: &Header,
    devices: &[Device],
) -> Result<Vec<llama_sys::TensorOverride>, Error> {
    if split.overrides.is_empty() {
        return Ok(Vec::new());
    }
    let all = Backend::init()?.devices();
    let cpu = all.iter().find(|device| device.kind() == DeviceKind::Cpu);
    let device = |place| match place {
        Place::Host => cpu,
        Place::Gpu(gpu) => devices.get(gpu),
    };
    let native = |rule: TensorOverride| {
        let device = device(rule.place).ok_or_else(|| llama_sys::Error::InvalidParameter {
            name: "tensor_buft_overrides",
            value: format!("{} on {:?}", rule.pattern, rule.place),
            reason: format!("there are {} GPUs", devices.len()),
        })?;
        Ok(llama_sys::TensorOverride { pattern: rule.pattern, device: device.clone() })
    };
    let named = split.overrides_by_name(header.tensors().map(Tensor::name));
    named.map_err(plan::Error::from)?.into_iter().map(native).collect()
}

/// Maps a variant to llama.cpp's variant of the same name.
macro_rules! same {
    ($value:expr, $ty:ident: $($name:ident),+) => {
        match $value {
            $($ty::$name => llama_sys::$ty::$name),+
        }
    };
}

fn rope(rope: &Rope) -> llama_sys::Rope {
    llama_sys::Rope {
        scaling: rope.scaling.map(|scaling| same!(scaling, RopeScaling: None, Linear, Yarn, LongRope)),
        freq_base: rope.freq_base,
        freq_scale: rope.freq_scale,
        yarn_orig_ctx: rope.yarn_orig_ctx,
        yarn_ext_factor: rope.yarn_ext_factor,
        yarn_attn_factor: rope.yarn_attn_factor,
        yarn_beta_fast: rope.yarn_beta_fast,
        yarn_beta_slow: rope.yarn_beta_slow,
    }
}

const fn pooling(pooling: Pooling) -> llama_sys::Pooling {
    match pooling {
        Pooling::Model => llama_sys::Pooling::Unspecified,
        Pooling::None => llama_sys::Pooling::None,
        Pooling::Mean => llama_sys::Pooling::Mean,
        Pooling::Cls => llama_sys::Pooling::Cls,
        Pooling::Last => llama_sys::Pooling::Last,
        Pooling::Rank => llama_sys::Pooling::Rank,
    }
}

/// The pooling that a context reports.
pub(crate) const fn pooling_of(native: llama_sys::Pooling) -> Pooling {
    match native {
        llama_sys::Pooling::Mean => Pooling::Mean,
        llama_sys::Pooling::Cls => Pooling::Cls,
        llama_sys::Pooling::Last => Pooling::Last,
        llama_sys::Pooling::Rank => Pooling::Rank,
        _ => Pooling::None,
    }
}

const fn kv_type(ty: KvType) -> llama_sys::KvType {
    same!(ty, KvType: F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0, Q4_1, IQ4_NL)
}
