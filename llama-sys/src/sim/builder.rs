//! The settings of a simulated card that is yet to be registered.

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::Arc;

use super::card::{Card, Settings};
use super::rules::Rules;
use super::shared::Shared;
use super::{SimGpu, registry, slot};
use crate::safe::call::Error;

/// A simulated GPU that is not registered yet; [`SimGpu::builder`] makes it.
#[derive(Debug, Clone)]
#[must_use = "a card exists once it is registered"]
pub struct SimGpuBuilder {
    name: String,
    backend: String,
    pci_id: Option<String>,
    total: u64,
    taken: u64,
    rules: Rules,
    asynchronous: bool,
    flash_attention: bool,
    growth: u64,
    shared: Option<PathBuf>,
}

impl SimGpuBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            backend: "SIM".into(),
            pci_id: None,
            total: 8 << 30,
            taken: 0,
            rules: Rules::Plain,
            asynchronous: false,
            flash_attention: true,
            growth: 0,
            shared: None,
        }
    }

    /// The card's memory, in bytes. 8 GiB by default.
    pub fn total(mut self, bytes: u64) -> Self {
        self.total = bytes;
        self
    }

    /// Bytes that count as taken by other processes. [`SimGpu::set_taken`] changes them later.
    pub fn taken(mut self, bytes: u64) -> Self {
        self.taken = bytes;
        self
    }

    /// The layout of tensors. [`Rules::Plain`] by default.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Makes the card report asynchronous computation and events, as CUDA does. In fact nothing is computed in the
    /// background. With several such cards, llama.cpp keeps up to four copies of a graph (llama-context.cpp, the
    /// constructor). Off by default.
    pub fn asynchronous(mut self, asynchronous: bool) -> Self {
        self.asynchronous = asynchronous;
        self
    }

    /// Whether the card supports fused attention. It does by default.
    pub fn flash_attention(mut self, flash_attention: bool) -> Self {
        self.flash_attention = flash_attention;
        self
    }

    /// The PCI address that the card reports, such as `0000:01:00.0`. There is none by default. When llama.cpp chooses
    /// the devices itself, it treats two GPUs with the same address as one GPU.
    pub fn pci_id(mut self, pci_id: impl Into<String>) -> Self {
        self.pci_id = Some(pci_id.into());
        self
    }

    /// The name that [`Device::backend`](crate::Device::backend) returns, for tests of code that depends on this name.
    /// `SIM` by default.
    pub fn backend(mut self, name: impl Into<String>) -> Self {
        self.backend = name.into();
        self
    }

    /// Bytes that the first computation takes in addition to all buffers. They are never freed, like the memory pools
    /// of a driver (ggml-cuda.cu, `ggml_cuda_pool`). A computation fails if they do not fit. 0 by default.
    pub fn growth(mut self, bytes: u64) -> Self {
        self.growth = bytes;
        self
    }

    /// Shares the card's memory with all cards, in this process and in others, that are registered with the same file.
    /// The file is created if it does not exist. When a process has ended or was killed, the next query counts its
    /// memory as free.
    ///
    /// All of these cards should have the same [total](Self::total). Up to 64 cards share a file. Each card also has a
    /// smaller file in the same folder, with this file's name and a number. Delete these files together with this file.
    pub fn shared(mut self, file: impl Into<PathBuf>) -> Self {
        self.shared = Some(file.into());
        self
    }

    /// Registers the card with ggml.
    ///
    /// Waits until no other thread loads a model, makes a context or lists devices, because these calls read ggml's
    /// registry, and it must not change meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if [`MAX_CARDS`](super::MAX_CARDS) cards are registered or still have memory
    /// allocated, for an alignment that is not a power of two or is above 4096, for a text with a NUL byte, for a
    /// backend called `RPC`, and inside the progress callback of a load. Also for a [shared](Self::shared) file that
    /// cannot be written or locked, or that 64 cards already share. Further, the errors of
    /// [`Backend::init`](crate::Backend::init).
    pub fn register(self) -> Result<SimGpu, Error> {
        self.rules.check()?;
        // llama.cpp sorts devices of a backend with this name to the front, and treats their names as endpoints
        // (src/llama.cpp, `llama_prepare_model_devices`).
        if self.backend == "RPC" {
            return Err(Error::parameter("backend", "RPC", "llama.cpp uses this name for rpc-servers"));
        }
        let settings = Settings {
            description: text("name", self.name)?,
            backend: text("backend", self.backend)?,
            pci_id: self.pci_id.map(|id| text("pci_id", id)).transpose()?,
            total: self.total,
            rules: self.rules,
            asynchronous: self.asynchronous,
            flash_attention: self.flash_attention,
            offload_from: offload_from(),
            growth: self.growth,
        };
        let shared = self.shared.map(|file| {
            Shared::join(&file)
                .map_err(|error| Error::parameter("shared", file.display().to_string(), error.to_string()))
        });
        let card = Arc::new(Card::new(settings, shared.transpose()?));
        card.taken.set(self.taken);
        let slot = registry::register(&card)?;
        Ok(SimGpu { slot, card })
    }
}

fn text(parameter: &'static str, text: String) -> Result<&'static CStr, Error> {
    CString::new(text)
        .map(slot::intern)
        .map_err(|e| Error::parameter(parameter, format!("{e}"), "a text must not contain a NUL byte"))
}

/// A GPU computes with weights on the host if there are at least this many tokens (ggml-cuda.cu,
/// `ggml_backend_cuda_reg`). It is the same in Vulkan and Metal.
fn offload_from() -> i64 {
    std::env::var("GGML_OP_OFFLOAD_MIN_BATCH").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(32)
}
