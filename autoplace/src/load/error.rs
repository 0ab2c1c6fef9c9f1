//! The errors of loading a model.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::machine::Bytes;
use crate::plan::Plan;
use crate::{gguf, plan, profile, worker};

/// An error of a load, from the path to the loaded model.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// No safe placement exists. The error names the missing bytes of each device.
    #[error(transparent)]
    Plan(#[from] plan::Error),
    /// A hub's model is not in the cache, and fetching was not allowed. `bytes` is the size of the file.
    #[error("{name}: {file} is not in the cache: `ModelBuilder::fetch(true)` fetches its {}", Bytes(*.bytes))]
    NotFetched { name: String, file: String, bytes: u64 },
    /// A projector was requested, but this build of llama.cpp supports neither images nor sound.
    #[error("{}: this build takes neither images nor sound: it needs autoplace's feature `media`", mmproj.display())]
    NoMedia { mmproj: PathBuf },
    /// llama.cpp would end the process when it encodes media with this projector.
    #[error("{}: llama.cpp cannot compute it: {reason}", mmproj.display())]
    Projector { mmproj: PathBuf, reason: String },
    /// No such file exists. If the path is the name of a hub's model, the feature `hub` is needed.
    #[error("{name} is not a file: a hub's model needs autoplace's feature `hub`")]
    NoHub { name: String },
    /// A setting would have silently replaced earlier ones.
    #[error("`{late}` would replace earlier settings of the load: set them in one place")]
    Conflict { late: String },
    /// An rpc-server is on another machine, and the network was not declared trusted.
    #[error(
        "the rpc-server {endpoint} is not on this machine, and its protocol has no authentication and no encryption: \
         reach it through a tunnel, or set `rpc_trusted_network` (`--rpc-trusted-network`)"
    )]
    UntrustedNetwork { endpoint: String },
    /// This process lacks a device of the plan.
    #[error("the plan uses the device {device}, which this process lacks: {}", list(present))]
    DeviceGone { device: String, present: Vec<String> },
    /// Another process took memory between plan and load. A new plan will be smaller. The sizes are the bytes that the
    /// plan needs on the device, without headroom, and the bytes that are free now.
    #[error(
        "{name} ({device}) has {} free, but the plan needs {} of it: another program took its memory after the plan was made",
        Bytes(*.free), Bytes(*.needed)
    )]
    OutOfMemory { device: String, name: String, needed: u64, free: u64 },
    /// The load took more of a GPU's memory than its plan had left free, and no smaller plan was allowed. Sizes are in
    /// bytes; `difference` is the excess over footprint and headroom.
    #[error(
        "the load took {} of {name} ({device}), but its plan takes {} and leaves {} free: this is {} too much",
        Bytes(*.taken), Bytes(*.planned), Bytes(*.headroom), Bytes(*.difference)
    )]
    Difference { device: String, name: String, planned: u64, headroom: u64, taken: u64, difference: u64 },
    /// Every attempt ran out of memory, each with a smaller plan than the one before. The source is the last error.
    #[error("no attempt to load the model found enough memory: {}", attempt_list(attempts))]
    AllAttempts {
        attempts: Vec<Attempt>,
        #[serde(with = "super::ipc_error")]
        source: Box<Error>,
    },
    /// The model's only context is in use. Call again after the stream is dropped.
    #[error("the model is generating: its context is lent to a stream")]
    Busy,
    /// The model was loaded for embeddings and does not generate.
    #[error("the model was loaded to embed (`ModelBuilder::embeddings`): load it without that to generate")]
    LoadedToEmbed,
    /// The request asks for the model's own pooling, but the model has none, so each token would get its own vector.
    #[error(
        "{model} does not define how the vectors of a text's tokens become one (`pooling_type`): choose `Pooling::Mean`, \
         `Cls` or `Last` as its authors do, or `Pooling::None` for one vector per token"
    )]
    NoPooling { model: String },
    /// The request asks for a reranker, but the file has no classification head to compute its scores.
    #[error("{architecture}: the model has no classification head, so it cannot rerank")]
    NoRankHead { architecture: String },
    /// The model was loaded for generation and does not embed.
    #[error("the model was loaded to generate: load it with `ModelBuilder::embeddings` to embed")]
    LoadedToGenerate,
    /// Other objects (a clone, a context, a vocabulary or a sampler) still use the native model. The memory of the
    /// model cannot be freed, so the model cannot be re-placed.
    #[error(
        "other objects still use the native model ({holders} references): first drop what `Model::native` returned, and everything created with it"
    )]
    NativeHeld { holders: usize },
    /// A re-placement failed and left the model unloaded. Another re-placement can load it.
    #[error("the model is not loaded: its last re-placement failed")]
    NotLoaded,
    /// llama.cpp refused a call, or a call failed.
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
    /// The model's worker process cannot start or has died, or the call is not available for a model in a worker.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The file is not a GGUF file that llama.cpp can load.
    #[error(transparent)]
    #[serde(skip)]
    Gguf(#[from] gguf::Error),
    /// Hyper-parameters of the file are missing, contradictory, or outside llama.cpp's limits.
    #[error(transparent)]
    #[serde(skip)]
    Profile(#[from] profile::Error),
    /// A file is not an adapter, or not an adapter for this model.
    #[error(transparent)]
    #[serde(skip)]
    Adapter(Box<profile::AdapterError>),
    /// The request asks for multi-token prediction, but the model has no usable block for it.
    #[error(transparent)]
    #[serde(skip)]
    Mtp(#[from] profile::MtpError),
    /// A saved plan cannot be read or followed: the machine has changed, or the plan belongs to another model.
    #[error(transparent)]
    #[serde(skip)]
    SavedPlan(#[from] plan::SavedPlanError),
    /// A hub's model could not be listed, chosen or fetched.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    #[serde(skip)]
    Hub(#[from] autoplace_hub::Error),
}

impl From<profile::AdapterError> for Error {
    fn from(error: profile::AdapterError) -> Self {
        Self::Adapter(Box::new(error))
    }
}

fn list(present: &[String]) -> String {
    if present.is_empty() { "it has no GPU".into() } else { format!("it has {}", present.join(", ")) }
}

/// The stage that a load reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Planning with the free memory, and with the results of earlier attempts.
    Plan,
    /// Checking that the plan still fits, right before the load.
    Check,
    /// Reading the weights.
    Weights,
    /// Creating the context with its cache and compute buffers.
    Context,
    /// Reserving further buffers, and computing for the first time.
    WarmUp,
    /// Comparing the memory that the load took with the plan.
    Verify,
    /// Waiting for another load of this user to take its memory.
    Wait,
    /// Measuring the devices for the plan. This takes some seconds at the first load, and later no time.
    Measure,
    /// Reading the weights of a draft model.
    Draft,
    /// Reading the weights of a projector.
    Projector,
}

impl Stage {
    /// The work of this stage in words, for a progress bar: `planning`, `loading`.
    #[must_use]
    pub const fn doing(self) -> &'static str {
        match self {
            Self::Plan => "planning",
            Self::Check => "checking",
            Self::Weights => "loading",
            Self::Context => "creating the context",
            Self::WarmUp => "warming up",
            Self::Verify => "verifying",
            Self::Wait => "waiting for another load",
            Self::Measure => "measuring the devices",
            Self::Draft => "loading the draft",
            Self::Projector => "loading the projector",
        }
    }
}

impl fmt::Display for Stage {
    /// The time of a failure in words: `while planning`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Check => f.write_str("before the load"),
            stage => write!(f, "while {}", stage.doing()),
        }
    }
}

