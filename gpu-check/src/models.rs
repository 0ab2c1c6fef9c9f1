//! The models of the checks, which have real shapes and random weights.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use autoplace::gguf::{Header, Tensor, TensorType as T};
use autoplace::profile::ModelProfile;

use crate::setting::{Setting, Size};
use test_support::dims::{self, Dims, Mixture};
use test_support::random_weights::{DIMS, fill_large};
use test_support::synthetic::Sketch;
use test_support::synthetic::block::{Better, Block, Feed, QkNorms};

/// A small model for the first check on a card.
const TINY: Dims = Dims { n_layer: 8, n_embd: 768, n_ff: 2048, n_head: 12, n_head_kv: 4, head_dim: 64, n_vocab: 32000 };

/// Llama 3.2.
const LLAMA_3B: Dims = Dims { n_layer: 28, n_embd: 3072, n_ff: 8192, n_head: 24, ..dims::LLAMA_8B };

/// Dense models and mixtures of experts from 0.1 to 60 GB, the smallest first.
fn of_real_size() -> Vec<Sketch> {
    vec![
        dense("0.1 GB Q8_0", TINY, T::Q8_0),
        dense("1B Q4_K", dims::LLAMA_1B, T::Q4_K),
        dense("8B Q4_K", dims::LLAMA_8B, T::Q4_K),
        dense("3B F16", LLAMA_3B, T::F16),
        dense("8B Q8_0", dims::LLAMA_8B, T::Q8_0),
        mixture("30B A3B Q4_K", dims::QWEN3_30B_A3B, T::Q4_K),
        dense("70B Q4_K", dims::LLAMA_70B, T::Q4_K),
        mixture("60 GB of experts Q4_K", LARGE, T::Q4_K),
    ]
}

/// A model of 60 GB at 4.8 bits. It has 32 blocks with Llama's attention and 128 experts as wide as those of
/// gpt-oss-120b.
const LARGE: Mixture = Mixture {
    dims: Dims { n_layer: 32, n_embd: 2816, n_ff: 2816, ..dims::LLAMA_8B },
    experts: dims::Experts { n: 128, used: 4, ff: 2816 },
};

/// The models for a size of work.
pub(crate) fn of_size(size: Size) -> Vec<Sketch> {
    match size {
        Size::Small => small(),
        Size::Real => of_real_size(),
    }
}

/// Writes a model. If there is no time or no space to write it, adds the reason to `skipped`.
pub(crate) fn written(setting: &Setting, sketch: &Sketch, cases: usize, skipped: &mut Vec<String>) -> Option<Written> {
    let why = match setting.ends(cases) {
        Some(why) => why.to_owned(),
        None => match Written::new(sketch, &setting.scratch) {
            Ok(model) => return Some(model),
            Err(error) => format!("{error:#}"),
        },
    };
    skipped.push(format!("{}: {why}", sketch.name));
    None
}

/// Models of the same kinds with a few megabytes, for a machine without a card.
fn small() -> Vec<Sketch> {
    let dims = Dims { n_layer: 8, ..DIMS };
    let experts = dims::Experts { n: 8, used: 2, ff: 256 };
    vec![
        dense("small Q4_K", dims, T::Q4_K),
        dense("small F16", dims, T::F16),
        dense("small Q8_0", Dims { n_layer: 12, ..dims }, T::Q8_0),
        mixture("small of experts Q4_K", Mixture { dims, experts }, T::Q4_K),
    ]
}

/// Types as `llama-quantize` chooses them: a 4-bit model has some matrices in 6 bits.
fn block(ty: T) -> Block {
    let fine = if ty == T::Q4_K { T::Q6_K } else { ty };
    Block { better: Better::Half, ..Block::new(ty, fine) }
}

fn dense(name: &'static str, dims: Dims, ty: T) -> Sketch {
    let mut sketch = Sketch::new("llama", name, dims);
    sketch.vocabulary();
    sketch.ends(ty, Some(if ty == T::Q4_K { T::Q6_K } else { ty }));
    sketch.tensor("rope_freqs.weight", T::F32, &[dims.head_dim / 2]);
    sketch.stack(&block(ty));
    sketch
}

