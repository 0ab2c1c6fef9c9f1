//! The weights of a model, grouped by the layer that decides where llama.cpp puts them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::gguf::{Tensor, TensorType};

use super::hparams::Keys;
use super::names::{Slot, is_loaded};
use super::{Hyperparameters, KvLayout, WeightRole};

/// A weight, without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Weight {
    /// The name in the file: `blk.0.attn_q.weight`.
    pub name: Arc<str>,
    /// The type of the elements.
    pub ty: TensorType,
    /// The number of elements in each dimension, the innermost first; unused dimensions are 1.
    pub shape: [u64; 4],
    /// Bytes (`ggml_nbytes`).
    pub bytes: u64,
    /// The role of the weight in its block.
    pub role: WeightRole,
}

impl Weight {
    fn new(tensor: &Tensor) -> Self {
        Self {
            name: tensor.name().into(),
            ty: tensor.ty(),
            shape: tensor.shape(),
            bytes: tensor.bytes(),
            role: WeightRole::from_name(tensor.name()),
        }
    }

    /// Bytes of these weights together; saturates.
    pub fn sum<'a>(weights: impl IntoIterator<Item = &'a Self>) -> u64 {
        weights.into_iter().fold(0, |sum, weight| sum.saturating_add(weight.bytes))
    }

    /// Whether llama.cpp keeps this weight on the host wherever its layer is (llama-model-loader.cpp,
    /// `select_weight_buft`): no GPU supports the product with it (ggml-cuda.cu, ggml-vulkan.cpp, ggml-metal-device.m).
    pub(crate) fn stays_on_host(&self) -> bool {
        self.ty == TensorType::F8_E4M3 && self.is_matrix()
    }

    /// Whether this is a matrix, which a GPU may borrow for a large batch (`MUL_MAT`, `MUL_MAT_ID`) and the CPU may
    /// repack.
    pub const fn is_matrix(&self) -> bool {
        self.shape[1] > 1
    }
}

/// The layer to which a weight belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// Always on the host.
    Input,
    /// With this block.
    Block(usize),
    /// With the output layer.
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

/// Architectures that have no logits, compute their logits on the CPU (bitnet), or use the logits of the model that
/// they draft for (dflash, eagle3).
const WITHOUT_OUTPUT: &str = "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert \
    bitnet dflash eagle3";

/// All weights of a model, by layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightBytes {
    /// Weights that llama.cpp always keeps on the CPU: `token_embd` and similar.
    pub input: Vec<Weight>,
    /// Weights that llama.cpp loads for each block, in the order of the file. For blocks that predict further tokens
    /// there are few or none: see `skipped`.
    pub blocks: Vec<Vec<Weight>>,
    /// Names of the blocks' weights, without the block's prefix: `attn_q.weight`.
    pub(crate) stems: BTreeSet<String>,
    /// `output`, `output_norm` and similar. `output.weight` is missing if it is tied to the embedding.
    pub output: Vec<Weight>,
    /// Weights copied to every device with a block that uses them: `rope_freqs` and similar.
    pub rope: Vec<Weight>,
    /// For each block, whether it uses the weights in `rope`.
    pub rope_blocks: Vec<bool>,
    /// Weights that the file contains but llama.cpp does not load: those of blocks that predict further tokens (without
    /// `load_mtp`), and weights that llama.cpp does not use.
    pub skipped: Vec<Weight>,
    /// Weights in no known layer. llama.cpp may reject the file or place them anywhere. Their bytes are counted with
    /// the output layer, and the notes of a plan name them.
    pub unplaced: Vec<Weight>,
    /// Whether the token embedding computes the logits: if so, there is no `output.weight`, and llama.cpp makes a
    /// second copy of the embedding on the output layer's device (models/llama.cpp, `load_arch_tensors`).
    pub tied_output: bool,
}

/// Weights of one group.
fn in_group(group: Group, weights: &[Weight]) -> impl Iterator<Item = (Group, &Weight)> {
    weights.iter().map(move |weight| (group, weight))
}

