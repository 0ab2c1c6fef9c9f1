//! Errors of the native layer, with llama.cpp's log lines about them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize};

use super::log::Captured;

/// A fixed word in an error; there are only a few. Without this alias, serde's derive would make the type borrow the
/// word from its input.
type Word = &'static str;

/// An error of the native layer.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum Error {
    /// The native code was compiled for instructions that this CPU lacks. Running the code would end the process with
    /// an illegal instruction.
    #[error(
        "this program's llama.cpp was compiled for a CPU with {}; this CPU lacks {}: build the program on this machine, or \
         without the `native` feature", .required.join(", "), .missing.join(", ")
    )]
    UnsupportedCpu { required: Vec<String>, missing: Vec<String> },
    /// A parameter that llama.cpp would refuse, or with which llama.cpp would end the process. `name` is the
    /// parameter's name in llama.cpp.
    #[error("{name} is {value}: {reason}")]
    InvalidParameter {
        #[serde(deserialize_with = "word")]
        name: Word,
        value: String,
        reason: String,
    },
    /// No file can be read at this path.
    #[error("cannot read {}: {reason}", .path.display())]
    Unreadable { path: PathBuf, reason: String },
    /// llama.cpp did not load the model.
    #[error("cannot load {}: {failure}", .path.display())]
    ModelLoad { path: PathBuf, failure: Failure },
    /// llama.cpp did not load the LoRA adapter.
    #[error("cannot load the LoRA adapter {}: {failure}", .path.display())]
    AdapterLoad { path: PathBuf, failure: Box<Failure> },
    /// llama.cpp did not load the projector of images or sound (mmproj).
    #[error("cannot load the projector {}: {failure}", .path.display())]
    ProjectorLoad { path: PathBuf, failure: Box<Failure> },
    /// The progress callback returned `false`.
    #[error("loading {} was cancelled", .path.display())]
    LoadCancelled { path: PathBuf },
    /// llama.cpp did not create the context. `n_ctx` is the requested length; 0 stands for the model's own length.
    #[error("cannot create a context of {n_ctx} tokens: {failure}")]
    ContextInit { n_ctx: u32, failure: Failure },
    /// The KV cache has no room for a batch of this size. The caller can remove a part of a sequence, or stop.
    #[error("the KV cache has no room for {n_tokens} more tokens; the context has {n_ctx}")]
    NoKvSlot { n_tokens: usize, n_ctx: u32 },
    /// [`AbortHandle::abort`](crate::AbortHandle::abort) was called while decoding.
    #[error("decoding was aborted")]
    Aborted,
    /// Decoding failed; the context must not be used again.
    #[error("decoding {n_tokens} tokens failed: {failure}")]
    Decode { n_tokens: usize, failure: Failure },
    /// An earlier call failed in a way that leaves the context in an unknown state.
    #[error("the context cannot be used any more, because an earlier call failed: {reason}")]
    Poisoned { reason: String },
    /// The model has no vocabulary, so that text cannot be tokenised.
    #[error("the model has no vocabulary: its tokenizer.ggml.model is \"none\" or \"no_vocab\"")]
    NoVocabulary,
    /// Tokenising a long text needs a thread with more stack than usual, and the system started none. `text` and
    /// `stack` are in bytes.
    #[error("tokenising {text} bytes needs a thread with {stack} bytes of stack: {reason}")]
    NoStack { text: usize, stack: usize, reason: String },
    /// No token is left to choose from: a mask or one of the caller's filters has removed all.
    #[error("the mask or a filter allows none of the {n_tokens} tokens of the vocabulary")]
    NoCandidates { n_tokens: u32 },
    /// A call into llama.cpp failed.
    #[error("{what} failed: {failure}")]
    Call {
        #[serde(deserialize_with = "word")]
        what: Word,
        failure: Failure,
    },
    /// A saved state that belongs to another model or cache, or was altered.
    #[error("cannot restore the saved state: {reason}")]
    State { reason: String },
    /// There is no runtime that this program can open. This variant is last, so that the others keep their numbers in
    /// messages to workers.
    #[cfg(feature = "prebuilt-runtime")]
    #[error(transparent)]
    Runtime(#[from] autoplace_runtime::Error),
}

impl Error {
    /// The failure of the native call, if a native call caused this error.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::AdapterLoad { failure, .. } | Self::ProjectorLoad { failure, .. } => Some(failure),
            Self::ModelLoad { failure, .. }
            | Self::ContextInit { failure, .. }
            | Self::Decode { failure, .. }
            | Self::Call { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// The allocation that failed, if the cause was a lack of memory.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        self.failure()?.out_of_memory.as_ref()
    }

