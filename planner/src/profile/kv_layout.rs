//! The KV layout of a header: the blocks that attend, their windows, and the state of each block.

use crate::gguf::Value;

use super::arch::{self, LayoutRule, Pattern, Unstated, Window};
use super::hparams::Keys;
use super::{BlockState, Error, Hyperparameters, KvLayout, Rows, indexer, rotation};

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

/// The reason why there is no layout.
pub(super) enum NoLayout {
    /// The header is rejected.
    Refused(Error),
    /// Unknown: we have not read llama.cpp's code for such a model. The text completes a sentence that begins with the
    /// architecture.
    Unknown(String),
}

impl From<Error> for NoLayout {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// The result for an unknown layout, with its reason.
pub(super) fn unknown<T>(why: impl Into<String>) -> Result<T, NoLayout> {
    Err(NoLayout::Unknown(why.into()))
}

/// The reason for models with prediction blocks if we have not read how llama.cpp uses these blocks.
pub(super) const PREDICTS: &str = "with blocks that predict further tokens";

/// The inputs of a layout.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) keys: &'a Keys<'a>,
    pub(super) hparams: &'a Hyperparameters,
}

/// The state of each block, and the windows if there are any.
pub(super) type Kept = (Vec<BlockState>, Option<Windows>);

/// The windows of a model (`n_swa`, `is_swa_impl`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Windows {
    /// The number of tokens of each window.
    pub(super) tokens: u32,
    /// For each block, including the blocks that predict further tokens (MTP), whether it has a window.
    pub(super) blocks: Vec<bool>,
}

impl KvLayout {
    pub(super) fn new(keys: &Keys<'_>, hparams: &Hyperparameters) -> Result<Self, Error> {
        match layout(Facts { keys, hparams }) {
            Ok((mut blocks, windows)) => {
                let windowed = windows.map(|windows| windows.blocks).unwrap_or_default();
                let index_k = keys.or("attention.indexer.key_length", 0)?;
                rotation::set(&mut blocks, keys.architecture, hparams, &windowed, index_k);
                Ok(Self::Known { widest_v: hparams.widest_v_of(&windowed), blocks, windowed })
            }
            Err(NoLayout::Unknown(why)) => Ok(Self::Unknown { reason: format!("`{}` {why}", keys.architecture) }),
            Err(NoLayout::Refused(error)) => Err(error),
        }
    }
}

fn layout(facts: Facts<'_>) -> Result<Kept, NoLayout> {
    let Facts { keys, hparams } = facts;
    let Some(rule) = arch::layout_rule(keys.architecture) else {
        return unknown(arch::why_unknown(keys.architecture));
    };
    let trunk = hparams.n_layer_trunk();
    if trunk == 0 {
        return unknown("of nothing but blocks that predict further tokens");
    }
    // With causal attention, the context limits the batch and thereby a window's cache (llama-context.cpp, the
    // constructor).
    let is_causal = keys.is_causal()?;
    if !is_causal && decides(keys)? {
        return Ok((vec![BlockState::default(); hparams.n_layer as usize], None));
    }
    if !is_causal && !matches!(rule, LayoutRule::Nothing | LayoutRule::Full) {
        return unknown("without causal attention");
    }
    match rule {
        LayoutRule::Nothing | LayoutRule::Recurrent(_) | LayoutRule::Hybrid(_) => {}
        _ => check_heads(facts)?,
    }
    let n_layer = hparams.n_layer as usize;
    let blocks = match rule {
        LayoutRule::Nothing => vec![BlockState::default(); n_layer],
        LayoutRule::Recurrent(mixer) => mixer.blocks(facts)?,
        LayoutRule::Hybrid(hybrid) => return hybrid.blocks(facts),
        LayoutRule::Drafting(_) if keys.or("hyper_connection.count", 0)? > 0 => {
            return unknown("with hyper-connections");
        }
        LayoutRule::Drafting(_) if keys.stated("attention.kv_lora_rank")?.is_some() => return drafting(facts),
        LayoutRule::Windowed(window) | LayoutRule::Drafting(window) => return windowed(facts, window),
        LayoutRule::WindowedAt64Blocks(window) if trunk == 64 => return windowed(facts, window),
        LayoutRule::Reused(window, from) => return reused(facts, window, from),
        LayoutRule::Indexed(indexer) => return indexer::blocks(facts, indexer),
        LayoutRule::Compressible => compressible(hparams)?,
        LayoutRule::EncoderDecoder if keys.or("decoder_block_count", 0)? > hparams.n_layer => {
            return unknown("with more blocks that decode than that encode");
        }
        LayoutRule::Routed => (0..n_layer).map(|il| hparams.full(il)).collect(),
        LayoutRule::Full | LayoutRule::EncoderDecoder | LayoutRule::WindowedAt64Blocks(_) => {
            hparams.every_block_in_full()
        }
    };
    Ok((blocks, None))
}

