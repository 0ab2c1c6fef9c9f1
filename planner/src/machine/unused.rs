//! GPUs that are there and cannot be used, each with its reason: a card that is left out in silence looks
//! like a broken one.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::gpu::Gpu;

/// A GPU that is in this machine but cannot be planned for, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnusedGpu {
    /// The card as far as it is known.
    pub gpu: Gpu,
    /// Why nothing can be placed on it.
    pub reason: UnusedReason,
}

/// Why a GPU that is there cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnusedReason {
    /// No backend of this build can drive it: an NVIDIA card and neither CUDA nor Vulkan built in, for instance.
    NoBackend,
    /// `CUDA_VISIBLE_DEVICES` hides it.
    Hidden,
    /// A backend that could drive it is there but does not list it: the driver is too old for the CUDA it was built
    /// with, or the card is.
    NotListed {
        /// The backend that does not list it.
        backend: String,
    },
    /// It is the same hardware as a device already in use through another backend. llama.cpp makes the same choice
    /// (src/llama.cpp, `llama_prepare_model_devices`).
    SameAs {
        /// The ggml name of the device in use.
        device: String,
    },
    /// Its backend says that it has 0 bytes: ggml's CUDA backend answers so when the query fails.
    NoMemory,
    /// Neither its backend nor the driver says how much memory it has.
    UnknownMemory,
    /// It is a slice of a card in MIG mode, and CUDA gives a process one slice: another one.
    OtherSlice,
    /// It is in MIG mode and not divided into slices, so that CUDA has nothing to list.
    NoSlice,
}

impl fmt::Display for UnusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoBackend => "this build has no backend for it",
            Self::Hidden => "CUDA_VISIBLE_DEVICES hides it",
            Self::NotListed { backend } => {
                return write!(f, "the {backend} backend of this build does not list it");
            }
            Self::SameAs { device } => return write!(f, "the same hardware is in use as {device}"),
            Self::NoMemory => "its backend says that it has no memory",
            Self::UnknownMemory => "nothing says how much memory it has",
            Self::OtherSlice => "CUDA gives a process one MIG slice, another one",
            Self::NoSlice => "it is in MIG mode and has no slices",
        })
    }
}

impl fmt::Display for UnusedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.gpu.name)?;
        if let Some(device) = &self.gpu.device {
            write!(f, " ({device})")?;
        }
        write!(f, " is not used: {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::{UnusedGpu, UnusedReason};
    use crate::machine::Gpu;

    #[test]
    fn it_prints_the_card_and_the_reason() {
        let gpu = Gpu::new("NVIDIA GeForce RTX 4090").device("CUDA0");
        let reason = UnusedReason::NoBackend;
        let text = UnusedGpu { gpu, reason }.to_string();
        assert_eq!(
            text,
            "RTX 4090 (CUDA0) is not used: this build has no backend for it"
        );
    }
}
