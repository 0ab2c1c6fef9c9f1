//! Reads the headers of a repository's models. The models themselves are not fetched. In: ranges of files. Out:
//! [`Header`]s.
//!
//! A header has 5 to 15 MB. Nearly all of it is the vocabulary, which is the same in all quantisations of a repository.
//! The first header is read completely. Of every other header, only those parts are read that come before, between and
//! after the arrays of the vocabulary. The arrays are taken from the first header.
//!
//! This is done only if all of the following is true. The first large array has the same key, element type and length.
//! At least [`BESIDE`] bytes from its first element on are the same as in the first header. The bytes on both sides of
//! each array's end are the same too. And the result can be parsed. If any of this is not true, the header is read
//! completely. The other bytes of the arrays are not checked. But plans do not read them: they only count tokens.

use std::ops::Range;
use std::sync::Arc;

use autoplace_planner::gguf::{self, Header, Value, ValueType};

use crate::error::Error;
use crate::http::Http;
use crate::remote::Remote;
use crate::repository::Candidate;

/// The number of bytes that are read of a header at first. Without the vocabulary, headers have 10 to 100 KiB.
const FIRST: u64 = 1 << 20;

/// The number of bytes that are read at first of a later shard, which has no metadata.
const FIRST_OF_SHARD: u64 = 256 << 10;

/// Maximum number of bytes of a header on a hub. The longest headers that are known have 20 MB.
const MAX_HEADER: u64 = 256 << 20;

/// How many bytes must be the same on each side of a range that is skipped.
const BESIDE: u64 = 4 << 10;

/// An array with fewer elements than this is read together with what surrounds it.
const FEW: u64 = 2048;

/// By how many bytes the metadata and the tensor lists of two quantisations may differ in length.
const SLACK: u64 = 32 << 10;

/// The large arrays of a header that was read completely.
pub(crate) struct Vocabulary {
    bytes: Arc<[u8]>,
    /// From the first element of the first large array to the end of the last one.
    arrays: Range<u64>,
    /// The ranges between the arrays. Each begins at the end of one array, and ends at the first element of the next.
    between: Vec<Range<u64>>,
    /// The bytes before the first element of the first array: the array's key, its type, and its number of elements.
    entry: Vec<u8>,
    header_bytes: u64,
}

/// Reads the header of a model. `known` contains the vocabulary of another model in the repository. If it is `None`,
/// the vocabulary of this model is stored there.
pub(crate) fn read(http: &Http, of: &Candidate, known: &mut Option<Vocabulary>) -> Result<Header, Error> {
    let mut shards: Vec<(Arc<[u8]>, u64)> = Vec::new();
    for file in &of.files {
        let mut remote = Remote::new(http, &of.place, file);
        let (first, vocabulary) = if shards.is_empty() { (FIRST, known.as_ref()) } else { (FIRST_OF_SHARD, None) };
        let spliced = vocabulary.map_or(Ok(None), |vocabulary| vocabulary.splice(&mut remote))?;
        let bytes = spliced.map_or_else(|| whole(&mut remote, first), Ok)?;
        shards.push((bytes.into(), file.bytes));
    }
    let bytes = shards.first().map(|(bytes, _)| bytes.clone()).unwrap_or_default();
    let wrong = |source| Error::Header { file: of.shown(&of.files[0].name), source };
    let header = Header::parse_shards(shards).map_err(wrong)?;
    if known.is_none() {
        *known = Vocabulary::from_header(&header, bytes);
    }
    Ok(header)
}

/// Reads more and more of a file's beginning, until it contains the whole header.
fn whole(remote: &mut Remote<'_>, first: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut more = first;
    loop {
        let at = bytes.len() as u64;
        bytes.extend(remote.read(at..at + more)?);
        let all = bytes.len() as u64 == remote.file.bytes;
        if all || is_whole(&bytes, remote.file.bytes) {
            return Ok(bytes);
        }
        more = (bytes.len() as u64 / 2).max(2 << 20);
        if bytes.len() as u64 + more > MAX_HEADER {
            let problem = format!("its header has more than {MAX_HEADER} bytes");
            return Err(Error::Answer { url: remote.shown(), problem });
        }
    }
}

