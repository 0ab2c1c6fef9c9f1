//! The options of a call, and the facts that apply to all texts of an embedder.

use serde::{Deserialize, Serialize};

use super::Normalization;
use crate::memory::Pooling;

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Options {
    pub(super) truncate: bool,
    pub(super) normalization: Normalization,
}

/// Facts that apply to all texts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) labels: Vec<String>,
    pub(super) width: usize,
    pub(super) pooling: Pooling,
    pub(super) longest_text: usize,
}
