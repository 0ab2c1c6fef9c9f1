//! The options of a store, and how much it holds.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// The smallest memory limit of a store with a folder, in bytes. Pieces wait in memory until they are written.
const TRANSIT: u64 = 64 << 20;

/// Maximum bytes in memory of a store whose size is not stated.
const AUTOMATIC: u64 = 8 << 30;

/// Maximum bytes in a folder whose size is not stated.
const FOLDER_BYTES: u64 = 16 << 30;

/// The options of a [`PromptStore`](super::PromptStore).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Maximum bytes of host memory. `None` means half of the host memory that a plan leaves free, but at most 8 GiB.
    pub memory_bytes: Option<u64>,
    /// The folder of the files; `None` keeps nothing on disk.
    pub folder: Option<PathBuf>,
    /// Maximum bytes of the files. Each file is rounded up to whole blocks of 4 KiB.
    pub folder_bytes: u64,
    /// A hash of the owner's name.
    pub(super) owner: Option<String>,
}

impl StoreOptions {
    /// A store in host memory of at most `memory_bytes` bytes.
    pub fn new(memory_bytes: u64) -> Self {
        Self { memory_bytes: Some(memory_bytes), folder: None, folder_bytes: FOLDER_BYTES, owner: None }
    }

    /// A store in host memory: at most half of the bytes that the model's plan leaves free there, and at most 8 GiB.
    /// Plans reserve no memory for such a store.
    pub fn automatic() -> Self {
        Self { memory_bytes: None, ..Self::new(0) }
    }

    /// Also keeps the pieces in files in this folder, so that the pieces survive the program. All files together have
    /// at most `bytes` bytes. The folder is created for this user alone. Its files contain the tokens of texts, so
    /// anybody who can read the files can read the texts. Pieces wait in memory until they are written, so the memory
    /// limit is raised to at least 64 MiB.
    pub fn folder(mut self, folder: impl Into<PathBuf>, bytes: u64) -> Self {
        (self.folder, self.folder_bytes) = (Some(folder.into()), bytes);
        self
    }

    /// Keeps texts of different owners apart, for example by their API keys: no owner finds a text that another owner
    /// has stored. Only a hash of the name is kept.
    pub fn owner(mut self, name: &str) -> Self {
        self.owner = Some(format!("{:032x}", xxh3_128(name.as_bytes())));
        self
    }

    /// Maximum bytes of host memory, including room for the pieces that wait to be written to the folder.
    pub fn memory(&self) -> u64 {
        let bytes = self.memory_bytes.unwrap_or(AUTOMATIC);
        if self.folder.is_some() { bytes.max(TRANSIT) } else { bytes }
    }

    /// The bytes that a plan keeps free for the store.
    pub(crate) fn reserved(&self) -> u64 {
        self.memory_bytes.map_or(0, |_| self.memory())
    }
}

/// The contents of a store for one model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredModel {
    /// The model's name for people: `general.name` of its file.
    pub name: String,
    /// Number of pieces.
    pub pieces: usize,
    /// Tokens whose rows are stored.
    pub tokens: u64,
    /// Bytes of the pieces in memory.
    pub memory_bytes: u64,
    /// Bytes of the files, each counted in whole blocks of 4 KiB.
    pub folder_bytes: u64,
}

/// How much a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoreUse {
    /// Number of pieces, in memory or in the folder.
    pub pieces: usize,
    /// Tokens whose rows are stored.
    pub tokens: u64,
    /// Bytes of host memory that the store takes, including its index.
    pub memory_bytes: u64,
    /// The limit of `memory_bytes`.
    pub memory_limit: u64,
    /// Bytes of the store's files. Each file is rounded up to whole blocks of 4 KiB.
    pub folder_bytes: u64,
    /// The limit of `folder_bytes`; 0 without a folder, and while another process writes to the folder.
    pub folder_limit: u64,
    /// Bytes of computed states that this process has copied into the store so far.
    pub copied_bytes: u64,
    /// Time that the threads of texts have spent on copying them.
    pub copying_time: Duration,
    /// The longest time that a running text has waited for copying and restoring between two of its tokens. The
    /// contexts of drafters do not count here.
    pub longest_pause: Duration,
}