/// Whether these bytes contain the whole header. The header of a single shard counts as whole, although a shard is not
/// a model.
fn is_whole(bytes: &[u8], file_bytes: u64) -> bool {
    let header = Header::parse_shards([(Arc::from(bytes), file_bytes)]);
    !matches!(header, Err(gguf::Error::Truncated { .. }))
}

impl Vocabulary {
    /// Finds the large arrays; `None` if nothing would be saved by taking them from this header.
    fn from_header(header: &Header, bytes: Arc<[u8]>) -> Option<Self> {
        let mut arrays: Vec<(Range<u64>, Vec<u8>)> = Vec::new();
        for (key, value) in header.metadata() {
            let Value::Array(array) = value else { continue };
            if array.len() < FEW {
                continue;
            }
            let mut entry = (key.len() as u64).to_le_bytes().to_vec();
            entry.extend(key.as_bytes());
            entry.extend(ValueType::Array.id().to_le_bytes());
            entry.extend(array.element_type().id().to_le_bytes());
            entry.extend(array.len().to_le_bytes());
            let from = arrays.last().map_or(0, |(last, _)| last.end as usize);
            let at = from + find(bytes.get(from..)?, &entry)? + entry.len();
            let end = at + array.raw_bytes().ok()?.len();
            arrays.push((at as u64..end as u64, entry));
        }
        let all = arrays.first()?.0.start..arrays.last()?.0.end;
        if all.end - all.start < FIRST / 2 {
            return None;
        }
        let between = arrays.windows(2).map(|pair| pair[0].0.end..pair[1].0.start).collect();
        let in_first = header.tensors().filter(|tensor| tensor.shard() == 0);
        let data = in_first.map(gguf::Tensor::offset).min().unwrap_or(bytes.len() as u64);
        let header_bytes = data.clamp(all.end, (bytes.len() as u64).max(all.end));
        Some(Self { bytes, arrays: all, between, entry: arrays.swap_remove(0).1, header_bytes })
    }

    /// The header of another file, into which these arrays are put; `None` if the file's arrays are different.
    fn splice(&self, remote: &mut Remote<'_>) -> Result<Option<Vec<u8>>, Error> {
        let Range { start, end } = self.arrays;
        let mut bytes = remote.read(0..start + (FIRST / 16))?;
        let Some(at) = find(&bytes, &self.entry) else { return Ok(None) };
        let at = (at + self.entry.len()) as u64;
        let there = |here: u64| here - start + at;
        if !self.has(start, &bytes[at as usize..], BESIDE) {
            return Ok(None);
        }
        for gap in &self.between {
            let window = gap.start - BESIDE.min(gap.start - start)..(gap.end + BESIDE).min(end);
            let found = remote.read(there(window.start)..there(window.end))?;
            if !self.has(window.start, &found, window.end - window.start) {
                return Ok(None);
            }
        }
        let tail = end - BESIDE;
        let mut more = self.header_bytes - tail + SLACK;
        let mut rest = remote.read(there(tail)..there(tail) + more)?;
        if !self.has(tail, rest.get(..BESIDE as usize).unwrap_or_default(), BESIDE) {
            return Ok(None);
        }
        bytes.truncate(at as usize);
        bytes.extend(&self.bytes[start as usize..tail as usize]);
        loop {
            bytes.append(&mut rest);
            let have = bytes.len() as u64;
            let is_short = have < remote.file.bytes && have <= MAX_HEADER;
            match Header::parse_shards([(Arc::from(&bytes[..]), remote.file.bytes)]) {
                Err(gguf::Error::Truncated { .. }) if is_short => {}
                // A single shard is not a model, but its header is whole.
                Ok(_) | Err(gguf::Error::Shards { .. }) => return Ok(Some(bytes)),
                Err(_) => return Ok(None),
            }
            more *= 2;
            rest = remote.read(have..have + more)?;
        }
    }

    /// Whether `bytes` has at least `least` bytes, and they are the same as the bytes from `at` on in the range of the
    /// arrays.
    fn has(&self, at: u64, bytes: &[u8], least: u64) -> bool {
        let here = &self.bytes[at as usize..self.arrays.end as usize];
        let length = bytes.len().min(here.len());
        length as u64 >= least && bytes[..length] == here[..length]
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
