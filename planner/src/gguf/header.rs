//! The header of a model: opening it, and walking over what it says.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::error::Error;
use super::metadata::{self, Metadata};
use super::shards::{self, Shard, assemble, open_beside};
use super::source::Source;
use super::tensor::Tensor;
use super::value::Value;

/// The path of a header that is not from a file.
const MEMORY: &str = "<memory>";

/// What a GGUF model says of itself: its metadata and its tensors, over all its shards.
///
/// Clones share everything. The first file stays open, because arrays are read from it on demand.
#[doc(alias = "gguf_context")]
#[derive(Clone)]
pub struct Header {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    /// The first shard's; the others' only says that they are shards.
    pub(super) metadata: Metadata,
    pub(super) shards: Vec<Shard>,
    pub(super) tensors: Vec<Tensor>,
    /// Indices of `tensors`, ordered by name.
    pub(super) by_name: Vec<u32>,
}

impl Header {
    /// Reads the header of the model at `path`; if that is the first of several shards, of all of them.
    ///
    /// The shards lie beside the first and are named `NAME-00001-of-00003.gguf`, as llama.cpp requires.
    ///
    /// # Errors
    ///
    /// Any [`Error`]: the file cannot be read, is no GGUF file of version 2 or 3 in little-endian order, is damaged or
    /// incomplete, or is not the first shard.
    #[doc(alias = "gguf_init_from_file")]
    pub fn open(path: impl AsRef<Path>) -> Result<Header, Error> {
        let path = path.as_ref();
        let open = |index, count| open_beside(path, index, count);
        Ok(Self::new(assemble(Source::open(path)?, open)?))
    }

    /// Reads the header of a whole GGUF file in memory, tensor data included.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); a split model gives [`Error::Shards`].
    #[doc(alias = "gguf_init_from_buffer")]
    pub fn parse(bytes: impl Into<Arc<[u8]>>) -> Result<Header, Error> {
        Self::parse_prefix(bytes, 0)
    }

    /// Reads the header of a file of `file_bytes` bytes of which only the beginning is in memory:
    /// downloaded, or made up.
    ///
    /// `file_bytes` is at least the length of `bytes`, whatever is given.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and [`Error::Truncated`] if the header is not in memory as a whole; a split model gives
    /// [`Error::Shards`].
    pub fn parse_prefix(bytes: impl Into<Arc<[u8]>>, file_bytes: u64) -> Result<Header, Error> {
        Self::parse_shards([(bytes.into(), file_bytes)])
    }

    /// Reads the header of a model of one or several shards, given in order: the beginning of each file and
    /// its whole length.
    ///
    /// # Errors
    ///
    /// As [`parse_prefix`](Self::parse_prefix); [`Error::Shards`] if the model has another number of shards.
    pub fn parse_shards(
        shards: impl IntoIterator<Item = (Arc<[u8]>, u64)>,
    ) -> Result<Header, Error> {
        let given: Vec<_> = shards.into_iter().collect();
        Self::in_memory(MEMORY, &given)
    }

    /// Reads the header of a model in memory, which errors call `name`.
    pub(super) fn in_memory(name: &str, given: &[(Arc<[u8]>, u64)]) -> Result<Header, Error> {
        let source = |index: usize| {
            let name = match given.len() {
                0 | 1 => name.to_owned(),
                _ => format!("<memory, shard {}>", index + 1),
            };
            let (bytes, file_bytes) = given.get(index).cloned().unwrap_or_default();
            Source::memory(&name, bytes, file_bytes)
        };
        let wrong_number = |count| {
            let given = given.len();
            let problem = format!("a model of {count} shards, but {given} are given");
            shards::wrong(Path::new(name), problem)
        };
        let inner = assemble(source(0), |index, count| {
            if given.len() == usize::from(count) {
                Ok(source(index.into()))
            } else {
                Err(wrong_number(count))
            }
        })?;
        if given.len() > inner.shards.len() {
            return Err(wrong_number(1));
        }
        Ok(Self::new(inner))
    }

    fn new(inner: Inner) -> Header {
        Header {
            inner: Arc::new(inner),
        }
    }

    /// The file that was opened, or `<memory>`.
    pub fn path(&self) -> &Path {
        self.inner.metadata.source.path()
    }

    /// Whether the path is not that of a file: `<memory>` or `<builder>`.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.path().to_string_lossy().starts_with('<')
    }

    /// The files of the model, in order; at least one.
    pub fn shards(&self) -> &[Shard] {
        &self.inner.shards
    }

    /// The length of all files together, in bytes.
    pub fn file_bytes(&self) -> u64 {
        let lengths = self.inner.shards.iter().map(Shard::file_bytes);
        lengths.fold(0, u64::saturating_add)
    }

    /// The metadata in the file's order. Of a split model it is the first shard's, as in llama.cpp.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.inner.metadata.iter()
    }

    /// The value of a key.
    #[doc(alias = "gguf_find_key")]
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.inner.metadata.get(key)
    }

    /// The tensors in the order of their data, shard after shard.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.inner.tensors.iter()
    }

    /// The tensor with this name, in whatever shard.
    #[doc(alias = "gguf_find_tensor")]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        let Inner {
            tensors, by_name, ..
        } = &*self.inner;
        metadata::find(tensors, by_name, Tensor::name, name)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("path", &self.path())
            .field("keys", &self.metadata().len())
            .field("tensors", &self.inner.tensors.len())
            .field("shards", &self.inner.shards.len())
            .finish()
    }
}
