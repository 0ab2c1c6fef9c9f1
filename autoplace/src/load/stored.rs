//! The key of a model's texts in a prompt store. The key contains everything on which a stored text depends, except the
//! tokens.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::Model;
use super::adapters::Scales;
use super::loaded::{Draft, Heads};
use crate::gguf::Shard;
use crate::machine::Host;
use crate::memory::{Headroom, PeakSizes};
use crate::store::{Id, PIECE_FORMAT, PromptStore};

/// Number of bytes that are read and hashed at once.
const CHUNK: usize = 1 << 20;

/// The store of a model, and the key of its texts.
#[derive(Debug, Clone)]
pub(crate) struct ModelStore {
    pub(crate) store: PromptStore,
    /// The model's display name.
    pub(crate) label: String,
    /// Whether the state of a text has a part that belongs to all of its tokens together, such as a window or a
    /// recurrent state.
    pub(crate) needs_rest: bool,
    /// Identifies the projector and its limits for pictures; 0 without a projector. A text without pictures does not
    /// depend on this number.
    pub(crate) projector: Id,
    /// The part of the key that describes files and formats, without the scales of adapters.
    key: String,
}

impl ModelStore {
    /// The key of texts that are computed with this set of adapters.
    pub(crate) fn key(&self, scales: &Scales) -> String {
        format!("{}; scales {:?}", self.key, scales.bits())
    }
}

impl Model {
    /// The store of the model, for contexts of the present plan. `None` if there is no store, or if a file of the model
    /// cannot be read.
    pub(crate) fn prompt_store(&self, native: &llama_sys::Model) -> Option<ModelStore> {
        let store = self.options().prompt_store.clone()?;
        if store.options().memory_bytes.is_none() {
            store.limit_memory(self.left_of_host() / 2);
        }
        let files = self.files_key(&store).and_then(|files| Ok((files, self.projector_key(&store)?)));
        let files =
            files.inspect_err(|error| tracing::warn!(target: "autoplace::store", "prompts are not stored: {error}"));
        let ((files, projector), header) = (files.ok()?, self.header().ok()?);
        let plan = self.placement();
        let of = &plan.context;
        let streams = if of.kv_unified { 1 } else { of.n_seq_max };
        let needs_rest = needs_rest(native);
        let shape = needs_rest.then_some((streams, of.swa_full, of.n_rs_seq));
        // If a model has long and short factors of the positions, the length of the context decides which of them are
        // used (llama-model.cpp, `get_rope_factors`).
        let is_long = header.tensors().any(|tensor| tensor.name().starts_with("rope_factors_long"));
        let length = is_long.then(|| of.n_ctx_seq());
        let key = format!(
            "{}; {files}; keys {:?}, values {:?}; {:?}; {:?}; {length:?}",
            versions(PIECE_FORMAT),
            of.type_k,
            of.type_v,
            of.rope,
            shape,
        );
        Some(ModelStore { store, label: header.title().unwrap_or_default(), needs_rest, projector, key })
    }

    /// The store for the content of a draft model's context. `None` if there is no store, or if the draft's file cannot
    /// be read.
    pub(crate) fn draft_store(&self, draft: &Draft) -> Option<ModelStore> {
        let (store, path) = (self.options().prompt_store.clone()?, self.options().draft.as_ref()?);
        let file = self.file_key(&store, path);
        let file = file
            .inspect_err(
                |error| tracing::warn!(target: "autoplace::store", "the draft model's states are not stored: {error}"),
            )
            .ok()?;
        let (keys, values) = (draft.params.type_k, draft.params.type_v);
        // In some models, the factors of the positions depend on the length of the context.
        let length = draft.context.n_ctx_seq();
        let versions = versions(PIECE_FORMAT);
        let needs_rest = needs_rest(draft.context.model());
        let streams = if draft.context.kv_unified() { 1 } else { draft.context.n_seq_max() };
        let shape = needs_rest.then_some((streams, draft.params.swa_full, draft.params.n_rs_seq));
        let key = format!("{versions}; a draft; {file}; keys {keys:?}, values {values:?}; {shape:?}; {length}");
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Some(ModelStore { store, label: format!("{name} (draft)"), needs_rest, projector: 0, key })
    }

    /// The store for the texts in the context of the model's own block for multi-token prediction. `None` without a
    /// store, and for a model with adapters, because adapters change the hidden states that the block needs.
    pub(crate) fn heads_store(&self, heads: &Heads) -> Option<ModelStore> {
        let adapters = &self.options().adapters;
        if !adapters.lora.is_empty() || !adapters.control_vectors.is_empty() {
            return None;
        }
        let of = self.prompt_store(heads.context.model())?;
        Some(ModelStore { needs_rest: true, projector: 0, key: format!("{}; a block of several tokens", of.key), ..of })
    }

    /// Frees memory of the prompt store if the host's free memory is less than the margin that plans leave.
    pub(crate) fn relieve_host(&self) {
        if let Some(store) = &self.options().prompt_store
            && store.is_opened()
        {
            let host = Host::detect_memory();
            store.give_back(host_margin(&host).saturating_sub(host.available));
        }
    }