impl WeightBytes {
    pub(super) fn read(keys: &Keys<'_>, hparams: &Hyperparameters, state: &KvLayout) -> Self {
        let Keys { header, architecture } = *keys;
        let trunk = hparams.n_layer_trunk();
        let mut all = Self {
            blocks: vec![Vec::new(); hparams.n_layer as usize],
            rope_blocks: rope_blocks(keys, hparams, state),
            ..Self::default()
        };
        for tensor in header.tensors() {
            let weight = Weight::new(tensor);
            match Slot::from_name(architecture, &weight.name) {
                Slot::Input => all.input.push(weight),
                // If a file has only prediction blocks, these blocks are the model (llama-model.cpp, `create_memory`).
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
        // models/lfm2.cpp, `load_arch_tensors`: a decision head computes no logits.
        let decides = architecture == "lfm2" && keys.or("decision.block_count", 0).is_ok_and(|blocks| blocks > 0);
        let without_output = decides || WITHOUT_OUTPUT.split_whitespace().any(|listed| listed == architecture);
        let has_own = named(&all.output, OUTPUT).is_some();
        all.tied_output = !without_output && !has_own && all.token_embedding().is_some();
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

    /// Bytes of all blocks; saturates.
    pub(crate) fn blocks_bytes(&self) -> u64 {
        Weight::sum(self.blocks.iter().flatten())
    }

    /// The matrix that computes the logits: `output.weight`, or the token embedding if they are tied.
    pub fn output_matrix(&self) -> Option<&Weight> {
        match self.tied_output {
            true => self.token_embedding(),
            false => named(&self.output, OUTPUT),
        }
    }

    /// The types of the matrices that tokens pass, each with a flag for matrices of experts. The type with the most
    /// bytes comes first. Types with less than a twentieth of the bytes are left out: they hardly affect the speed.
    pub fn matrix_types(&self) -> Vec<(TensorType, bool)> {
        let mut types: BTreeMap<(TensorType, bool), u64> = BTreeMap::new();
        let output = self.output_matrix().into_iter();
        for weight in self.blocks.iter().flatten().chain(output).filter(|weight| weight.is_matrix()) {
            let bytes = types.entry((weight.ty, weight.role == WeightRole::Experts)).or_default();
            *bytes = bytes.saturating_add(weight.bytes);
        }
        let all = types.values().fold(0, |all: u64, &bytes| all.saturating_add(bytes));
        let mut types: Vec<_> = types.into_iter().filter(|&(_, bytes)| bytes >= all / 20).collect();
        types.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        types.into_iter().map(|(kind, _)| kind).collect()
    }

    /// All weights that llama.cpp loads, each once, in no particular order.
    pub fn loaded(&self) -> impl Iterator<Item = &Weight> {
        self.grouped().map(|(_, weight)| weight)
    }

    /// All weights that llama.cpp loads, each with its group.
    pub(crate) fn grouped(&self) -> impl Iterator<Item = (Group, &Weight)> {
        let blocks = self.blocks.iter().enumerate().flat_map(|(index, block)| in_group(Group::Block(index), block));
        let output = in_group(Group::Output, &self.output).chain(in_group(Group::Output, &self.unplaced));
        blocks.chain(in_group(Group::Input, &self.input)).chain(output).chain(in_group(Group::Rope, &self.rope))
    }
}

/// For each block, whether it uses rope frequencies. Most blocks do, except blocks that predict further tokens or
/// repeat other blocks. gemma4's windowed blocks do not (models/gemma4.cpp, `load_arch_tensors`), nor do lfm3's
/// windowed and recurrent ones (models/lfm3.cpp, `load_arch_tensors`). step35's prediction blocks do
/// (models/step35.cpp, `load_arch_tensors`).
fn rope_blocks(keys: &Keys<'_>, hparams: &Hyperparameters, state: &KvLayout) -> Vec<bool> {
    let architecture = keys.architecture;
    let trunk = hparams.n_layer_trunk().min(hparams.n_layer_stored);
    // A windowed block that keeps nothing, because attention is not causal, still counts as windowed.
    let listed = || keys.flags("attention.sliding_window_pattern", hparams.n_layer).ok().flatten();
    let listed = (architecture == "lfm3").then(listed).flatten().unwrap_or_default();
    let windows = if listed.is_empty() { state.windows().unwrap_or_default() } else { &listed };
    let uses = |il: u32| match architecture {
        "gemma4" => windows.get(il as usize) != Some(&true),
        "lfm3" => windows.get(il as usize) != Some(&true) && hparams.n_head_kv[il as usize] > 0 && il < trunk,
        "step35" => true,
        _ => il < trunk,
    };
    (0..hparams.n_layer).map(uses).collect()
}
