//! Writes gigabytes of random weights at the speed of the disk. Large tensors are filled from one random tile for each
//! type.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use autoplace_gguf::{Header, TensorType};

use crate::random_weights::Random;

/// Elements of a tile: a multiple of every type's block size. A tile has some megabytes.
const TILE: u64 = 1 << 22;

/// A tensor's position in its file.
struct Slot<'a> {
    path: &'a Path,
    name: &'a str,
    ty: TensorType,
    elements: u64,
    offset: u64,
    bytes: u64,
}

/// Fills every tensor of a model's files with random values, in place of a hole. The values stay finite through the
/// blocks.
pub fn fill(first: &Path) -> Result<()> {
    let header = Header::open(first)?;
    let shards: Vec<PathBuf> = header.shards().iter().map(|shard| shard.path().to_owned()).collect();
    let slots: Vec<Slot> = header
        .tensors()
        .map(|tensor| Slot {
            path: &shards[tensor.shard()],
            name: tensor.name(),
            ty: tensor.ty(),
            elements: tensor.elements(),
            offset: tensor.offset(),
            bytes: tensor.bytes(),
        })
        .collect();
    let mut tiles: Vec<(TensorType, Vec<u8>)> = Vec::new();
    for slot in slots.iter().filter(|slot| slot.elements > TILE) {
        if tiles.iter().all(|(ty, _)| *ty != slot.ty) {
            tiles.push((slot.ty, Random::new(7).tensor("tile", slot.ty, TILE)));
        }
    }
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let tile = tiles.iter().find(|(ty, _)| *ty == slot.ty);
                        let tile = tile.filter(|_| slot.elements > TILE);
                        write(slot, tile.map(|(_, tile)| tile.as_slice()))
                            .with_context(|| format!("cannot write {} of {}", slot.name, slot.path.display()))?;
                    }
                    Ok(())
                })
            })
            .collect();
        writers
            .into_iter()
            .try_for_each(|writer| writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Writes one tensor, with numbers of its own or with repetitions of a tile.
fn write(slot: &Slot, tile: Option<&[u8]>) -> Result<()> {
    let mut file: File = OpenOptions::new().write(true).open(slot.path)?;
    file.seek(SeekFrom::Start(slot.offset))?;
    let Some(tile) = tile else {
        let seed = slot.offset ^ slot.bytes;
        file.write_all(&Random::new(seed).tensor(slot.name, slot.ty, slot.elements))?;
        return Ok(());
    };
    let mut left = slot.bytes;
    while left > 0 {
        let piece = left.min(tile.len() as u64);
        file.write_all(&tile[..usize::try_from(piece)?])?;
        left -= piece;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use autoplace_gguf::{Builder, Header, TensorType};

    use super::{TILE, fill};

    #[test]
    fn a_tensor_larger_than_a_tile_is_filled_to_its_last_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.gguf");
        // The tensor's length is not a multiple of the tile's length.
        let rows = 2 * TILE / 256 + 3;
        Builder::new("llama")
            .tensor("token_embd.weight", TensorType::Q4_K, &[256, rows])
            .tensor("output_norm.weight", TensorType::F32, &[256])
            .write_sparse(&path)
            .unwrap();
        fill(&path).unwrap();
        let header = Header::open(&path).unwrap();
        let file = std::fs::read(&path).unwrap();
        for tensor in header.tensors() {
            let end = usize::try_from(tensor.offset() + tensor.bytes()).unwrap();
            assert!(file[end - 16..end].iter().any(|&byte| byte != 0), "{}", tensor.name());
        }
        let last = header.tensors().map(|tensor| tensor.offset() + tensor.bytes()).max();
        assert_eq!(file.len() as u64, last.unwrap().next_multiple_of(32));
    }
}
