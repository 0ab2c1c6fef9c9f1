//! What tells a model's weights from those of another with the same header: of a fine-tune, say.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use super::unreadable;
use crate::generate::error::Error;
use crate::gguf::{Header, Tensor};
use crate::load::Unreadable;

/// Bytes that are looked at of each tensor: a page of its middle, so that it takes milliseconds for the largest model.
const SAMPLE: u64 = 4096;

/// XXH3 over a sample of each tensor, in hexadecimal.
pub(crate) fn fingerprint(header: &Header) -> Result<String, Error> {
    let mut hash = Xxh3::new();
    let mut bytes = Vec::with_capacity(SAMPLE as usize);
    for (index, shard) in header.shards().iter().enumerate() {
        let of_it = header.tensors().filter(|tensor| tensor.shard() == index);
        let failed = |error| unreadable(Unreadable::new(shard.path(), error));
        sample(shard.path(), of_it, &mut bytes, &mut hash).map_err(failed)?;
    }
    Ok(format!("{:032x}", hash.digest128()))
}

fn sample<'a>(
    path: &Path,
    tensors: impl Iterator<Item = &'a Tensor>,
    bytes: &mut Vec<u8>,
    hash: &mut Xxh3,
) -> io::Result<()> {
    let mut file = File::open(path)?;
    for tensor in tensors {
        let middle = tensor.bytes().saturating_sub(SAMPLE) / 2;
        file.seek(SeekFrom::Start(tensor.offset().saturating_add(middle)))?;
        bytes.clear();
        let length = SAMPLE.min(tensor.bytes());
        file.by_ref().take(length).read_to_end(bytes)?;
        hash.update(&*bytes);
    }
    Ok(())
}
