//! Room 3: the machine. A [`Machine`] flows out: GPUs with their free bytes, and the host with the limit that applies
//! to this process.

/// A text does not parse as the expected value, for example as a PCI address or a KV cache type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is {what}")]
pub struct ParseError {
    text: String,
    what: &'static str,
}

impl ParseError {
    pub(crate) fn new(text: &str, what: &'static str) -> Self {
        Self { text: text.to_owned(), what }
    }
}

mod bandwidth;
pub mod bytes;
mod cache;
mod cards;
mod catalogue;
mod conditions;
mod detect;
mod disk;
mod expert_use;
mod file;
pub mod folder;
mod gpu;
mod gpu_process;
mod host;
mod measured;
mod merge;
mod mig;
mod moves;
pub mod nvidia;
mod pci;
mod pcie;
mod pools;
mod pressure;
mod reading;
mod throttle;
mod tree;
mod unlisted;
mod visible;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::json;

pub use bandwidth::{Bandwidth, BandwidthSource};
pub use bytes::{Bytes, gib, mib};
pub use cache::MeasurementCache;
pub use catalogue::CatalogueError;
pub(crate) use catalogue::{Generation, every_card, multiprocessors};
pub use conditions::{ConditionsWatch, FreeCoresWatch, RateConditions, looks_quiet, looks_quiet_under};
pub use detect::Detector;
pub use disk::{DiskRate, DiskRateSource};
pub use expert_use::ExpertUse;
pub use file::MachineError;
pub use gpu::{Gpu, GpuKind};
pub use gpu_process::GpuProcess;
pub use host::{CpuLimit, CpuWatch, Host, HostLimit};
pub use measured::{
    AttentionRate, LearnedHeadroom, LinkRate, MatrixShape, MeasuredRates, PromptAttentionRate, PromptRate,
    SingleConditions, UsedRate, WeightRate,
};
pub use merge::{GgmlDevice, GgmlKind};
pub use mig::MigSlice;
pub use moves::{MoveFigure, MoveRates};
pub use pci::PciId;
pub use pcie::{PcieLink, PcieRate};
pub use pools::{Pool, Pools};
pub use pressure::HostSample;
pub use reading::Reading;
pub use throttle::ThrottleReason;
pub use tree::Note;

/// The hardware to plan for: GPUs with their free bytes, and the host with the limit that applies to this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct Machine {
    /// The GPUs that can hold layers, in the order of their backends.
    pub gpus: Vec<Gpu>,
    /// The host, as far as this process may use it.
    pub host: Host,
    /// Whether this is Linux inside Windows (WSL). Under WSL, Windows' driver manages the GPU's memory, and may move
    /// memory to the host instead of refusing an allocation.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub wsl: bool,
    /// GPUs that cannot be used, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused_gpus: Vec<UnusedGpu>,
    /// Notes on sources that the detection could not read, or had to replace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// ggml's backends in the build that detected this machine (`CPU`, `CUDA`, ...). Empty if no build is known, for
    /// example for a machine from a file.
    #[serde(skip)]
    pub backends: Vec<String>,
}

json::compiled_here!(Machine);

impl Machine {
    /// A machine with this host and no GPU.
    pub const fn new(host: Host) -> Self {
        Self { gpus: Vec::new(), host, wsl: false, unused_gpus: Vec::new(), notes: Vec::new(), backends: Vec::new() }
    }

    /// The known reasons why layers have no GPU: the backends of the build, and the detected cards.
    pub(crate) fn why_no_gpu(&self) -> String {
        if self.backends.is_empty() && self.unused_gpus.is_empty() {
            return "there is no usable GPU".to_owned();
        }
        let names: Vec<&str> = self.unused_gpus.iter().map(|unused| unused.gpu.name.as_str()).collect();
        let seen = if names.is_empty() { "no card was seen".to_owned() } else { format!("seen: {}", names.join(", ")) };
        let drives: Vec<&str> =
            self.backends.iter().map(String::as_str).filter(|name| !NOT_OF_GPUS.contains(name)).collect();
        match (self.backends.is_empty(), drives.is_empty()) {
            (true, _) => format!("there is no usable GPU ({seen})"),
            (false, true) => format!(
                "this build has no GPU backend (its features `cuda`, `vulkan`, `metal` and `hip` each add one; {seen})"
            ),
            (false, false) => format!("there is no usable GPU (the build has {}; {seen})", drives.join(", ")),
        }
    }

    /// This computer, as far as it can be detected without llama.cpp: NVIDIA's cards and the host. The detection never
    /// fails; see [`notes`](Self::notes).
    ///
    /// No CUDA context is opened, so opening a card will still reduce its free bytes ([`Gpu::free_is_after_opening`]).
    pub fn detect() -> Self {
        Detector::new().detect()
    }

