//! The forms in which an answer shows thoughts, and in which the next request sends them back.

use crate::translation::{decoded_thought, encoded_thought};

/// The prefix of a signature that contains a thought.
const SIGNED: &str = "autoplace:";

/// How an answer shows its thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Shown {
    #[default]
    Thoughts,
    /// As signatures only (`display: "omitted"`).
    Signatures,
}

/// A signature that contains the thought.
pub(super) fn signature_of(thought: &str) -> String {
    format!("{SIGNED}{}", encoded_thought(thought))
}

/// The thought inside a signature of ours.
pub(super) fn signed_thought(signature: &str) -> Option<String> {
    decoded_thought(signature.strip_prefix(SIGNED)?)
}