/// Whether this model, if it has no causal attention, computes a whole text in one batch and keeps nothing
/// (llama-model.cpp, `create_memory`).
fn decides(keys: &Keys<'_>) -> Result<bool, Error> {
    match keys.architecture {
        "lfm2" => Ok(keys.or("decision.block_count", 0)? > 0),
        architecture => Ok(architecture == "lfm3"),
    }
}

/// Checks that query heads divide evenly among key heads: ggml_can_mul_mat and the flash-attention kernels assert this.
fn check_heads(Facts { keys, hparams }: Facts<'_>) -> Result<(), Error> {
    for (il, (&heads, &kv)) in hparams.n_head.iter().zip(&hparams.n_head_kv).enumerate() {
        // A block without attention has no key heads (deci).
        let holds = kv == 0 || (heads > 0 && heads % kv == 0);
        let limit = format_args!("it must divide the {heads} heads of block {il}");
        keys.check(holds, "attention.head_count_kv", &kv, &limit)?;
    }
    let holds = hparams.head_dim_k > 0 && hparams.head_dim_v > 0;
    let limit = "a model with attention has heads of at least one element (llama-model.cpp, `load_hparams`)";
    keys.check(holds, "attention.head_count", &hparams.n_head[0], &limit)
}

/// Every block keeps compressed keys of a window that is one token longer than the header states (models/dflash.cpp,
/// `load_arch_hparams`).
fn drafting(facts: Facts<'_>) -> Result<Kept, NoLayout> {
    let Facts { keys, hparams } = facts;
    if !hparams.is_mla() {
        return unknown("without the widths of compressed keys");
    }
    let Some(tokens) = keys.required(WINDOW)?.checked_add(1).filter(|&tokens| tokens > 1) else {
        return unknown("with a sliding window of no tokens");
    };
    if hparams.n_layer_nextn > 0 {
        return unknown(PREDICTS);
    }
    let windows = Windows { tokens, blocks: vec![true; hparams.n_layer as usize] };
    let block = |il| BlockState::compressed(hparams.windowed_state(il).0, Rows::Window(tokens));
    Ok((hparams.each_block(block), Some(windows)))
}

fn windowed(facts: Facts<'_>, window: Window) -> Result<Kept, NoLayout> {
    let windows = windows(facts, window)?;
    let blocks = match &windows {
        Some(windows) => facts.hparams.windowed(windows),
        None => facts.hparams.every_block_in_full(),
    };
    Ok((blocks, windows))
}

/// If the header states both widths, all heads share one key (models/deepseek2.cpp; `is_mla`, llama-hparams.cpp).
fn compressible(hparams: &Hyperparameters) -> Result<Vec<BlockState>, NoLayout> {
    match hparams.mla {
        (0, 0) => Ok(hparams.every_block_in_full()),
        (0, _) | (_, 0) => unknown("with the width of only one of compressed keys and values"),
        _ => Ok(hparams.each_block(|il| BlockState::compressed(hparams.state(il).0, Rows::Tokens))),
    }
}

/// From block `from` on, a windowed block uses the cache of the last windowed block before `from`, and a full block
/// uses the cache of the last full block before `from` (llama-model.cpp, `create_memory`).
fn reused(facts: Facts<'_>, window: Window, from: Option<u32>) -> Result<Kept, NoLayout> {
    let Facts { keys, hparams } = facts;
    let Some(windows) = windows(facts, window)? else {
        return unknown("without a sliding window");
    };
    if hparams.n_layer_nextn > 0 {
        return unknown(PREDICTS);
    }
    let n_layer = hparams.n_layer;
    let from = match from {
        Some(block) => block,
        None => {
            let suffix = "attention.shared_kv_layers";
            let shared = keys.or(suffix, 0)?;
            let from = n_layer.saturating_sub(shared);
            let limit = format_args!(
                "llama.cpp ends the process unless two of the {n_layer} blocks keep their own (models/gemma4.cpp, `load_arch_hparams`)"
            );
            keys.check(from >= 2, suffix, &shared, &limit)?;
            from
        }
    };
    // llama.cpp aborts if there is no earlier block of the same kind (llama-kv-cache.cpp, the constructor).
    let first = from as usize;
    let fits = from >= 2 && (from >= n_layer || (windows.blocks[first - 2] && !windows.blocks[first - 1]));
    if !fits {
        let (windowed, full) = (first.wrapping_sub(2), first.wrapping_sub(1));
        return unknown(format!("that uses the caches of blocks {windowed} and {full} again"));
    }
    let mut blocks = hparams.windowed(&windows);
    blocks.iter_mut().skip(first).for_each(|block| *block = BlockState::default());
    Ok((blocks, Some(windows)))
}