/// One attempt to load a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// The number of layers on GPUs, including the output layer; 0 if no plan was found.
    pub n_gpu_layers: u32,
    /// The number of layers of the model, including the output layer; 0 if no plan was found.
    pub layers: u32,
    /// The failure; `None` for the attempt that succeeded.
    pub failure: Option<AttemptFailure>,
}

/// The failure of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{stage}, {message}")]
#[non_exhaustive]
pub struct AttemptFailure {
    /// The stage that failed.
    pub stage: Stage,
    /// ggml's name of the device that lacked memory, if known. For the host, it is the name of the refused buffer type,
    /// or `host`.
    pub device: Option<String>,
    /// Bytes that the plan needs on that device, if it is a GPU.
    pub needed: Option<u64>,
    /// Bytes free on the device after everything was released, if the device reports them.
    pub free: Option<u64>,
    /// The error in one line.
    pub message: String,
}

impl Attempt {
    /// An attempt to follow this plan.
    pub(super) fn new(plan: &Plan, failure: Option<AttemptFailure>) -> Self {
        Self { n_gpu_layers: plan.n_gpu_layers, layers: plan.layers(), failure }
    }

    /// An attempt that found no plan.
    pub(super) fn unplanned(message: String) -> Self {
        Self {
            n_gpu_layers: 0,
            layers: 0,
            failure: Some(AttemptFailure { stage: Stage::Plan, device: None, needed: None, free: None, message }),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.layers > 0 {
            write!(f, "{} of {} layers on GPUs: ", self.n_gpu_layers, self.layers)?;
        }
        match &self.failure {
            None => f.write_str("loaded"),
            Some(failure) => write!(f, "{failure}"),
        }
    }
}

fn attempt_list(attempts: &[Attempt]) -> String {
    let all: Vec<String> = (1..).zip(attempts).map(|(number, attempt)| format!("{number}: {attempt}")).collect();
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::ipc_error::Failed;

    fn bytes_of(value: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        worker::encode(&mut bytes, value).unwrap();
        bytes
    }

    /// Encodes and decodes the error, as on the way from a worker to the application.
    fn sent(error: Error) -> Error {
        let Failed(error) = worker::decode(&bytes_of(&Failed(error))).unwrap();
        error
    }

    #[test]
    fn typed_errors_keep_their_type() {
        let failure = serde_json::json!({
            "cause": "Refused", "reason": "no memory", "log": ["a line"],
            "out_of_memory": {"buffer_type": "CUDA0", "bytes": 5},
        });
        let attempt = Attempt::unplanned(Error::Busy.to_string());
        let source = serde_json::json!({"Native": {"Decode": {"n_tokens": 3, "failure": failure}}});
        let source: Error = serde_json::from_value(source).unwrap();
        let source = serde_json::json!({"Ok": bytes_of(&source)});
        let (device, name) = ("CUDA0", "RTX 4090");
        let shortfall = serde_json::json!({"device": name, "needed": 3, "budget": 2, "free": 2, "missing": 1});
        let invalid = serde_json::json!({"name": "top_p", "value": "2", "reason": "0.0 to 1.0"});
        let errors = serde_json::json!([
            {"DeviceGone": {"device": "CUDA9", "present": [device]}},
            {"OutOfMemory": {"device": device, "name": name, "needed": u64::MAX, "free": 7}},
            {"Difference": {
                "device": device, "name": name, "planned": 1, "headroom": 2, "taken": 4, "difference": 1,
            }},
            {"AllAttempts": {"attempts": [attempt], "source": source}},
            {"NativeHeld": {"holders": 2}},
            "Busy",
            "NotLoaded",
            {"Plan": {"DoesNotFit": {
                "model": "llama", "n_gpu_layers": 1, "layers": 33, "n_ctx": 4096, "devices": [shortfall],
            }}},
            {"Plan": {"NoGpu": {"n_gpu_layers": 2, "why": "there is no usable GPU"}}},
            {"Native": "Aborted"},
            {"Native": {"LoadCancelled": {"path": "model.gguf"}}},
            {"Native": {"InvalidParameter": invalid}},
            {"Native": {"NoCandidates": {"n_tokens": 7}}},
            {"Worker": "NoWorkerMain"},
            {"Worker": {"Answered": {"kind": "Gguf", "message": "not a file"}}},
        ]);
        for error in serde_json::from_str::<Vec<Error>>(&errors.to_string()).unwrap() {
            let expected = format!("{error:?}");
            assert_eq!(format!("{:?}", sent(error)), expected);
        }
    }

    #[test]
    fn an_untyped_error_arrives_with_its_kind_and_message_after_the_earlier_attempts() {
        let error = Error::AllAttempts {
            attempts: vec![Attempt::unplanned(Error::Busy.to_string())],
            source: Box::new(Error::from(gguf::Error::NotAFile { path: "model.gguf".into() })),
        };
        let Error::AllAttempts { attempts, source } = sent(error) else { panic!() };
        assert_eq!(attempts.len(), 1);
        let Error::Worker(worker::Error::Answered { kind, message }) = *source else { panic!("{source:?}") };
        assert_eq!((kind.as_str(), message.as_str()), ("Gguf", "model.gguf: not a regular file"));
    }
}
