//! Our parameters in llama.cpp's own structs, for the probe and for the load alike: what is probed is what is loaded.

use llama_sys::{Backend, Device, DeviceKind, LoadMode};

use super::backend::Family;
use super::{ContextParams, FlashAttention, KvType, Place, Pooling, Split, TensorOverride};

impl ContextParams {
    /// The context parameters that llama.cpp takes. Threads are left to the caller: they cost no memory.
    pub(crate) fn to_native(&self) -> llama_sys::ContextParams {
        llama_sys::ContextParams {
            n_ctx: self.n_ctx,
            n_batch: self.n_batch,
            n_ubatch: self.n_ubatch,
            n_seq_max: self.n_seq_max,
            n_outputs_max: self.n_outputs_max,
            flash_attention: match self.flash_attn {
                FlashAttention::Auto => llama_sys::FlashAttention::Auto,
                FlashAttention::On => llama_sys::FlashAttention::Enabled,
                FlashAttention::Off => llama_sys::FlashAttention::Disabled,
            },
            type_k: self.type_k.to_native(),
            type_v: self.type_v.to_native(),
            offload_kqv: self.offload_kqv,
            op_offload: self.op_offload,
            swa_full: self.swa_full,
            kv_unified: self.kv_unified,
            embeddings: self.embeddings.is_some(),
            pooling: self.embeddings.unwrap_or_default().to_native(),
            mtp: if self.mtp {
                llama_sys::Mtp::Trunk
            } else {
                llama_sys::Mtp::Off
            },
            n_rs_seq: self.n_rs_seq,
            ..llama_sys::ContextParams::default()
        }
    }

    /// Those of the second context, which predicts further tokens: it is given as much of a text as one graph takes, and drafts a token of
    /// each sequence at a time.
    pub(crate) fn heads_to_native(&self) -> llama_sys::ContextParams {
        let n_batch = match self.n_ubatch {
            0 => self.n_batch,
            n_ubatch => self.n_batch.min(n_ubatch),
        };
        llama_sys::ContextParams {
            n_batch,
            n_outputs_max: self.n_seq_max,
            mtp: llama_sys::Mtp::Heads,
            n_rs_seq: 0,
            ..self.to_native()
        }
    }

    /// How the file is read for GPUs of these backends.
    ///
    /// Metal maps a GPU's weights by the span of the file from the first to the last of them, those of the host in between
    /// included (llama-model.cpp:1865), which no probe sees: there the file is read instead, so that what was planned is what is
    /// taken.
    pub(crate) fn load_mode<'a>(&self, mut backends: impl Iterator<Item = &'a str>) -> LoadMode {
        if self.mmap && !backends.any(|backend| Family::of(backend) == Family::Metal) {
            LoadMode::Auto
        } else {
            LoadMode::None
        }
    }
}

impl Split {
    /// The overrides that llama.cpp takes. A place on the host is the CPU's memory, where weights may be repacked.
    pub(crate) fn to_native(
        &self,
        devices: &[Device],
    ) -> Result<Vec<llama_sys::TensorOverride>, llama_sys::Error> {
        if self.overrides.is_empty() {
            return Ok(Vec::new());
        }
        let all = Backend::init()?.devices();
        let cpu = all.iter().find(|device| device.kind() == DeviceKind::Cpu);
        let device = |place| match place {
            Place::Host => cpu,
            Place::Gpu(gpu) => devices.get(gpu),
        };
        let native = |rule: &TensorOverride| {
            let device = device(rule.place).ok_or_else(|| llama_sys::Error::InvalidParameter {
                name: "tensor_buft_overrides",
                value: format!("{} on {:?}", rule.pattern, rule.place),
                reason: format!("there are {} GPUs", devices.len()),
            })?;
            Ok(llama_sys::TensorOverride {
                pattern: rule.pattern.clone(),
                device: device.clone(),
            })
        };
        self.overrides.iter().map(native).collect()
    }
}

impl Pooling {
    const fn to_native(self) -> llama_sys::Pooling {
        match self {
            Self::Model => llama_sys::Pooling::Unspecified,
            Self::None => llama_sys::Pooling::None,
            Self::Mean => llama_sys::Pooling::Mean,
            Self::Cls => llama_sys::Pooling::Cls,
            Self::Last => llama_sys::Pooling::Last,
            Self::Rank => llama_sys::Pooling::Rank,
        }
    }

    /// What a context says that it does.
    pub(crate) const fn of_native(native: llama_sys::Pooling) -> Self {
        match native {
            llama_sys::Pooling::Mean => Self::Mean,
            llama_sys::Pooling::Cls => Self::Cls,
            llama_sys::Pooling::Last => Self::Last,
            llama_sys::Pooling::Rank => Self::Rank,
            _ => Self::None,
        }
    }
}

impl KvType {
    const fn to_native(self) -> llama_sys::KvType {
        match self {
            Self::F32 => llama_sys::KvType::F32,
            Self::F16 => llama_sys::KvType::F16,
            Self::BF16 => llama_sys::KvType::BF16,
            Self::Q8_0 => llama_sys::KvType::Q8_0,
            Self::Q5_0 => llama_sys::KvType::Q5_0,
            Self::Q5_1 => llama_sys::KvType::Q5_1,
            Self::Q4_0 => llama_sys::KvType::Q4_0,
            Self::Q4_1 => llama_sys::KvType::Q4_1,
            Self::IQ4_NL => llama_sys::KvType::IQ4_NL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_types_keep_their_names_on_the_way_to_llama_cpp() {
        for kv in KvType::ALL {
            assert_eq!(
                kv.to_string().to_lowercase(),
                kv.to_native().to_string().to_lowercase()
            );
        }
    }
}
