//! The weights, arranged by the layer that decides where llama.cpp puts them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::gguf::{Tensor, TensorType};

use super::hparams::Keys;
use super::names::{Slot, is_loaded};
use super::{Hyperparameters, Role, StateLaw};

/// One weight, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Weight {
    /// Its name in the file: `blk.0.attn_q.weight`.
    pub name: Arc<str>,
    /// The type of its elements.
    pub ty: TensorType,
    /// Its elements along each dimension, innermost first; unused dimensions are 1.
    pub shape: [u64; 4],
    /// Its bytes (`ggml_nbytes`).
    pub bytes: u64,
    /// What it does in its block.
    pub role: Role,
}

impl Weight {
    fn of(tensor: &Tensor) -> Self {
        Self {
            name: tensor.name.clone(),
            ty: tensor.ty(),
            shape: tensor.shape(),
            bytes: tensor.bytes(),
            role: Role::of(tensor.name()),
        }
    }

    /// The bytes of these weights together; saturates.
    pub fn sum<'a>(weights: impl IntoIterator<Item = &'a Self>) -> u64 {
        weights.into_iter().fold(0, |sum, weight| sum.saturating_add(weight.bytes))
    }

    /// Whether it is a matrix: what a GPU may be handed for a large batch (`MUL_MAT`, `MUL_MAT_ID`) and what
    /// the CPU may repack.
    pub const fn is_matrix(&self) -> bool {
        self.shape[1] > 1
    }
}

/// The layer that a weight follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// The host's, always.
    Input,
    /// A block's.
    Block(usize),
    /// The output layer's.
    Output,
    /// The output layer's copy of the token embedding.
    Tied,
    /// A copy on every device that holds a block.
    Rope,
}

const OUTPUT: &str = "output.weight";

fn named<'a>(weights: &'a [Weight], name: &str) -> Option<&'a Weight> {
    weights.iter().find(|weight| &*weight.name == name)
}

/// Without logits of their own, or with logits computed on the CPU (bitnet).
const WITHOUT_OUTPUT: &str = "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert \
    bitnet eagle3";

/// All weights of a model, by layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightBytes {
    /// What llama.cpp keeps on the CPU whatever is offloaded: `token_embd` and its like.
    pub input: Vec<Weight>,
    /// What llama.cpp loads for each block, in the order of the file. Of next-token-prediction blocks it is little or
    /// nothing: see `skipped`.
    pub blocks: Vec<Vec<Weight>>,
    /// The names of their weights, without the block: `attn_q.weight`.
    pub(crate) stems: BTreeSet<String>,
    /// `output`, `output_norm` and their like. `output.weight` is not among them where it is tied to the embedding.
    pub output: Vec<Weight>,
    /// What every device with a block that uses it gets a copy of: `rope_freqs` and its like.
    pub rope: Vec<Weight>,
    /// Which blocks use those.
    pub rope_blocks: Vec<bool>,
    /// What the file holds but llama.cpp does not load: the tensors of next-token-prediction blocks (without
    /// `load_mtp`), and those that nothing uses.
    pub skipped: Vec<Weight>,
    /// What no table of ours places: llama.cpp may refuse the file, or know better. Memory counts them with the output
    /// layer, and the plan says so.
    pub unplaced: Vec<Weight>,
    /// Whether the logits are computed with the token embedding: there is no `output.weight`, and llama.cpp makes a
    /// second copy of the embedding on the output layer's device (models/llama.cpp, `load_arch_tensors`).
    pub tied_output: bool,
    /// Whether the copy for a tied output is made before the embedding itself, which then never shares it: both are
    /// there on one device too (models/gemma3n.cpp and models/gemma4.cpp, `load_arch_tensors`).
    pub tied_apart: bool,
}

/// Weights that follow one layer.
fn of(group: Group, weights: &[Weight]) -> impl Iterator<Item = (Group, &Weight)> {
    weights.iter().map(move |weight| (group, weight))
}

