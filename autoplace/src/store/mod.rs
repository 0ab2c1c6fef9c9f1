//! The prompt store: computed states of texts, kept outside the contexts that computed them.
//!
//! In: pieces of the states of sequences, in the order of their tokens, because each piece depends on all tokens before
//! it. Out: the pieces of the longest stored beginning of a prompt. Pieces are in host memory and, if the application
//! names a folder, also in files. Memory and folder have limits in bytes. The least valuable pieces are evicted first
//! (`value`).
//!
//! The pieces form a tree of token prefixes (`tree`), so texts with the same beginning share its pieces. A root of the
//! tree stands for everything else on which a state depends: the model's bytes, adapters with their scales, cache
//! types, the version of llama.cpp, and the owner of the texts.

mod folder;
mod found;
mod memory;
mod options;
mod piece;
mod reader;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod value;
mod writer;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_128;

use self::folder::Folder;
pub(crate) use self::found::{Added, Brought, Found, Id, NewPiece};
pub use self::options::{StoreOptions, StoreUse, StoredModel};
use self::piece::Header;
pub(crate) use self::reader::StoreReader;
pub(crate) use self::text::{MediaRows, Text};
use self::tree::Tree;
use self::writer::{Shared, Writer};
use crate::machine::folder::{ANSWER_WITHIN, ask};
use crate::sync::lock;

/// Number of tokens in a piece if each token takes few bytes.
const BLOCK_TOKENS: usize = 64;

/// Maximum bytes of a piece that has more than [`MIN_BLOCK_TOKENS`] tokens. A step that stores a piece copies up to
/// this number of bytes.
const BLOCK_BYTES: usize = 8 << 20;

const MIN_BLOCK_TOKENS: usize = 8;

/// The version of the bytes in a piece: the shape of the rows, the rows, and the rest
/// (`llama_sys::Context::read_pieces`, `decode::stored`). Whoever changes these bytes must raise the version; pieces of
/// other versions are then not found.
pub(crate) const PIECE_FORMAT: u32 = 1;

/// Number of tokens in each piece of rows, for rows of this many bytes per token.
pub(crate) fn block_tokens(row_bytes: usize) -> usize {
    let mut tokens = BLOCK_TOKENS;
    while tokens > MIN_BLOCK_TOKENS && tokens.saturating_mul(row_bytes) > BLOCK_BYTES {
        tokens /= 2;
    }
    tokens
}

/// Computed states of texts, for later texts of the same model that begin with the same tokens. Clones are handles of
/// the same store. Several models may share a store, and a model that is loaded again finds the states that it stored.
///
/// ```no_run
/// use autoplace::{Model, store::{PromptStore, StoreOptions}};
/// let store = PromptStore::open(StoreOptions::new(2 << 30).folder("/var/cache/prompts", 20 << 30))?;
/// let model = Model::builder("model.gguf").prompt_store(store).load()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct PromptStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: StoreOptions,
    /// Opened on first use, so that a worker can open the folder of a store that its application only describes.
    opened: OnceLock<Opened>,
    /// Hashes of model files, by their stamps.
    file_hashes: Mutex<HashMap<String, String>>,
    copied: Mutex<Copied>,
}

/// The bytes that this process has copied into the store, and the time for the copying.
#[derive(Debug, Default)]
struct Copied {
    bytes: u64,
    time: Duration,
    longest_pause: Duration,
}

#[derive(Debug)]
struct Opened {
    shared: Arc<Shared>,
    /// Writes pieces to the folder. Dropping it waits for the pieces that are still to be written.
    writer: Option<Writer>,
}

