//! The work of a token in each layer: the weights, keys and values that it reads, and its arithmetic.

use std::borrow::Cow;
use std::sync::Arc;

use crate::gguf::TensorType;
use crate::machine::MatrixShape;
use crate::memory::{ContextParams, KvType};
use crate::profile::{BlockState, ModelProfile, Part, Rows, Weight, WeightRole};

use super::depths::Depths;

/// The work of a token, or of a batch of tokens, in one layer.
///
/// A token reads each weight of a block once, except that it reads only those experts that it uses. It reads all keys
/// and values to which it attends. It reads one row of the token embedding, which is not counted.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerWork {
    /// Weights, grouped by type.
    pub(super) matrices: Vec<Matrices>,
    /// The keys and values to which the layer attends.
    pub(super) caches: Vec<Cache>,
    /// Bytes of recurrent state read and written.
    pub(super) state: u64,
}

/// Weights of one type; small matrices are also grouped by size.
#[derive(Debug, Clone, Copy)]
pub(in crate::plan) struct Matrices {
    pub(super) tensor_type: TensorType,
    /// The number of experts that a token uses, and the number of all experts; `None` for other weights.
    pub(super) experts: Option<(u32, u32)>,
    /// If the matrices are small and not experts, the size of each of them.
    of_shape: MatrixShape,
    /// Bytes of all the weights, including all experts.
    stored: u64,
    /// Multiplications for one token.
    pub(super) multiplications: f64,
    /// Output elements for one token.
    pub(super) outputs: f64,
    /// Number of tensors.
    tensors: u32,
    /// Whether only tokens with logits use these weights. In the last block, llama.cpp's graphs drop the other tokens
    /// of a prompt after attention (`inp_out_ids`).
    pub(super) last_token: bool,
}

/// Keys and values to which a layer attends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cache {
    /// The number of elements of a token's keys, over all heads, and the same for its values. `v` is 0 if the values
    /// are a part of the keys.
    pub(super) k: u32,
    pub(super) v: u32,
    /// The maximum number of tokens to which a token attends.
    pub(super) window: u32,
    /// The number of tokens that each stored key represents.
    pub(super) ratio: u32,
    /// The number of query heads, and the number of query heads for each head of keys and values.
    pub(super) n_head: u32,
    pub(super) n_gqa: u32,
    /// Elements of a key head and of a value head in the multiplications.
    pub(super) head: (u32, u32),
    /// The types of keys and values.
    pub(super) types: (KvType, KvType),
}

impl LayerWork {
    /// The work of each block of the model and of the output layer, in a context with these parameters.
    pub(super) fn for_model(profile: &ModelProfile, params: &ContextParams) -> Arc<[Self]> {
        // Blocks that predict further tokens do no work for an ordinary token.
        let trunk = profile.hparams.n_layer_trunk() as usize;
        let idle = |index| profile.predicts() && index >= trunk;
        let nothing = BlockState::default();
        let states = profile.state.blocks().map(Cow::from);
        let states = states.unwrap_or_else(|| profile.hparams.every_block_in_full().into());
        let blocks = profile.weights.blocks.iter().enumerate();
        let blocks = blocks.map(|(index, block)| {
            if idle(index) {
                return Self::default();
            }
            let state = states.get(index).unwrap_or(&nothing);
            Self {
                matrices: matrices(profile, block),
                caches: Cache::for_block(profile, params, index, state),
                // The state is read and written, in 32-bit floats.
                state: state.recurrent_elements() * 8,
            }
        });
        // If the output is tied, the whole embedding is read for the logits.
        let tied = profile.weights.output_matrix().filter(|_| profile.weights.tied_output);
        let matrices = matrices(profile, profile.weights.output.iter().chain(tied));
        blocks.chain([Self { matrices, ..Self::default() }]).collect()
    }
}

/// Whether only tokens with logits use this weight.
fn is_for_logits(profile: &ModelProfile, weight: &Weight) -> bool {
    let block = || weight.name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok();
    let follows = [WeightRole::FeedForward, WeightRole::Experts, WeightRole::SharedExperts].contains(&weight.role);
    follows && profile.hparams.n_layer_trunk().checked_sub(1).is_some_and(|last| block() == Some(last))
}

/// The weights grouped by type and size; experts form groups of their own.
pub(in crate::plan) fn matrices<'w>(
    profile: &ModelProfile,
    weights: impl IntoIterator<Item = &'w Weight>,
) -> Vec<Matrices> {
    let mut all: Vec<Matrices> = Vec::new();
    for weight in weights {
        let experts = match &profile.hparams.experts {
            Some(experts) if weight.role == WeightRole::Experts => {
                Some((experts.used.min(experts.count), experts.count.max(1)))
            }
            _ => None,
        };
        let elements = weight.shape.iter().fold(1.0, |all, &n| all * n as f64);
        let (used, count) = experts.unwrap_or((1, 1));
        let multiplications = elements * f64::from(used) / f64::from(count);
        let outputs = multiplications / weight.shape.first().map_or(1.0, |&n| n.max(1) as f64);
        let last_token = is_for_logits(profile, weight);
        // For small matrices, there is a rate for each size.
        let side = |n: Option<&u64>| n.map_or(1, |&n| u32::try_from(n).unwrap_or(u32::MAX).max(1));
        let shape = match experts {
            None => MatrixShape::new(side(weight.shape.first()), side(weight.shape.get(1))),
            Some(_) => MatrixShape::default(),
        };
        let kind = (weight.ty, experts, shape, last_token);
        let kind_of = |matrix: &Matrices| (matrix.tensor_type, matrix.experts, matrix.of_shape, matrix.last_token);
        match all.iter_mut().find(|known| kind_of(known) == kind) {
            Some(known) => {
                known.stored = known.stored.saturating_add(weight.bytes);
                known.multiplications += multiplications;
                known.outputs += outputs;
                known.tensors += 1;
            }
            None => all.push(Matrices {
                tensor_type: weight.ty,
                experts,
                of_shape: shape,
                stored: weight.bytes,
                multiplications,
                outputs,
                tensors: 1,
                last_token,
            }),
        }
    }
    all
}

