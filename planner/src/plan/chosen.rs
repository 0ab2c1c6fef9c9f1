//! A placement that was chosen, ready to become a plan.

use crate::memory::estimate::Assignment;
use crate::memory::{ContextParams, Split};

use super::Confidence;
use super::fit::{Levels, Room};

/// A placement that was chosen, whatever by.
pub(super) struct Chosen<'a> {
    pub(super) room: Room<'a>,
    pub(super) params: ContextParams,
    pub(super) split: Split,
    pub(super) assignment: Assignment,
    /// Layers on each GPU.
    pub(super) counts: Vec<u32>,
    /// Blocks on GPUs of which a part stays on the host.
    pub(super) parted_blocks: u32,
    pub(super) levels: Levels,
    pub(super) confidence: Confidence,
    /// What decided, for people.
    pub(super) why: String,
    /// What else there is to say of the choice.
    pub(super) notes: Vec<String>,
}
