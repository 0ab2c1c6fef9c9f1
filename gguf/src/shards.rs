//! The files of one model: finding the later shards, and checking that they belong together.
//!
//! The rules are those of the constructor of `llama_model_loader` (src/llama-model-loader.cpp), with its three keys:
//! `split.count` (u16) in the first shard, `split.no` (u16, from 0) in every shard, and `split.tensors.count` (i32) in
//! the first shard. Only the first shard's metadata counts.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::header::{self, Inner, MAX_COUNT};
use crate::source::{Source, check_unchanged};
use crate::tensor::Tensor;
use crate::value_type::ValueType;

const SPLIT_COUNT: &str = "split.count";
const SPLIT_NO: &str = "split.no";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// One file of a model; a model that is not split has one.
#[derive(Clone, Debug)]
pub struct Shard {
    path: Arc<Path>,
    file_bytes: u64,
    alignment: u32,
    /// The file's metadata when it was opened; `None` in memory.
    opened: Option<Metadata>,
}

impl Shard {
    fn new(source: &Source, alignment: u32) -> Shard {
        Shard { path: source.path.clone(), file_bytes: source.len, alignment, opened: source.opened().cloned() }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the file, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The alignment of the tensors' data, in bytes.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    pub(crate) fn check_unchanged(&self) -> Result<(), Error> {
        match &self.opened {
            Some(was) => check_unchanged(&self.path, was, fs::metadata(&self.path)),
            None => Ok(()),
        }
    }
}

/// Reads the first shard and then the later shards. `open` returns the later shard with this index (from 1), given the
/// number of shards.
pub(crate) fn assemble(first: Source, mut open: impl FnMut(u16, u16) -> Result<Source, Error>) -> Result<Inner, Error> {
    let (metadata, mut tensors) = header::read(&first)?;
    let mut shards = vec![Shard::new(&first, header::alignment(&metadata)?)];
    let count = metadata.typed(SPLIT_COUNT, ValueType::U16)?.map_or(0, |value| value.bits() as u16);
    if count > 1 {
        let index = metadata.required(SPLIT_NO, ValueType::U16)?.bits() as u16;
        if index != 0 {
            let path = sibling(&first.path, index, 0, count);
            let path = path.map(|path| format!(", {}", path.display()));
            let (number, path) = (u32::from(index) + 1, path.unwrap_or_default());
            let problem = format!("this is shard {number} of {count}: open the first{path}");
            return Err(wrong(&first.path, problem));
        }
        for index in 1..count {
            let source = open(index, count)?;
            let (alignment, own) = read_later(&source, index, count)?;
            shards.push(Shard::new(&source, alignment));
            // The limit of one file also applies to all shards together.
            let all = tensors.len() + own.len();
            if all as u64 > MAX_COUNT {
                let problem = format_args!("{all} tensors in all shards, but there can be at most {MAX_COUNT}");
                return Err(source.malformed(0, problem));
            }
            tensors.extend(own.into_iter().map(|tensor| Tensor { shard: index, ..tensor }));
        }
    }
    let by_name = by_name(&shards, &tensors)?;
    if count > 1 {
        let said = metadata.required(SPLIT_TENSORS, ValueType::I32)?.bits() as i32;
        let found = tensors.len();
        if i64::from(said) != found as i64 {
            let problem = format!("{SPLIT_TENSORS} is {said}, but the shards contain {found} tensors");
            return Err(wrong(&first.path, problem));
        }
    }
    Ok(Inner { metadata, shards, tensors, by_name })
}

/// Checks one file, which may be any shard of a model.
pub(crate) fn check_one(source: &Source) -> Result<(), Error> {
    let (metadata, tensors) = header::read(source)?;
    by_name(&[Shard::new(source, header::alignment(&metadata)?)], &tensors).map(drop)
}

/// Opens a later shard in the folder of the first.
pub(crate) fn open_beside(first: &Path, index: u16, count: u16) -> Result<Source, Error> {
    let path = sibling(first, 0, index, count).ok_or_else(|| {
        let expected = shard_name("", 0, count);
        let problem = format!("one of {count} shards, so its name must end in \"{expected}\"");
        wrong(first, problem)
    })?;
    Source::open(&path).map_err(|error| match error {
        Error::Open { path, source } => Error::ShardMissing { path, index, count, source },
        other => other,
    })
}

/// The path of shard `to`, made from the path of shard `from` (`llama_split_prefix` and `llama_split_path`,
/// src/llama.cpp).
fn sibling(path: &Path, from: u16, to: u16, count: u16) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let prefix = name.strip_suffix(&shard_name("", from, count))?;
    Some(path.with_file_name(shard_name(prefix, to, count)))
}

/// Parses a shard's file name into the common prefix, the index (from 0) and the number of shards; `None` for other
/// names.
pub fn shard_of_name(name: &str) -> Option<(&str, u16, u16)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let (index, count) = (number.parse::<u16>().ok()?.checked_sub(1)?, count.parse().ok()?);
    let is_one = index < count && count > 1 && !prefix.is_empty() && name == shard_name(prefix, index, count);
    is_one.then_some((prefix, index, count))
}

/// The name of a shard, `PREFIX-00001-of-00003.gguf`; `index` counts from 0.
pub fn shard_name(prefix: &str, index: u16, count: u16) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", u32::from(index) + 1)
}

pub(crate) fn wrong(path: &Path, problem: String) -> Error {
    Error::Shards { path: path.to_owned(), problem }
}

/// Reads a later shard's alignment and tensors, and checks that it is the expected shard.
fn read_later(source: &Source, index: u16, count: u16) -> Result<(u32, Vec<Tensor>), Error> {
    let (metadata, tensors) = header::read(source)?;
    let no = metadata.required(SPLIT_NO, ValueType::U16)?.bits() as u16;
    // llama.cpp ignores the count of a later shard. A different count means that the shard belongs to another model.
    let own_count = metadata.typed(SPLIT_COUNT, ValueType::U16)?.map_or(count, |value| value.bits() as u16);
    for (key, found, wanted) in [(SPLIT_NO, no, index), (SPLIT_COUNT, own_count, count)] {
        if found != wanted {
            let problem =
                format!("the key '{key}' is {found}, not {wanted}: a shard of another model, or under a wrong name");
            return Err(wrong(&source.path, problem));
        }
    }
    Ok((header::alignment(&metadata)?, tensors))
}

/// The index of each tensor by its name, over all shards. Names must be unique.
fn by_name(shards: &[Shard], tensors: &[Tensor]) -> Result<HashMap<Arc<str>, usize>, Error> {
    let path = |tensor: &Tensor| shards[tensor.shard()].path();
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        if let Some(first) = by_name.insert(tensor.name.clone(), index) {
            let (name, first) = (&tensor.name, &tensors[first]);
            let (at, file) = (first.at, path(first).display());
            return Err(Error::Malformed {
                path: path(tensor).to_owned(),
                at: tensor.at,
                problem: format!("tensor '{name}' occurs twice, first in {file} at byte {at}"),
            });
        }
    }
    Ok(by_name)
}
