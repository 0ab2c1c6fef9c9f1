//! Small models with random weights, which can be loaded and computed.
//!
//! The files come from [`Sketch`], which leaves a hole for the data. `fill` writes numbers into the hole.

mod blocks;
mod large;

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use autoplace_gguf::Header;

use crate::synthetic::{Dims, Sketch};
pub use crate::synthetic::{computed as all, computed_deep as deep, without_attention};
pub use blocks::{Dice, Random};
pub use large::fill as fill_large;

/// The sizes of most models.
pub const DIMS: Dims = Dims::new([4, 256, 768, 4, 2, 64, 512]);

/// Writes the model's files into `folder`. Returns the path of the first.
pub fn write(sketch: &Sketch, folder: &Path) -> PathBuf {
    let path = sketch.write(folder);
    fill(&path);
    path
}

/// Writes random values into every tensor of a model's files. With these weights, the model computes only finite
/// values.
pub fn fill(path: &Path) {
    let header = Header::open(path).unwrap();
    let mut random = Random::new(1);
    for (number, shard) in header.shards().iter().enumerate() {
        let mut file = OpenOptions::new().write(true).open(shard.path()).unwrap();
        for tensor in header.tensors().filter(|tensor| tensor.shard() == number) {
            let data = random.tensor(tensor.name(), tensor.ty(), tensor.elements());
            assert_eq!(data.len() as u64, tensor.bytes(), "{}", tensor.name());
            file.seek(SeekFrom::Start(tensor.offset())).unwrap();
            file.write_all(&data).unwrap();
        }
    }
}
