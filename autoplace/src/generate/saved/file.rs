//! A saved cache as a file: what it is of, its tokens, llama.cpp's state, and a checksum over all of it.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `autoplKV` |
//! | 4 | version: 2 |
//! | 4 | length of the description |
//! | 8 | length of the file |
//! | | the description, in JSON |
//! | 4 each | the tokens |
//! | | the state, as llama.cpp writes it |
//! | 16 | XXH3 (128 bits) of everything before |
//!
//! Numbers are little-endian. Nothing is read before the checksum is right, and no length is believed that
//! the file has not.

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

const MAGIC: &[u8; 8] = b"autoplKV";
const VERSION: u32 = 2;
/// Magic, version, and the two lengths.
const HEAD: u64 = 8 + 4 + 4 + 8;
const CHECKSUM: u64 = 16;
/// What is read or written at once.
const BUFFER: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) model: ModelIdentity,
    /// What tells its weights from others with the same header.
    pub(super) weights: String,
    pub(super) layout: Layout,
    /// Adapters and control vectors that it was computed with.
    pub(super) adapters: Added,
    /// Tokens of the text that others can go on from.
    pub(super) tokens: u64,
    /// Positions that the state holds: as many, or more where a shift has moved some.
    pub(super) positions: u64,
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
    pub(super) tokens: Vec<Token>,
    /// The file, before the state.
    file: File,
}

impl Opened {
    pub(super) fn into_state(self) -> BufReader<Take<File>> {
        BufReader::with_capacity(BUFFER, self.file.take(self.description.state))
    }
}

/// What is the matter where this cannot be done with a file.
pub(super) fn cannot(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Box<SavedCacheError> + Copy {
    move |error| Box::new(SavedCacheError::Io { path: path.to_owned(), doing, error: Arc::new(error) })
}

/// Writes a file beside its place, and puts it there when it is whole. `state` writes as many bytes as the
/// description says.
pub(super) fn write<E: From<Box<SavedCacheError>>>(
    path: &Path,
    description: &Description,
    tokens: &[Token],
    state: impl FnOnce(&mut dyn Write) -> Result<u64, E>,
) -> Result<u64, E> {
    let failed = cannot("write", path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file =
        tempfile::Builder::new().prefix(".autoplace-").tempfile_in(folder.unwrap_or(Path::new("."))).map_err(failed)?;
    let mut to = Checked::new(BufWriter::with_capacity(BUFFER, file));
    let json = serde_json::to_vec(description).map_err(io::Error::from).map_err(failed)?;
    let in_tokens = tokens.len() as u64 * 4;
    let bytes = HEAD + json.len() as u64 + in_tokens + description.state + CHECKSUM;
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((json.len() as u32).to_le_bytes());
    head.extend(bytes.to_le_bytes());
    head.extend(json);
    to.write_all(&head).map_err(failed)?;
    for token in tokens {
        to.write_all(&token.to_le_bytes()).map_err(failed)?;
    }
    let written = state(&mut to);
    if let Some(error) = to.failed.take() {
        return Err(failed(error).into());
    }
    let written = written?;
    if written != description.state {
        let reason = format!("the state is {written} bytes, and was to be {}", description.state);
        return Err(failed(io::Error::other(reason)).into());
    }
    let checksum = to.hash.digest128().to_le_bytes();
    let mut file = to.of;
    let ended = file.write_all(&checksum).and_then(|()| file.flush());
    ended.map_err(failed)?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(bytes)
}

/// Writes on, and takes the checksum of what it has written.
struct Checked<W> {
    of: W,
    hash: Xxh3,
    /// What became of it where that was not well: who writes may say it in other words.
    failed: Option<io::Error>,
}

impl<W> Checked<W> {
    fn new(of: W) -> Self {
        Self { of, hash: Xxh3::new(), failed: None }
    }
}

impl<W: Write> Write for Checked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.of.write(bytes) {
            Ok(written) => {
                self.hash.update(&bytes[..written]);
                Ok(written)
            }
            Err(error) => {
                let copy = match error.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::from(error.kind()),
                };
                if error.kind() != io::ErrorKind::Interrupted {
                    self.failed = Some(copy);
                }
                Err(error)
            }
        }
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
    if !metadata.is_file() {
        return Err(Box::new(SavedCacheError::NotSaved { path: path() }));
    }
    let found = metadata.len();
    let mut file = BufReader::with_capacity(BUFFER, file);
    let mut head = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut head).map_err(failed)?;
    if !head.starts_with(MAGIC) {
        return Err(Box::new(SavedCacheError::NotSaved { path: path() }));
    }
    let version = bytes_at(&head, 8).map(u32::from_le_bytes);
    let described = bytes_at(&head, 12).map(u32::from_le_bytes);
    let needed = bytes_at(&head, 16).map(u64::from_le_bytes);
    let (Some(version), Some(described), Some(needed)) = (version, described, needed) else {
        return Err(Box::new(SavedCacheError::Length { path: path(), needed: HEAD + CHECKSUM, found }));
    };
    if version != VERSION {
        return Err(Box::new(SavedCacheError::Version { path: path(), needed: VERSION, found: version }));
    }
    if needed != found || found < HEAD + CHECKSUM {
        return Err(Box::new(SavedCacheError::Length { path: path(), needed: needed.max(HEAD + CHECKSUM), found }));
    }
    let end = found - CHECKSUM;
    let mut hash = Xxh3::new();
    hash.update(&head);
    let hashed = io::copy(&mut file.by_ref().take(end - HEAD), &mut hash).map_err(failed)?;
    let mut checksum = [0; CHECKSUM as usize];
    file.read_exact(&mut checksum).map_err(failed)?;
    if hashed != end - HEAD || hash.digest128().to_le_bytes() != checksum {
        return Err(Box::new(SavedCacheError::Altered { path: path(), end }));
    }
    read(&path(), file.into_inner(), u64::from(described), end - HEAD)
}

