//! Finds equal models. In: headers, and the first page of each tensor. Out: groups of equal models.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use autoplace_planner::gguf::{Error, Header};
use autoplace_planner::plan::ModelIdentity;
use xxhash_rust::xxh3::Xxh3;

use super::LocalModel;

/// How many bytes of each tensor are read.
const PAGE: u64 = 4096;

/// Groups of equal models. A group consists of the models' indices.
pub(super) fn groups(models: &[LocalModel]) -> Vec<Vec<usize>> {
    let mut by_bytes: BTreeMap<(u64, usize), Vec<usize>> = BTreeMap::new();
    for (index, model) in models.iter().enumerate() {
        by_bytes.entry((model.bytes, model.files.len())).or_default().push(index);
    }
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for of_one_length in by_bytes.into_values().filter(|group| group.len() > 1) {
        let mut same: BTreeMap<u128, Vec<usize>> = BTreeMap::new();
        for index in of_one_length {
            if let Ok(print) = models[index].header().and_then(|header| fingerprint(&header)) {
                same.entry(print).or_default().push(index);
            }
        }
        groups.extend(same.into_values().filter(|group| group.len() > 1));
    }
    groups.sort();
    groups
}

/// XXH3 (128 bits) of the header and of the first page of each tensor.
fn fingerprint(header: &Header) -> Result<u128, Error> {
    let mut hash = Xxh3::new();
    hash.update(ModelIdentity::from_header(header)?.header.as_bytes());
    let open = |path: &Path| File::open(path).map_err(|source| Error::Open { path: path.to_owned(), source });
    let mut files = header.shards().iter().map(|shard| open(shard.path())).collect::<Result<Vec<_>, _>>()?;
    let mut page = [0; PAGE as usize];
    for tensor in header.tensors() {
        let page = &mut page[..tensor.bytes().min(PAGE) as usize];
        let file = &mut files[tensor.shard()];
        file.seek(SeekFrom::Start(tensor.offset())).and_then(|_| file.read_exact(page)).map_err(|source| {
            Error::Read {
                path: header.shards()[tensor.shard()].path().to_owned(),
                at: tensor.offset(),
                needed: page.len() as u64,
                source,
            }
        })?;
        hash.update(page);
    }
    Ok(hash.digest128())
}