impl PromptStore {
    /// A store in host memory alone, of at most `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        Self::described(StoreOptions::new(bytes))
    }

    /// A store with these options. When the first model uses the store, the store reads the headers of the files in its
    /// folder, and removes damaged files and files of another version. While one store writes to a folder, other stores
    /// only read it. When the writing store is gone, the next store that adds a piece writes to the folder.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be created, if another user owns it or can use it, or if it does not answer within
    /// ten seconds ([`TimedOut`](io::ErrorKind::TimedOut)). Later failures of the folder are logged, and the store
    /// continues without the folder.
    pub fn open(options: StoreOptions) -> io::Result<Self> {
        if let Some(path) = options.folder.clone() {
            ask(&path.clone(), move || Folder::create(&path))?;
        }
        Ok(Self::described(options))
    }

    fn described(options: StoreOptions) -> Self {
        let inner = Inner { options, opened: OnceLock::new(), file_hashes: Mutex::default(), copied: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    fn opened(&self) -> &Opened {
        self.inner.opened.get_or_init(|| Opened::new(&self.inner.options))
    }

    /// Whether this process has used the store.
    pub(crate) fn is_opened(&self) -> bool {
        self.inner.opened.get().is_some()
    }

    fn shared(&self) -> &Shared {
        &self.opened().shared
    }

    /// How much the store holds.
    pub fn usage(&self) -> StoreUse {
        let Copied { bytes: copied_bytes, time: copying_time, longest_pause } = *lock(&self.inner.copied);
        StoreUse { copied_bytes, copying_time, longest_pause, ..lock(&self.shared().tree).usage() }
    }

    /// Counts bytes that were copied into the store, and the time that the copying took.
    pub(crate) fn copied(&self, bytes: u64, took: Duration) {
        let mut copied = lock(&self.inner.copied);
        copied.bytes += bytes;
        copied.time += took;
    }

    /// Records that a running text has waited `time` for the copying.
    pub(crate) fn paused(&self, time: Duration) {
        let mut copied = lock(&self.inner.copied);
        copied.longest_pause = copied.longest_pause.max(time);
    }

    /// Waits until the files of the folder are known, if the store has a folder. Texts do not wait for this longer than
    /// ten seconds: a store whose folder does not answer is a store in memory until the folder answers.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut), with the name of the folder, if the folder does not answer: it has opened
    /// no file for ten seconds, or was waited for in vain before and has opened none since.
    pub fn wait_for_folder(&self) -> io::Result<()> {
        self.opened().writer.as_ref().map_or(Ok(()), Writer::wait_until_open)
    }

    /// The models with texts in the store, the largest first. One model is in the list several times if the model's
    /// texts differ in more than their tokens: adapters, cache types, owners, versions of llama.cpp.
    pub fn models(&self) -> Vec<StoredModel> {
        lock(&self.shared().tree).models()
    }

    /// Forgets everything in memory and in the folder. Waits until the folder is open and the files are removed.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut), with the name of the folder, if the folder does not answer: it has
    /// completed no piece and no file for ten seconds, or was waited for in vain before and has completed none since.
    /// The memory is empty then. The files of a folder that was open are removed once it answers; the files of another
    /// folder stay.
    pub fn clear(&self) -> io::Result<()> {
        let opened = self.wait_for_folder();
        self.shared().change(Tree::clear);
        opened.and_then(|()| self.flush())
    }

    /// Waits until all stored pieces are in the folder, if the store has a folder.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](io::ErrorKind::TimedOut), with the name of the folder, if the folder does not answer: it has
    /// completed no piece and no file for ten seconds, or was waited for in vain before and has completed none since.
    /// The pieces are written once it answers.
    pub fn flush(&self) -> io::Result<()> {
        self.wait_for_folder()?;
        self.wait_for_writer()
    }

    /// Waits until the folder has all pieces that it was given.
    pub(crate) fn wait_for_writer(&self) -> io::Result<()> {
        self.opened().writer.as_ref().map_or(Ok(()), Writer::wait)
    }

    /// Number of pieces that wait for the folder's thread.
    pub(crate) fn unwritten(&self) -> usize {
        self.opened().writer.as_ref().map_or(0, Writer::unwritten)
    }

    /// The options that the store was opened with.
    pub fn options(&self) -> &StoreOptions {
        &self.inner.options
    }

    /// Limits the bytes in memory, and evicts pieces down to the limit. The limit never exceeds that of the
    /// [options](StoreOptions::new).
    pub(crate) fn limit_memory(&self, bytes: u64) {
        let bytes = bytes.min(self.inner.options.memory());
        self.shared().change(|tree, folder| tree.set_limit(bytes, folder));
    }

    /// Frees this many bytes of memory, or all bytes if there are fewer, because the host runs short of memory. The
    /// limit stays.
    pub(crate) fn give_back(&self, bytes: u64) {
        self.shared().change(|tree, folder| tree.give_back(bytes, folder));
    }

    /// The hash of a model's file with this stamp. `compute` is called only once for all loads with this store.
    pub(crate) fn file_hash(&self, stamp: &str, compute: impl FnOnce() -> io::Result<String>) -> io::Result<String> {
        if let Some(known) = lock(&self.inner.file_hashes).get(stamp) {
            return Ok(known.clone());
        }
        // The lock is not held, because hashing a large file takes seconds.
        let hash = compute()?;
        lock(&self.inner.file_hashes).insert(stamp.to_owned(), hash.clone());
        Ok(hash)
    }

    /// The root of the owner's texts with this key. The key describes everything else on which the texts depend.
    pub(crate) fn root(&self, key: &str) -> Id {
        let owner = self.inner.options.owner.as_deref().unwrap_or_default();
        xxh3_128(format!("{}:{owner}{key}", owner.len()).as_bytes())
    }

    /// Records the name of the model for a root, and the seconds to compute a token. If this process has not measured
    /// the seconds for a root, the pieces of this root are evicted first.
    pub(crate) fn learn(&self, root: Id, label: &str, seconds_per_token: Option<f64>, needs_rest: bool) {
        lock(&self.shared().tree).learn(root, label, value::Root { seconds_per_token, needs_rest });
    }

    /// The longest beginning of this text that can be restored.
    pub(crate) fn find(&self, root: Id, text: Text<'_>) -> Found {
        lock(&self.shared().tree).find(root, text)
    }

    /// Brings the pieces of a beginning into memory. `None` if one of them is damaged or gone; the store has then
    /// forgotten it, and another search finds less.
    #[cfg(test)]
    fn bring(&self, found: &Found) -> Option<Brought> {
        self.reader().bring(found, || true)
    }

    /// The pieces of a beginning that were in memory when it was found. `None` if one of them has left memory
    /// meanwhile; another search then finds it in the folder, or finds less.
    pub(crate) fn in_memory(&self, found: &Found) -> Option<Brought> {
        self.reader().in_memory(found)
    }

    /// Brings pieces into memory without being a holder of the store.
    pub(crate) fn reader(&self) -> StoreReader {
        StoreReader::new(&self.opened().shared)
    }

    /// Forgets the pieces of a beginning that a context has refused, except pieces that belong to other texts too.
    pub(crate) fn forget(&self, found: &Found) {
        self.shared().change(|tree, folder| tree.refused(found, folder));
    }

    /// The first block of `block` tokens whose rows the store lacks; at the end of the text, the block may be shorter.
    /// `None` if the store has all rows of the text.
    pub(crate) fn missing_rows(&self, root: Id, text: Text<'_>, block: usize) -> Option<std::ops::Range<usize>> {
        lock(&self.shared().tree).missing_rows(root, text, block)
    }

    /// Whether the store has the rows of these tokens, but lacks the rest of exactly this text.
    pub(crate) fn lacks_rest(&self, root: Id, text: Text<'_>) -> bool {
        lock(&self.shared().tree).lacks_rest(root, text)
    }

    /// Whether a piece of this size can be stored, if other pieces are evicted.
    pub(crate) fn may_take(&self, bytes: usize) -> bool {
        lock(&self.shared().tree).may_take(bytes as u64)
    }

    /// Adds the rows of the last of these tokens, or the rest that belongs to all of the tokens.
    pub(crate) fn add(&self, root: Id, text: Text<'_>, piece: NewPiece) -> Added {
        let shared = self.shared();
        let added = shared.change(|tree, folder| tree.add(root, text, piece, folder));
        if let (Added::Yes { to_write }, Some(writer)) = (&added, &self.opened().writer) {
            to_write.iter().for_each(|id| writer.write(*id));
            if shared.folder.get().is_some_and(|folder| !folder.is_ours()) {
                writer.take_over();
            }
        }
        added
    }
}

impl Opened {
    fn new(options: &StoreOptions) -> Self {
        let Some(folder) = options.folder.clone() else { return Self::in_memory(options) };
        let path = folder.clone();
        Self::with(options, folder, move |reads| Folder::open(&path, reads), ANSWER_WITHIN)
    }

    fn in_memory(options: &StoreOptions) -> Self {
        Self { shared: Arc::new(Shared::new(Tree::new(options.memory()))), writer: None }
    }

    /// Lets the writer's thread open the folder, and waits for the thread at most this long.
    fn with(
        options: &StoreOptions,
        folder: PathBuf,
        open: impl FnOnce(&dyn Fn()) -> io::Result<(Folder, Vec<Header>)> + Send + 'static,
        within: Duration,
    ) -> Self {
        let Self { shared, .. } = Self::in_memory(options);
        let named = folder.display().to_string();
        let writer = Writer::start(&shared, (folder, options.folder_bytes), open);
        if writer.as_ref().is_some_and(|writer| !writer.is_open_within(within)) {
            tracing::warn!(
                target: "autoplace::store",
                "{named}: the folder does not answer; until it does, prompts are stored in memory alone"
            );
        }
        Self { shared, writer }
    }
}

/// Time to compute something, in seconds for each of `units`, smoothed over several measurements.
pub(crate) fn smoothed(before: Option<f64>, units: u64, took: Duration) -> Option<f64> {
    if units == 0 {
        return before;
    }
    let now = took.as_secs_f64() / units as f64;
    Some(before.map_or(now, |before| before + (now - before) / 4.0))
}

impl PartialEq for PromptStore {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

/// A worker process gets the options, and opens a store of its own.
impl Serialize for PromptStore {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.inner.options.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PromptStore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StoreOptions::deserialize(deserializer).map(Self::described)
    }
}