/// The windows; `None` for a model without windows (llama-model.cpp, `create_memory`; llama-kv-cache-iswa.cpp, the
/// constructor).
pub(super) fn windows(facts: Facts<'_>, window: Window) -> Result<Option<Windows>, NoLayout> {
    let keys = facts.keys;
    if keys.header.uint(&keys.key(WINDOW)).is_err() {
        return unknown("with a sliding window that is not a number");
    }
    let tokens = match (keys.stated(WINDOW)?, window.unstated) {
        (None | Some(0), Unstated::NoWindow) => return Ok(None),
        (None | Some(0), Unstated::Fatal) => {
            let limit = "llama.cpp ends the process without a window (models/afmoe.cpp, `graph::graph`)";
            keys.check(false, WINDOW, &0, &limit)?;
            return Ok(None);
        }
        (Some(0), _) if window.fixed.is_some() => return Ok(None),
        (Some(0), _) => return unknown("with a sliding window of no tokens"),
        (Some(tokens), _) => window.fixed.unwrap_or(tokens),
        (None, Unstated::Tokens(tokens)) => tokens,
        (None, Unstated::Refused) => keys.required(WINDOW)?,
    };
    let blocks = pattern(facts, window.pattern)?;
    let (holds, value) = (blocks.contains(&true), "without a windowed block");
    let limit = "llama.cpp ends the process if there is none (llama-model.cpp, `create_memory`)";
    keys.check(holds, PATTERN, &value, &limit)?;
    Ok(Some(Windows { tokens, blocks }))
}

/// For each block, whether it is windowed: as the header lists it (llama-model.cpp, `load_swa_pattern`), or else all
/// blocks but one of each group (llama-hparams.cpp, `set_swa_pattern`).
fn pattern(Facts { keys, hparams }: Facts<'_>, default: Pattern) -> Result<Vec<bool>, NoLayout> {
    if let Some(Value::Array(listed)) = keys.get(PATTERN) {
        // llama.cpp would reject other lengths and types of lists, or read them in another way. No converter writes
        // such lists.
        if listed.len() != u64::from(hparams.n_layer) {
            return unknown("with a list of windowed blocks of another length");
        }
        return Ok(keys.flags(PATTERN, hparams.n_layer)?.unwrap_or_default());
    }
    let (every, first) = match default {
        Pattern::LastIsFull(every) => (keys.or(PATTERN, every)?, false),
        Pattern::FirstIsFull(every) => (keys.or(PATTERN, every)?, true),
        Pattern::Listed => return unknown("without a list of windowed blocks"),
    };
    let windowed = |il: u32| {
        il < hparams.n_layer_trunk()
            && match il.checked_rem(every) {
                None => true,
                Some(place) if first => place != 0,
                Some(place) => place < every - 1,
            }
    };
    Ok((0..hparams.n_layer).map(windowed).collect())
}

impl Hyperparameters {
    /// The numbers of elements of a token's keys and values in block `il`.
    pub(super) fn state(&self, il: usize) -> (u32, u32) {
        self.of_heads(il, self.head_dim_k, self.head_dim_v)
    }

    /// The numbers of elements of a token's keys and values in block `il`, if it is windowed.
    pub(super) fn windowed_state(&self, il: usize) -> (u32, u32) {
        self.of_heads(il, self.head_dim_k_swa, self.head_dim_v_swa)
    }

    fn of_heads(&self, il: usize, k: u32, v: u32) -> (u32, u32) {
        let heads = self.n_head_kv[il];
        (heads.saturating_mul(k), heads.saturating_mul(v))
    }

    pub(super) fn full(&self, il: usize) -> BlockState {
        BlockState::attended(self.state(il), Rows::Tokens)
    }

    /// The state that `of` returns for each block, except that blocks that predict further tokens keep nothing
    /// (llama-model.cpp, `create_memory`).
    pub(super) fn each_block(&self, of: impl Fn(usize) -> BlockState) -> Vec<BlockState> {
        let trunk = self.n_layer_trunk() as usize;
        (0..self.n_layer as usize).map(|il| if il < trunk { of(il) } else { BlockState::default() }).collect()
    }

    /// The state of each block of a model with these windows.
    pub(super) fn windowed(&self, windows: &Windows) -> Vec<BlockState> {
        self.each_block(|il| match windows.blocks[il] {
            true => BlockState::attended(self.windowed_state(il), Rows::Window(windows.tokens)),
            false => self.full(il),
        })
    }

    /// The state of each block if all of them keep every token.
    pub(crate) fn every_block_in_full(&self) -> Vec<BlockState> {
        let mut blocks = self.each_block(|il| self.full(il));
        rotation::set(&mut blocks, "", self, &[], 0);
        blocks
    }

    /// The number of elements of the widest block's values, given the windowed blocks (`n_embd_v_gqa_max`,
    /// llama-hparams.cpp).
    pub(crate) fn widest_v_of(&self, windowed: &[bool]) -> u32 {
        let values = |il| match windowed.get(il) {
            Some(true) => self.windowed_state(il).1,
            _ => self.state(il).1,
        };
        (0..self.n_layer as usize).map(values).max().unwrap_or(0)
    }
}
