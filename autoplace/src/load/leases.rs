//! Settings of a load: where loads coordinate, and where measurements are kept.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::MeasurementCache;

/// Coordinates the loads of one user, in this process and in others, so that no two loads count the same free bytes of
/// a GPU.
///
/// A lease is a locked file. The operating system unlocks it when the process ends, however it ends. If the folder does
/// not belong to this user, if others may write there, if files cannot be locked, or if the folder does not answer
/// within ten seconds, the load continues without a lease, and
/// [`LoadReport::unleased`](super::LoadReport::unleased) gives the reason.
///
/// A load sees only loads of the same user and folder, on this machine and in the same container. The host's memory is
/// not leased. A [simulated](llama_sys::sim) GPU differs from process to process, and is leased only if it has a PCI
/// address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Leases {
    pub(super) folder: Folder,
    pub(super) patience: Option<Duration>,
    pub(super) makes_room: bool,
}

/// The folder for files of one purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Folder {
    /// The user's default folder for this purpose.
    #[default]
    User,
    At(PathBuf),
    Nowhere,
}

impl Leases {
    /// Leases in the user's runtime folder: `autoplace` in `$XDG_RUNTIME_DIR` or `/run/user/<id>`, or else a folder of
    /// this user in the temporary folder.
    pub fn user() -> Self {
        Self::default()
    }

    /// Leases in this folder, which is created if missing. Only this user may have access to the folder, and it must
    /// contain nothing but leases.
    pub fn in_dir(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Folder::At(folder.into()), patience: None, makes_room: false }
    }

    /// No leases: this load and other loads ignore each other.
    pub const fn none() -> Self {
        Self { folder: Folder::Nowhere, patience: None, makes_room: false }
    }

    /// Sets how long to wait for loads that use the same GPUs. After that, those GPUs are not used. Default: ten
    /// minutes.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Sets whether the notices to other processes say that this process unloads idle models when others lack memory,
    /// as a pool does. Default: no.
    pub const fn makes_room(mut self, makes_room: bool) -> Self {
        self.makes_room = makes_room;
        self
    }
}

impl Folder {
    /// Whether the caller stated the folder.
    pub(super) const fn is_stated(&self) -> bool {
        matches!(self, Self::At(_))
    }

    /// The cache for measurements of devices; `None` if no measurements are kept.
    pub(super) fn cache(&self, is_simulated: bool) -> Option<MeasurementCache> {
        match self {
            Self::User if !is_simulated => Some(MeasurementCache::user()),
            Self::At(folder) => Some(MeasurementCache::at(folder)),
            Self::User | Self::Nowhere => None,
        }
    }
}
