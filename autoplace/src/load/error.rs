//! Why a model was not loaded.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Bytes;
use crate::plan::Plan;
use crate::{gguf, plan, profile, worker};

/// An error on the way from a path to a loaded model.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// There is no safe placement; the error says how many bytes are missing where.
    #[error(transparent)]
    Plan(#[from] plan::Error),
    /// A hub's model is not in the cache, and nobody has said that it may be fetched. In bytes.
    #[error("{name}: {file} is not in the cache: `ModelBuilder::fetch(true)` fetches its {}", Bytes(*.bytes))]
    NotFetched { name: String, file: String, bytes: u64 },
    /// There is no file of this name, and autoplace was built without the means to ask a hub for it.
    #[error("{name} is no file: a model of a hub needs autoplace's feature `hub`")]
    NoHub { name: String },
    /// Settings were given twice, and one of them would have been lost.
    #[error("`{late}` would replace settings of the load that were made apart from it: say them in one place")]
    Conflict { late: String },
    /// An rpc-server is on another machine, and nobody has said that the network between may be trusted.
    #[error(
        "the rpc-server {endpoint} is not on this machine, and its protocol knows no authentication and no encryption: \
         reach it through a tunnel, or say `rpc_trusted_network` (`--rpc-trusted-network`)"
    )]
    UntrustedNetwork { endpoint: String },
    /// A device of the plan is not there.
    #[error("the plan uses the device {device}, which this process does not have: {}", list(present))]
    DeviceGone { device: String, present: Vec<String> },
    /// Another process took memory that the plan counted on, between plan and load. A new plan will be smaller. In
    /// bytes: what the plan takes of the device, headroom not counted, and what is free on it now.
    #[error(
        "{name} ({device}) has {} free, and the plan takes {} of it: its memory was taken since the plan was made",
        Bytes(*.free), Bytes(*.needed)
    )]
    OutOfMemory { device: String, name: String, needed: u64, free: u64 },
    /// The load took more of a GPU than its plan left for it, and nothing smaller was to be tried. In bytes;
    /// `difference` is what was taken beyond footprint and headroom.
    #[error(
        "the load took {} of {name} ({device}), where its plan takes {} and leaves {} free: {} more than both",
        Bytes(*.taken), Bytes(*.planned), Bytes(*.headroom), Bytes(*.difference)
    )]
    Difference { device: String, name: String, planned: u64, headroom: u64, taken: u64, difference: u64 },
    /// Memory was lacking in every attempt, each with a smaller plan than the one before. The source is the
    /// last one's error.
    #[error("no attempt to load the model found enough memory: {}", attempt_list(attempts))]
    AllAttempts {
        attempts: Vec<Attempt>,
        #[serde(with = "super::crossing")]
        source: Box<Error>,
    },
    /// The model's one context is generating: try before the stream begins, or after it is dropped.
    #[error("the model is generating: its context is lent to a stream")]
    Busy,
    /// The model's context yields embeddings, and no next token.
    #[error("the model was loaded to embed (`ModelBuilder::embeddings`): load it without that to generate")]
    Embeds,
    /// The model's own pooling was asked for, and it has none: each token would get a vector of its own.
    #[error(
        "{model} does not say how the vectors of a text's tokens become one (`pooling_type`): choose `Pooling::Mean`, \
         `Cls` or `Last` as its makers do, or `Pooling::None` for a vector of each token"
    )]
    NoPooling { model: String },
    /// A reranker was asked for, and the file holds no classification head, whose scores it would give.
    #[error("{architecture}: the model has no classification head, so it cannot rerank")]
    NoRankHead { architecture: String },
    /// The model's context yields logits, and no embeddings.
    #[error("the model was loaded to generate: load it with `ModelBuilder::embeddings` to embed")]
    Generates,
    /// The memory of the model would not become free, so it cannot be re-placed: clones of it, and contexts,
    /// vocabularies and samplers made of it, are held that are not the model's own.
    #[error(
        "the model underneath is held {holders} times elsewhere: drop what `Model::native` gave, and what was made of it, first"
    )]
    NativeHeld { holders: usize },
    /// A re-placement failed, and nothing is loaded: re-place the model again.
    #[error("the model is not loaded: its last re-placement failed")]
    NotLoaded,
    /// llama.cpp refused or failed.
    #[error(transparent)]
    Native(#[from] llama_sys::Error),
    /// The worker process that the model was to run in cannot be started or died, or the call is not available there.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The file is not a GGUF that llama.cpp could load.
    #[error(transparent)]
    #[serde(skip)]
    Gguf(#[from] gguf::Error),
    /// The file's hyper-parameters are missing, contradictory, or beyond what llama.cpp takes.
    #[error(transparent)]
    #[serde(skip)]
    Profile(#[from] profile::Error),
    /// A file is not an adapter, or not one for this model.
    #[error(transparent)]
    #[serde(skip)]
    Adapter(Box<profile::AdapterError>),
    /// The blocks that predict further tokens were asked for, and there are none that llama.cpp could use.
    #[error(transparent)]
    #[serde(skip)]
    Mtp(#[from] profile::MtpError),
    /// A saved plan cannot be read or followed: the machine has changed, or it is of another model.
    #[error(transparent)]
    #[serde(skip)]
    SavedPlan(#[from] plan::SavedPlanError),
    /// A hub's model was not listed, chosen or fetched.
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

/// How far a load came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Planning with what was free, and with what earlier attempts showed.
    #[error("while planning")]
    Plan,
    /// Checking that the plan still fits, right before the load.
    #[error("before the load")]
    Check,
    /// Reading the weights.
    #[error("while loading")]
    Weights,
    /// Making the context: its cache and its compute buffers.
    #[error("while making the context")]
    Context,
    /// Reserving the rest, and computing for the first time.
    #[error("while warming up")]
    WarmUp,
    /// Comparing what was taken with the plan.
    #[error("while verifying")]
    Verify,
}

/// One attempt to load a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Layers on GPUs, the output layer counted. 0 where no plan was found.
    pub n_gpu_layers: u32,
    /// Layers of the model, the output layer counted. 0 where no plan was found.
    pub layers: u32,
    /// Why it failed; `None` for the attempt that worked.
    pub failure: Option<AttemptFailure>,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{stage}, {message}")]
#[non_exhaustive]
pub struct AttemptFailure {
    /// How far it came.
    pub stage: Stage,
    /// ggml's name of the device, or of the host's buffer type, that lacked memory, where one is known.
    pub device: Option<String>,
    /// Bytes that the plan takes of that GPU.
    pub needed: Option<u64>,
    /// Bytes that were free there once everything was released, if the device reports them.
    pub free: Option<u64>,
    /// The error, in a line.
    pub message: String,
}

impl Attempt {
    /// An attempt to follow this plan.
    pub(super) fn of(plan: &Plan, failure: Option<AttemptFailure>) -> Self {
        Self { n_gpu_layers: plan.n_gpu_layers, layers: plan.layers(), failure }
    }

    /// One for which no plan was found.
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
    use crate::load::crossing::Failed;

    fn bytes_of(value: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        worker::encode(&mut bytes, value).unwrap();
        bytes
    }

    /// As the error arrives in the application.
    fn sent(error: Error) -> Error {
        let Failed(error) = worker::decode(&bytes_of(&Failed(error))).unwrap();
        error
    }

    #[test]
    fn errors_with_a_type_arrive_as_what_they_are() {
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
            {"Plan": {"NoGpu": {"n_gpu_layers": 2}}},
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
    fn an_error_without_a_type_arrives_with_its_kind_and_words_after_the_attempts_before_it() {
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