    /// Appends a GPU.
    #[must_use]
    pub fn with_gpu(mut self, gpu: Gpu) -> Self {
        self.gpus.push(gpu);
        self
    }
}

/// ggml's backends that drive no GPU of this machine.
const NOT_OF_GPUS: [&str; 3] = ["CPU", "BLAS", "RPC"];

impl Machine {
    /// The index of the GPU with this name: ggml's name of the device (`CUDA0`), or else the GPU's own name (`RTX
    /// 4090`), or else, for a GPU without ggml's name, the name of its backend followed by the GPU's number within that
    /// backend. The case of letters does not matter.
    ///
    /// # Errors
    ///
    /// A message that lists the GPUs, if none has this name.
    pub fn gpu_named(&self, name: &str) -> Result<usize, String> {
        let is_name = |known: &str| known.eq_ignore_ascii_case(name);
        let numbered = |index: usize| {
            let gpu = &self.gpus[index];
            let before = self.gpus[..index].iter().filter(|other| other.backend == gpu.backend).count();
            gpu.device.is_none() && is_name(&format!("{}{before}", gpu.backend))
        };
        let by_device = self.gpus.iter().position(|gpu| gpu.device.as_deref().is_some_and(is_name));
        let by_name = || self.gpus.iter().position(|gpu| is_name(&gpu.name));
        if let Some(index) = by_device.or_else(by_name).or_else(|| (0..self.gpus.len()).find(|&index| numbered(index)))
        {
            return Ok(index);
        }
        let known: Vec<&str> = self.gpus.iter().map(|gpu| gpu.device.as_deref().unwrap_or(&gpu.name)).collect();
        Err(if known.is_empty() { "there is no GPU".to_owned() } else { format!("there are {}", known.join(", ")) })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for gpu in &self.gpus {
            writeln!(f, "{gpu}")?;
        }
        write!(f, "{}", self.host)?;
        for unused in &self.unused_gpus {
            write!(f, "\n{unused}")?;
        }
        for note in &self.notes {
            write!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

/// The environment setting that selects a slice.
fn chooses(uuid: Option<&str>) -> String {
    uuid.map_or_else(String::new, |uuid| format!(": CUDA_VISIBLE_DEVICES={uuid} chooses this one"))
}

/// A GPU of this machine that plans cannot use, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{} is not used: {reason}", gpu.title())]
pub struct UnusedGpu {
    /// The card, with the properties that are known.
    pub gpu: Gpu,
    /// The reason.
    pub reason: UnusedReason,
}

/// Why a GPU cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum UnusedReason {
    /// No backend of this build can drive it: for example an NVIDIA card, with neither CUDA nor Vulkan in the build.
    #[error("this build has no backend for it")]
    NoBackend,
    /// `CUDA_VISIBLE_DEVICES` hides it.
    #[error("CUDA_VISIBLE_DEVICES hides it")]
    Hidden,
    /// CUDA does not list it, and `CUDA_VISIBLE_DEVICES` has a value that only CUDA can match to cards.
    #[error("CUDA does not list it, and CUDA_VISIBLE_DEVICES is set")]
    PerhapsHidden,
    /// A capable backend does not list it: the driver or the card is too old for the backend's CUDA version.
    #[error("the {backend} backend of this build does not list it")]
    NotListed { backend: String },
    /// It is on the PCI bus, but the library of its driver is missing or does not answer: the driver is not installed,
    /// or a container was started without its GPUs.
    #[error("its driver does not answer here ({library})")]
    NoDriver { library: String },
    /// It is the same hardware as this ggml device of another backend, which is in use. llama.cpp makes the same choice
    /// (src/llama.cpp, `llama_prepare_model_devices`).
    #[error("the same hardware is in use as {device}")]
    SameAs { device: String },
    /// Its backend reports 0 bytes: ggml's CUDA backend does so when its query fails.
    #[error("its backend says that it has no memory")]
    NoMemory,
    /// Neither the backend nor the driver reports its memory.
    #[error("nothing says how much memory it has")]
    UnknownMemory,
    /// It belongs to another machine whose rpc-server no longer answers.
    #[error("its rpc-server does not answer: {problem}")]
    NoServer { problem: String },
    /// It is in MIG mode, and neither CUDA nor the driver lists its slices.
    #[error("it is in MIG mode, and no slice of it is listed")]
    Mig,
    /// It is in MIG mode without slices, so CUDA has nothing to list.
    #[error("it is in MIG mode and has no slices")]
    NoSlice,
    /// It is a slice of a card in MIG mode. CUDA gives a process only one slice, and this is not the one.
    #[error("CUDA gives a process only one MIG slice, and chooses another one{}", chooses(uuid.as_deref()))]
    OtherSlice { uuid: Option<String> },
}
