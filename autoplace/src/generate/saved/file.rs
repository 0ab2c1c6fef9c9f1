//! A saved cache as a file: what it is of, llama.cpp's state, and a checksum over all of it.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `autoplK3` |
//! | 8 | length of the description |
//! | | the description, in JSON, with the tokens |
//! | | the state, as llama.cpp writes it |
//! | 16 | XXH3 (128 bits) of everything before |
//!
//! Numbers are little-endian. Nothing is read before the checksum is right.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Take, Write};
use std::path::Path;
use std::sync::Arc;

use llama_sys::Token;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::generate::error::SavedCacheError;
use crate::load::Added;
use crate::memory::KvType;
use crate::plan::ModelIdentity;

/// Its last character is the version of the format.
const MAGIC: &[u8; 8] = b"autoplK3";
/// Magic, and the length of the description.
const HEAD: u64 = 8 + 8;
const CHECKSUM: u64 = 16;
/// What is read or written at once.
const BUFFER: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) model: ModelIdentity,
    /// What tells its weights from others with the same header.
    pub(super) weights: String,
    pub(super) layout: Layout,
    /// Adapters that it was computed with.
    pub(super) adapters: Added,
    /// The tokens of the text that others can go on from.
    pub(super) tokens: Vec<Token>,
    /// Positions that the state holds: as many as tokens, or more where a shift has moved some.
    pub(super) positions: usize,
    /// Bytes of the state.
    pub(super) state: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layout {
    pub(super) type_k: KvType,
    pub(super) type_v: KvType,
    /// V is transposed without it.
    pub(super) flash_attn: bool,
    /// Caches that the sequences have: one for all with `kv_unified`.
    pub(super) streams: u32,
}

/// A file whose checksum is right.
pub(super) struct Opened {
    pub(super) description: Description,
    pub(super) state: Take<BufReader<File>>,
    /// Of the file.
    pub(super) bytes: u64,
}

/// What is the matter where this cannot be done with a file.
pub(super) fn cannot(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Box<SavedCacheError> + Copy {
    move |error| Box::new(SavedCacheError::Io { path: path.to_owned(), doing, error: Arc::new(error) })
}

/// Writes a file beside its place, and puts it there when it is whole. `state` writes as many bytes as the description
/// says. Returns the bytes of the file.
pub(super) fn write<E: From<Box<SavedCacheError>>>(
    path: &Path,
    description: &Description,
    state: impl FnOnce(&mut dyn Write) -> Result<u64, E>,
) -> Result<u64, E> {
    let failed = cannot("write", path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file =
        tempfile::Builder::new().prefix(".autoplace-").tempfile_in(folder.unwrap_or(Path::new("."))).map_err(failed)?;
    let mut to = Hashed { of: BufWriter::with_capacity(BUFFER, file), hash: Xxh3::new() };
    let json = serde_json::to_vec(description).map_err(io::Error::from).map_err(failed)?;
    let head = [MAGIC, &(json.len() as u64).to_le_bytes(), &*json].concat();
    to.write_all(&head).map_err(failed)?;
    let written = state(&mut to)?;
    if written != description.state {
        let reason = format!("the state is {written} bytes, and was to be {}", description.state);
        return Err(failed(io::Error::other(reason)).into());
    }
    let checksum = to.hash.digest128().to_le_bytes();
    let mut file = to.of;
    file.write_all(&checksum).map_err(failed)?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(head.len() as u64 + written + CHECKSUM)
}

/// Writes on, and takes the checksum of what it has written.
struct Hashed<W> {
    of: W,
    hash: Xxh3,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.of.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.of.flush()
    }
}

/// Opens a file, and checks everything that can be checked without a model.
pub(super) fn open(path: &Path) -> Result<Opened, Box<SavedCacheError>> {
    let failed = cannot("read", path);
    let path = || path.to_owned();
    let file = File::open(path()).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let bytes = metadata.len();
    let mut file = BufReader::with_capacity(BUFFER, file);
    let mut head = Vec::new();
    if metadata.is_file() {
        file.by_ref().take(HEAD).read_to_end(&mut head).map_err(failed)?;
    }
    if !head.starts_with(MAGIC) {
        return Err(Box::new(SavedCacheError::NotSaved { path: path() }));
    }
    let end = bytes.saturating_sub(CHECKSUM);
    let mut hash = Xxh3::new();
    hash.update(&head);
    io::copy(&mut file.by_ref().take(end.saturating_sub(HEAD)), &mut hash).map_err(failed)?;
    let mut checksum = Vec::new();
    file.read_to_end(&mut checksum).map_err(failed)?;
    if hash.digest128().to_le_bytes() != *checksum {
        return Err(Box::new(SavedCacheError::Altered { path: path(), end }));
    }
    let malformed = |reason: String| Box::new(SavedCacheError::Malformed { path: path(), reason });
    let described = head.last_chunk().copied().map_or(u64::MAX, u64::from_le_bytes);
    // As its checksum is where it should be, there is a head before it.
    let Some(state) = (end - HEAD).checked_sub(described) else {
        return Err(malformed(format!("its description is {described} bytes long")));
    };
    file.seek(SeekFrom::Start(HEAD)).map_err(failed)?;
    let mut json = Vec::new();
    file.by_ref().take(described).read_to_end(&mut json).map_err(failed)?;
    let description: Description = serde_json::from_slice(&json).map_err(|error| malformed(error.to_string()))?;
    if description.state != state {
        return Err(malformed(format!("{} bytes of state, in {state} bytes", description.state)));
    }
    let tokens = description.tokens.len();
    if tokens == 0 || tokens > description.positions {
        return Err(malformed(format!("{tokens} tokens in {} positions", description.positions)));
    }
    Ok(Opened { description, state: file.take(state), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_on_the_way_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.kv");
        let header = crate::gguf::Builder::new("llama").header().unwrap();
        let description = Description {
            model: ModelIdentity::of(&header).unwrap(),
            weights: "1a".into(),
            layout: Layout { type_k: KvType::F16, type_v: KvType::Q8_0, flash_attn: true, streams: 1 },
            adapters: Added::default(),
            tokens: vec![7, 8, -9],
            positions: 5,
            state: 6,
        };
        let write = |state: &[u8], outcome: Result<(), &str>| {
            write(&path, &description, |to| {
                to.write_all(state).unwrap();
                let failed = |reason: &str| Box::new(SavedCacheError::NotSaved { path: reason.into() });
                outcome.map(|()| state.len() as u64).map_err(failed)
            })
        };
        write(b"states", Ok(())).unwrap();
        let before = std::fs::read(&path).unwrap();
        let short = write(b"sta", Ok(())).unwrap_err();
        assert!(short.to_string().contains("was to be 6"), "{short}");
        write(b"states", Err("the device is gone")).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let mut opened = open(&path).unwrap();
        assert_eq!((opened.description, opened.bytes), (description, before.len() as u64));
        let mut state = String::new();
        opened.state.read_to_string(&mut state).unwrap();
        assert_eq!(state, "states");
    }
}