fn mixture(name: &'static str, mixture: Mixture, ty: T) -> Sketch {
    let Mixture { dims, experts } = mixture;
    let mut sketch = Sketch::new("qwen3moe", name, dims);
    sketch.vocabulary();
    sketch.mixture(experts.n, experts.used, experts.ff);
    sketch.ends(ty, Some(T::Q6_K));
    sketch.stack(&Block {
        qk_norms: QkNorms::PerHead,
        feed: Feed::Experts { n: experts.n, ff: experts.ff, ty },
        ..block(ty)
    });
    sketch
}

/// The files of a model. They are deleted when this value is dropped.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Bytes of the weights.
    pub(crate) bytes: u64,
    _folder: tempfile::TempDir,
}

impl Written {
    /// Writes a model with random weights into its own folder below `folder`.
    pub(crate) fn new(sketch: &Sketch, folder: &Path) -> Result<Self> {
        Self::blank(sketch, folder)?.filled()
    }

    /// Writes only the header, with a hole for the data.
    pub(crate) fn blank(sketch: &Sketch, folder: &Path) -> Result<Self> {
        let own =
            tempfile::tempdir_in(folder).with_context(|| format!("cannot make a folder in {}", folder.display()))?;
        let path = sketch.write(own.path());
        let bytes = Header::open(&path)?.tensors().map(Tensor::bytes).sum();
        Ok(Self { name: sketch.name.to_owned(), path, bytes, _folder: own })
    }

    /// Fills the model with random weights.
    pub(crate) fn filled(self) -> Result<Self> {
        fill_large(&self.path)?;
        Ok(self)
    }
}

/// The layers of a model's file, the output layer included.
pub(crate) fn layers(path: &Path) -> Result<u32> {
    Ok(ModelProfile::from_header(&Header::open(path)?)?.full_offload())
}

#[cfg(test)]
mod tests {
    use autoplace::Model;
    use autoplace::gguf::{Header, Tensor};
    use autoplace::machine::{Machine, gib};
    use autoplace::memory::Headroom;

    use super::{Written, of_real_size, small};
    use crate::rig::{Rig, SimCard};

    #[test]
    fn the_models_have_a_tenth_to_sixty_gigabytes_and_llama_cpp_accepts_them() {
        let folder = tempfile::tempdir().unwrap();
        let rig = Rig::Simulated(vec![SimCard {
            name: "a large card".to_owned(),
            total: gib(140),
            growth: 0,
            file: folder.path().join("card"),
        }]);
        let opened = rig.open().unwrap();
        let mut sizes = Vec::new();
        for sketch in of_real_size() {
            // The file has only a header, with a hole for the data.
            let path = sketch.write(folder.path());
            let header = Header::open(&path).unwrap();
            sizes.push(header.tensors().map(Tensor::bytes).sum::<u64>());
            let machine: Machine = opened.machine().unwrap();
            let builder = Model::builder(&path).machine(machine);
            let plan = builder.headroom(Headroom::Bytes(0)).plan().unwrap();
            assert!(plan.full_offload, "{}", sketch.name);
        }
        let tenths = |bytes: u64| bytes / 100_000_000;
        assert_eq!(tenths(sizes[0]), 1);
        let largest = tenths(sizes[sizes.len() - 1]);
        assert!((580..=620).contains(&largest), "{largest}");
        let mut sorted = sizes.clone();
        sorted.sort_unstable();
        assert_eq!(sizes, sorted, "the smallest first");
    }

    #[test]
    fn a_written_model_is_complete_and_is_deleted_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        for sketch in small() {
            let model = Written::new(&sketch, folder.path()).unwrap();
            let header = Header::open(&model.path).unwrap();
            let file = std::fs::read(&model.path).unwrap();
            for tensor in header.tensors() {
                let begin = usize::try_from(tensor.offset()).unwrap();
                let end = begin + usize::try_from(tensor.bytes()).unwrap();
                let zeros = file[begin..end].iter().filter(|&&byte| byte == 0).count();
                assert!(zeros < (end - begin) / 2, "{} is a hole", tensor.name());
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