    /// A text that identifies the files of the model and of its adapters. If the store has a folder, so that stored
    /// texts outlive the process, the files are identified by their bytes. Otherwise they are identified by their
    /// names, lengths and times.
    fn files_key(&self, store: &PromptStore) -> io::Result<String> {
        let adapters = &self.options().adapters;
        let header = self.header().map_err(io::Error::other)?;
        let shards = header.shards().iter().map(Shard::path);
        let lora = adapters.lora.iter().map(|adapter| &*adapter.path);
        let vectors = adapters.control_vectors.iter().map(|(path, _)| &**path);
        let mut key = String::new();
        for path in shards.chain(lora).chain(vectors) {
            key.push_str(&self.file_key(store, path)?);
            key.push_str("; ");
        }
        let directions: Vec<u32> = adapters.control_vectors.iter().map(|(_, scale)| scale.to_bits()).collect();
        key.push_str(&format!("directions {directions:?} in {:?}", adapters.control_layers));
        Ok(key)
    }

    /// A text that identifies a file. If the store has a folder, it identifies the file by its bytes.
    fn file_key(&self, store: &PromptStore, path: &Path) -> io::Result<String> {
        let stamp = stamp(path)?;
        match store.options().folder {
            Some(_) => store.file_hash(&stamp, || self.hash_of(path, &stamp)),
            None => Ok(stamp),
        }
    }

    /// A number that identifies the projector and its limits for pictures; 0 without a projector.
    fn projector_key(&self, store: &PromptStore) -> io::Result<Id> {
        let Some(path) = self.options().mmproj.as_ref().filter(|_| self.has_projector()) else { return Ok(0) };
        let key = format!("{}; {:?}", self.file_key(store, path)?, self.options().image_max_tokens);
        // 0 means that there is no projector.
        Ok(xxh3_128(key.as_bytes()).max(1))
    }

    /// The hash of the bytes of a file with this stamp. The user's cache keeps the hash until the file changes, because
    /// hashing a large file takes seconds.
    fn hash_of(&self, path: &Path, stamp: &str) -> io::Result<String> {
        let cache = self.options().learn.cache(false);
        if let Some(hash) = cache.as_ref().and_then(|cache| cache.file_hash(stamp)) {
            return Ok(hash);
        }
        let hash = hash(path)?;
        if self::stamp(path)? != stamp {
            return Err(io::Error::other(format!("{} was written while it was read", path.display())));
        }
        if let Some(cache) = cache {
            cache.put_file_hash(stamp, &hash);
        }
        Ok(hash)
    }
}

/// Whether a state has a part that belongs to all of its tokens together: windows and recurrent states are written as a
/// whole.
fn needs_rest(model: &llama_sys::Model) -> bool {
    model.n_swa() > 0 || model.is_recurrent() || model.is_hybrid()
}

/// A text that identifies the formats of a piece's bytes: our format, and llama.cpp's format.
fn versions(format: u32) -> String {
    format!("pieces {format}; llama.cpp {}", llama_sys::build_info().llama_cpp)
}

/// The bytes of the host's memory that a plan leaves free.
pub(crate) fn host_margin(host: &Host) -> u64 {
    Headroom::of_host(host, &PeakSizes::default(), false, 0).margin
}

/// The 128-bit XXH3 hash of a file's bytes.
fn hash(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut chunk) = (File::open(path)?, Xxh3::new(), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(format!("{:032x}", hash.digest128())),
            Ok(bytes) => hash.update(&chunk[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The name, the length and the time of a file, and the file's number on systems that have one.
fn stamp(path: &Path) -> io::Result<String> {
    let path = fs::canonicalize(path)?;
    let there = fs::metadata(&path)?;
    #[cfg(unix)]
    let number = {
        use std::os::unix::fs::MetadataExt;
        (there.dev(), there.ino(), there.ctime(), there.ctime_nsec())
    };
    #[cfg(not(unix))]
    let number = ();
    Ok(format!("{} {} {:?} {number:?}", path.display(), there.len(), there.modified().ok()))
}

#[cfg(test)]
mod tests {
    use super::{PIECE_FORMAT, hash, stamp, versions};
    use crate::Model;
    use crate::store::PromptStore;

    #[test]
    fn texts_of_another_format_of_pieces_or_another_llama_cpp_have_another_key() {
        assert_ne!(versions(PIECE_FORMAT), versions(PIECE_FORMAT + 1));
        let builder = Model::builder(test_support::demo_path()).without_learning();
        let model = builder.prompt_store(PromptStore::new(1 << 20)).load().unwrap();
        let of = model.with_native(|native| model.prompt_store(native)).unwrap().unwrap();
        assert!(of.key.contains(&versions(PIECE_FORMAT)), "{}", of.key);
        assert!(of.key.contains(&llama_sys::build_info().llama_cpp), "{}", of.key);
    }

    #[test]
    fn files_with_other_bytes_have_other_hashes_and_stamps() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        std::fs::write(&one, vec![7; (1 << 20) + 1]).unwrap();
        std::fs::copy(&one, &other).unwrap();
        assert_eq!(hash(&one).unwrap(), hash(&other).unwrap());
        assert_ne!(stamp(&one).unwrap(), stamp(&other).unwrap());
        let mut bytes = vec![7; (1 << 20) + 1];
        bytes[1 << 20] = 8;
        std::fs::write(&other, bytes).unwrap();
        assert_ne!(hash(&one).unwrap(), hash(&other).unwrap());
    }
}