/// Reads what is between the head and the checksum, which is right: so many bytes, the first of them the description.
fn read(path: &Path, mut file: File, described: u64, bytes: u64) -> Result<Opened, Box<SavedCacheError>> {
    let failed = cannot("read", path);
    let malformed = |field: &'static str, offset, reason| {
        let (path, field) = (path.to_owned(), field.into());
        Box::new(SavedCacheError::Malformed { path, field, offset, reason })
    };
    if described > bytes {
        let reason = format!("{described} of {bytes} bytes");
        return Err(malformed("the length of the description", 12, reason));
    }
    file.seek(SeekFrom::Start(HEAD)).map_err(failed)?;
    // Not longer than the file.
    let mut json = Vec::new();
    let mut buffered = BufReader::with_capacity(BUFFER, &mut file);
    buffered.by_ref().take(described).read_to_end(&mut json).map_err(failed)?;
    let unread = |reason: String| malformed("the description", HEAD, reason);
    let text = str::from_utf8(&json).map_err(|error| unread(error.to_string()))?;
    let description: Description = serde_json::from_str(text).map_err(|error| unread(error.to_string()))?;
    let at = HEAD + described;
    let rest = bytes - described;
    let in_tokens = description.tokens.checked_mul(4);
    let needed = in_tokens.and_then(|bytes| bytes.checked_add(description.state));
    let (Some(in_tokens), true) = (in_tokens, needed == Some(rest)) else {
        let reason = format!("{} tokens and {} bytes of state, in {rest} bytes", description.tokens, description.state);
        return Err(malformed("the tokens", at, reason));
    };
    if description.tokens == 0 || description.tokens > description.positions {
        let reason = format!("{} tokens in {} positions", description.tokens, description.positions);
        return Err(malformed("the tokens", at, reason));
    }
    let mut tokens = Vec::new();
    buffered.by_ref().take(in_tokens).read_to_end(&mut tokens).map_err(failed)?;
    let tokens = tokens.chunks_exact(4).filter_map(|four| Some(Token::from_le_bytes(four.try_into().ok()?))).collect();
    file.seek(SeekFrom::Start(at + in_tokens)).map_err(failed)?;
    Ok(Opened { description, tokens, file })
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        let header = crate::gguf::Builder::new("llama").header().unwrap();
        Description {
            model: ModelIdentity::of(&header).unwrap(),
            weights: "1a".into(),
            layout: Layout { type_k: KvType::F16, type_v: KvType::Q8_0, flash_attn: true, streams: 1 },
            adapters: Added::default(),
            tokens: 3,
            positions: 5,
            state: 6,
        }
    }

    fn write_state(path: &Path, state: &[u8]) -> Result<u64, Box<SavedCacheError>> {
        write(path, &description(), &[7, 8, -9], |to| {
            to.write_all(state).unwrap();
            Ok(state.len() as u64)
        })
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.kv");
        let bytes = write_state(&path, b"a state").unwrap_err();
        assert!(bytes.to_string().contains("was to be 6"), "{bytes}");
        let bytes = write_state(&path, b"states").unwrap();
        assert_eq!(bytes, std::fs::metadata(&path).unwrap().len());
        let opened = open(&path).unwrap();
        assert_eq!(opened.description, description());
        assert_eq!(opened.tokens, [7, 8, -9]);
        let mut state = String::new();
        opened.into_state().read_to_string(&mut state).unwrap();
        assert_eq!(state, "states");
    }

    #[test]
    fn what_fails_on_the_way_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.kv");
        write_state(&path, b"states").unwrap();
        let before = std::fs::read(&path).unwrap();
        let failed = write(&path, &description(), &[7, 8, -9], |to| {
            to.write_all(b"sta").unwrap();
            Err(Box::new(SavedCacheError::NotSaved { path: "the device is gone".into() }))
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_length_that_the_file_has_not_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.kv");
        write_state(&path, b"states").unwrap();
        let good = std::fs::read(&path).unwrap();
        let sealed = |mut bytes: Vec<u8>| {
            let end = bytes.len() - CHECKSUM as usize;
            let checksum = xxhash_rust::xxh3::xxh3_128(&bytes[..end]).to_le_bytes();
            bytes[end..].copy_from_slice(&checksum);
            std::fs::write(&path, bytes).unwrap();
            open(&path).map(drop).unwrap_err().to_string()
        };
        let mut long = good.clone();
        long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(sealed(long).contains("byte 12: 4294967295 of"));
        let key = b"\"tokens\":";
        let at = good.windows(key.len()).position(|it| it == key).unwrap() + key.len();
        let mut many = good.clone();
        many[at] = b'9';
        assert!(sealed(many).contains("9 tokens and 6 bytes of state, in 18 bytes"));
        let mut none = good;
        none[24] = b'[';
        assert!(sealed(none).contains("the description at byte 24"));
    }
}