impl WeightBytes {
    pub(super) fn read(keys: &Keys<'_>, hparams: &Hyperparameters, state: &StateLaw) -> Self {
        let Keys { header, architecture } = *keys;
        let trunk = hparams.n_layer_trunk();
        let mut all = Self {
            blocks: vec![Vec::new(); hparams.n_layer as usize],
            rope_blocks: rope_blocks(architecture, hparams, state),
            ..Self::default()
        };
        for tensor in header.tensors() {
            let weight = Weight::of(tensor);
            match Slot::of(architecture, &weight.name) {
                Slot::Input => all.input.push(weight),
                // A file of nothing but prediction blocks has no trunk, and then they are the model (llama-model.cpp,
                // `create_memory`).
                Slot::Block(block)
                    if trunk > 0
                        && (trunk..hparams.n_layer).contains(&block)
                        && !is_loaded(architecture, &weight.name) =>
                {
                    all.skipped.push(weight);
                }
                Slot::Block(block) if block < hparams.n_layer => {
                    all.add(block as usize, weight);
                }
                Slot::Output => all.output.push(weight),
                Slot::Rope => all.rope.push(weight),
                Slot::Unused => all.skipped.push(weight),
                Slot::Block(_) | Slot::Unplaced => all.unplaced.push(weight),
            }
        }
        let without_output = WITHOUT_OUTPUT.split_whitespace().any(|one| one == architecture);
        let has_own = named(&all.output, OUTPUT).is_some();
        all.tied_output = !without_output && !has_own && all.token_embedding().is_some();
        all.tied_apart = all.tied_output && matches!(architecture, "gemma3n" | "gemma4");
        all
    }

    /// Adds a weight to a block.
    pub(super) fn add(&mut self, block: usize, weight: Weight) {
        let behind = weight.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let stem = behind.map_or(&*weight.name, |(_, stem)| stem);
        if !self.stems.contains(stem) {
            self.stems.insert(stem.to_owned());
        }
        self.blocks[block].push(weight);
    }

    /// The token embedding.
    pub fn token_embedding(&self) -> Option<&Weight> {
        named(&self.input, "token_embd.weight")
    }

    /// The bytes of all blocks; saturates.
    pub(crate) fn blocks_bytes(&self) -> u64 {
        Weight::sum(self.blocks.iter().flatten())
    }

    /// The matrix that computes the logits: `output.weight`, or the token embedding where the two are tied.
    pub fn output_matrix(&self) -> Option<&Weight> {
        match self.tied_output {
            true => self.token_embedding(),
            false => named(&self.output, OUTPUT),
        }
    }

    /// The types of the matrices that every token passes, each with whether they are experts' matrices, and the largest
    /// first. Types of less than a twentieth of their bytes are left out: they hardly change a speed.
    pub fn matrix_types(&self) -> Vec<(TensorType, bool)> {
        let mut types: BTreeMap<(TensorType, bool), u64> = BTreeMap::new();
        let output = self.output_matrix().into_iter();
        for weight in self.blocks.iter().flatten().chain(output).filter(|weight| weight.is_matrix()) {
            let bytes = types.entry((weight.ty, weight.role == Role::Experts)).or_default();
            *bytes = bytes.saturating_add(weight.bytes);
        }
        let all = types.values().fold(0, |all: u64, &bytes| all.saturating_add(bytes));
        let mut types: Vec<_> = types.into_iter().filter(|&(_, bytes)| bytes >= all / 20).collect();
        types.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        types.into_iter().map(|(kind, _)| kind).collect()
    }

    /// Everything that llama.cpp loads, each weight once, in no particular order.
    pub fn loaded(&self) -> impl Iterator<Item = &Weight> {
        self.grouped().map(|(_, weight)| weight)
    }

    /// The same, each with the layer that it follows.
    pub(crate) fn grouped(&self) -> impl Iterator<Item = (Group, &Weight)> {
        let blocks = self.blocks.iter().enumerate().flat_map(|(index, block)| of(Group::Block(index), block));
        let output = of(Group::Output, &self.output).chain(of(Group::Output, &self.unplaced));
        blocks.chain(of(Group::Input, &self.input)).chain(output).chain(of(Group::Rope, &self.rope))
    }
}

/// Which blocks use the frequencies of rope: all but those that predict further tokens or stand for others. gemma4's
/// windowed blocks do not (models/gemma4.cpp, `load_arch_tensors`), and step35's prediction blocks do
/// (models/step35.cpp, `load_arch_tensors`).
fn rope_blocks(architecture: &str, hparams: &Hyperparameters, state: &StateLaw) -> Vec<bool> {
    let trunk = hparams.n_layer_trunk().min(hparams.n_layer_stored);
    let windows = state.windows().unwrap_or_default();
    let uses = |il: u32| match architecture {
        "gemma4" => windows.get(il as usize) != Some(&true),
        "step35" => true,
        _ => il < trunk,
    };
    (0..hparams.n_layer).map(uses).collect()
}
