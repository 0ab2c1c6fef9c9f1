//! The terms of a load: how it is verified, what follows from a difference, how often it is tried, and where it learns.

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::machine::{HeadroomCache, RatesCache};

/// How far a load computes before it counts as done.
///
/// Drivers and their pools take memory when something is first computed, and no breakdown counts that. A warm-up makes
/// them take it while there still is somebody to back off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verify {
    /// Nothing is computed, and no number of threads tried. llama.cpp's own account is held against the
    /// plan, and no more.
    Off,
    /// The largest batch and one token after it, at the beginning of the context; with several sequences, one of them
    /// alone too. Where the plan uses no GPU there is no memory to measure, and no more is computed than the choice of
    /// [threads](super::Threads) takes.
    #[default]
    Quick,
    /// The whole context, up to its last position: takes as long as a prompt of `n_ctx` tokens.
    Full,
}

/// What to do where a load took more of a GPU than its plan left for it: its footprint and all of its headroom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnDifference {
    /// Release it, leave that much more free, and plan again; unless that comes to the same plan, because there is more
    /// room than the plan needs.
    #[default]
    BackOff,
    /// Release it: [`Error::Difference`](super::Error::Difference).
    Fail,
    /// Keep it. The report says so.
    Accept,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(super) verify: Verify,
    pub(super) on_difference: OnDifference,
    pub(super) attempts: NonZeroU32,
    pub(super) learn: Learn,
}

/// Where a load keeps what it learns of its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Learn {
    /// In the user's cache folder; of simulated GPUs nothing.
    User,
    /// In this folder, of simulated GPUs too.
    At(PathBuf),
    Nothing,
}

impl Terms {
    /// Four: the plan, one for memory that was taken since, and two for what nobody foresaw.
    const ATTEMPTS: NonZeroU32 = NonZeroU32::MIN.saturating_add(3);
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            verify: Verify::default(),
            on_difference: OnDifference::default(),
            attempts: Self::ATTEMPTS,
            learn: Learn::User,
        }
    }
}

impl Learn {
    /// The cache for what is learned of a GPU.
    pub(super) fn cache(&self, is_simulated: bool) -> Option<HeadroomCache> {
        match self {
            Self::User if !is_simulated => Some(HeadroomCache::user()),
            Self::At(folder) => Some(HeadroomCache::at(folder)),
            Self::User | Self::Nothing => None,
        }
    }
    /// The cache for what devices are measured to do; `None` where nothing is measured.
    pub(super) fn rates(&self) -> Option<RatesCache> {
        match self {
            Self::User => Some(RatesCache::user()),
            Self::At(folder) => Some(RatesCache::at(folder)),
            Self::Nothing => None,
        }
    }
}