    pub(crate) fn parameter(name: &'static str, value: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self::InvalidParameter { name, value: value.to_string(), reason: reason.into() }
    }
}

/// Why a native call failed: its own message, and the warnings and errors that it logged.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// The kind of failure.
    pub cause: FailureCause,
    /// The reason in one line: the text of the exception or of the assertion, or the first error that llama.cpp logged.
    pub reason: String,
    /// Warnings and errors that llama.cpp logged during the call, oldest first, at most 32 lines.
    pub log: Vec<String>,
    /// The allocation that failed, if llama.cpp's log names it.
    pub out_of_memory: Option<OutOfMemory>,
}

/// The kind of a [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailureCause {
    /// llama.cpp returned an error.
    Refused,
    /// A C++ exception.
    Exception,
    /// A `GGML_ASSERT` or `GGML_ABORT` that would have ended the process.
    Assertion,
    /// The host ran out of memory.
    HostMemory,
}

/// A buffer that could not be allocated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfMemory {
    /// ggml's name of the buffer type, such as `CUDA0` or `CPU`.
    pub buffer_type: String,
    /// Bytes that were requested.
    pub bytes: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.out_of_memory {
            Some(OutOfMemory { buffer_type, bytes }) => {
                write!(f, "out of memory: {buffer_type} cannot allocate {bytes} bytes")
            }
            None => f.write_str(&self.reason),
        }
    }
}

impl Failure {
    /// Makes a failure from a native result. `message` is the shim's message, which is empty if llama.cpp only returned
    /// an error.
    pub(crate) fn new(cause: FailureCause, message: String, said: Captured) -> Self {
        let out_of_memory = said.lines.iter().find_map(|line| failed_allocation(line));
        let reason = if message.is_empty() {
            said.first_error
                .or_else(|| said.lines.first().cloned())
                .unwrap_or_else(|| "llama.cpp gave no reason".into())
        } else {
            message
        };
        // llama.cpp catches this exception itself, so the shim does not see it.
        let cause = if reason.ends_with("std::bad_alloc") { FailureCause::HostMemory } else { cause };
        Self { cause, reason, log: said.lines, out_of_memory }
    }
}

/// Reads a word and keeps it in memory forever. This is safe, because there are only a few different words.
fn word<'de, D: Deserializer<'de>>(from: D) -> Result<Word, D::Error> {
    static WORDS: Mutex<BTreeSet<Word>> = Mutex::new(BTreeSet::new());
    let read = String::deserialize(from)?;
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(word) = words.get(read.as_str()) {
        return Ok(word);
    }
    let word: Word = Box::leak(read.into_boxed_str());
    words.insert(word);
    Ok(word)
}

/// Finds ggml's "failed to allocate CUDA0 buffer of size 123" (ggml-alloc.c, alloc_tensor_range and
/// ggml_gallocr_reserve).
fn failed_allocation(line: &str) -> Option<OutOfMemory> {
    let (_, rest) = line.split_once("failed to allocate ")?;
    let (buffer_type, rest) = rest.split_once(" buffer of size ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some(OutOfMemory { buffer_type: buffer_type.to_owned(), bytes: digits.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(first_error: Option<&str>, lines: &[&str]) -> Captured {
        Captured {
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            first_error: first_error.map(str::to_owned),
        }
    }

    #[test]
    fn a_failed_allocation_is_read_from_ggmls_log_line() {
        let line = "alloc_tensor_range: failed to allocate CUDA0 buffer of size 123456";
        let failure = Failure::new(FailureCause::Refused, String::new(), said(Some(line), &[line]));
        assert_eq!(failure.out_of_memory, Some(OutOfMemory { buffer_type: "CUDA0".into(), bytes: 123_456 }));
        assert_eq!(failure.to_string(), "out of memory: CUDA0 cannot allocate 123456 bytes");
    }

    #[test]
    fn without_an_exception_the_first_error_is_the_reason_and_warnings_are_not() {
        let failure =
            Failure::new(FailureCause::Refused, String::new(), said(Some("an error"), &["a warning", "an error"]));
        assert_eq!(failure.reason, "an error");
        assert_eq!(failure.log.len(), 2);
    }

    #[test]
    fn host_memory_that_ran_out_inside_llama_cpp_is_recognised() {
        let line = "llama_init_from_model: failed to initialize the context: std::bad_alloc";
        let failure = Failure::new(FailureCause::Refused, String::new(), said(Some(line), &[line]));
        assert_eq!(failure.cause, FailureCause::HostMemory);
    }
}