impl Matrices {
    /// The mean size of one matrix.
    pub(super) fn shape(&self) -> MatrixShape {
        let (used, _) = self.experts.unwrap_or((1, 1));
        let n_in = self.multiplications / self.outputs.max(1.0);
        let n_out = self.outputs / (f64::from(self.tensors) * f64::from(used)).max(1.0);
        MatrixShape::new(n_in.round().max(1.0) as u32, n_out.round().max(1.0) as u32)
    }

    /// The number of tokens that use one matrix at once in a computation of `n_tokens` tokens. Only the tokens that
    /// chose an expert use its matrix.
    pub(super) fn tokens_at_once(&self, n_tokens: u32) -> f64 {
        let (used, count) = self.experts.unwrap_or((1, 1));
        (f64::from(n_tokens) * f64::from(used) / f64::from(count)).max(1.0)
    }

    /// Bytes that one token reads.
    pub(super) fn token_bytes(&self) -> u64 {
        let (used, count) = self.experts.unwrap_or((1, 1));
        let share = u128::from(used) * u128::from(self.stored) / u128::from(count);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Bytes that `n_tokens` tokens read together. An expert is counted if any token uses it. The number of used
    /// experts is estimated on the assumption that tokens choose all experts equally often.
    pub(super) fn bytes(&self, n_tokens: u32) -> f64 {
        let (used, count) = self.experts.unwrap_or((1, 1));
        let unused = 1.0 - f64::from(used) / f64::from(count);
        self.stored as f64 * (1.0 - unused.powi(i32::try_from(n_tokens).unwrap_or(i32::MAX)))
    }
}

impl Matrices {
    /// The number of copies with which the experts of `n_tokens` tokens are brought to another device: one for each
    /// expert and tensor.
    pub(super) fn copies(&self, n_tokens: u32) -> f64 {
        let (used, _) = self.experts.unwrap_or((1, 1));
        let tokens = self.bytes(n_tokens) / (self.token_bytes().max(1)) as f64;
        f64::from(self.tensors) * f64::from(used) * tokens
    }
}

impl Cache {
    /// The keys and values of a block.
    fn for_block(profile: &ModelProfile, params: &ContextParams, index: usize, state: &BlockState) -> Vec<Self> {
        let of = |list: &[u32]| list.get(index).copied().unwrap_or(0).max(1);
        let n_head = of(&profile.hparams.n_head);
        let n_head_kv = of(&profile.hparams.n_head_kv).min(n_head);
        let types = (params.type_k, params.type_v);
        let plain = |k: u32, v: u32, window: u32| Self {
            k,
            v,
            window,
            ratio: 1,
            n_head,
            n_gqa: n_head.div_ceil(n_head_kv),
            head: (k / n_head_kv, v / n_head_kv),
            types,
        };
        // All heads share one key, and most of it is also the value.
        let compressed = |k: u32, window: u32| Self { n_gqa: n_head, head: (k, k), ..plain(k, 0, window) };
        const ALL: u32 = u32::MAX;
        let Some(keys) = state.part(Part::Keys) else {
            return Vec::new();
        };
        let window = match keys.rows {
            Rows::Window(window) | Rows::OwnWindow(window) => window,
            _ => ALL,
        };
        let attended = match state.part(Part::Values) {
            Some(values) => plain(keys.n, values.n, window),
            None => compressed(keys.n, window),
        };
        // This is an upper bound: the index selects only some of the keys. How many it selects depends on header and
        // depth.
        let index = state.kept.iter().filter(|kept| kept.part == Part::IndexKeys).map(|kept| match kept.rows {
            Rows::Groups(ratio) => Self { ratio: ratio.max(1), ..compressed(kept.n, ALL) },
            _ => compressed(kept.n, ALL),
        });
        [attended].into_iter().chain(index).collect()
    }

    /// Mean bytes of keys and values read at these depths.
    pub(super) fn bytes(&self, depths: Depths) -> f64 {
        let row = |ty: KvType, n: u32| ty.tensor_type().row_bytes(u64::from(n));
        let (k, v) = self.types;
        row(k, self.k).saturating_add(row(v, self.v)) as f64 * self.cells(depths)
    }

    /// Multiplications of a token's attention: each query head is multiplied with the key and the value of each cell.
    pub(super) fn multiplications(&self, depths: Depths) -> f64 {
        let (k, v) = self.head;
        f64::from(self.n_head) * (f64::from(k) + f64::from(v)) * self.cells(depths)
    }

    /// The mean number of cells to which a token attends at these depths.
    fn cells(&self, depths: Depths) -> f64 {
        depths.mean_cells(self.ratio, self.window)
    }
}
