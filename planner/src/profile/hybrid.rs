//! What recurrent blocks keep, and which blocks are recurrent.

use super::arch::{Attention, Hybrid, Mixer, Predicting, Recurring};
use super::hparams::Keys;
use super::state::{BlockState, Blocks, IndexedState, RecurrentState};
use super::window::Windows;
use super::{Error, Hyperparameters};

/// Every block keeps a state.
pub(super) fn recurrent(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    mixer: Mixer,
) -> Result<Blocks, Error> {
    if hparams.n_layer_nextn > 0 {
        return Ok(Err("with blocks that predict further tokens".into()));
    }
    Ok(match mixer.state(keys, hparams)? {
        Some(state) => Ok(hparams.each_block(|_| BlockState::Recurrent(state))),
        None => Err("with a state of no size".into()),
    })
}

/// The windows of a hybrid: all blocks that attend have one, or none (models/lfm2.cpp, `load_arch_hparams`).
pub(super) fn windows(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    hybrid: Hybrid,
) -> Result<Option<Windows>, Error> {
    if hybrid.attention != Attention::FullOrWindowed {
        return Ok(None);
    }
    let tokens = keys.or("attention.sliding_window", 0)?;
    if tokens == 0 {
        return Ok(None);
    }
    let blocks = hparams.n_head_kv.iter().map(|&heads| heads > 0).collect();
    Ok(Some(Windows { tokens, blocks }))
}

/// What each block of a hybrid keeps (llama-model.cpp, `create_memory`).
pub(super) fn blocks(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    hybrid: Hybrid,
    windows: Option<&Windows>,
) -> Result<Blocks, Error> {
    let predicts = hparams.n_layer_nextn > 0;
    if predicts && hybrid.predicting == Predicting::Unread {
        return Ok(Err("with blocks that predict further tokens".into()));
    }
    let Some(state) = hybrid.mixer.state(keys, hparams)? else {
        return Ok(Err("with a state of no size".into()));
    };
    let is_recurrent = match hybrid.recurring(keys, hparams)? {
        Ok(is_recurrent) => is_recurrent,
        Err(why) => return Ok(Err(why)),
    };
    let compressed = matches!(
        hybrid.attention,
        Attention::Compressed | Attention::CompressedAndIndexed(_)
    );
    if compressed && !is_compressed(keys)? {
        return Ok(Err("without the widths of compressed keys".into()));
    }
    // Heads of no elements: a file whose first block says that it has no heads (llama-model.cpp, `load_hparams`).
    if hparams.head_dim_k == 0 && is_recurrent.contains(&false) {
        return Ok(Err("whose first block has no heads".into()));
    }
    let index = match hybrid.attention {
        Attention::Indexed(rows) | Attention::CompressedAndIndexed(rows) => {
            match index(keys, hparams, rows)? {
                Ok(index) => Some(index),
                Err(why) => return Ok(Err(why)),
            }
        }
        _ => None,
    };
    let attends = |il: usize| {
        let cache = hparams.state(il);
        let index = index.as_ref().filter(|index| index.blocks[il]);
        match (index, windows) {
            (Some(index), _) => BlockState::Indexed(IndexedState {
                k: cache.k,
                v: (!compressed).then_some(cache.v),
                index_k: index.k,
                index_v: None,
            }),
            (None, Some(windows)) => BlockState::Windowed {
                state: hparams.windowed_state(il),
                window: windows.tokens,
            },
            (None, None) if compressed => BlockState::Compressed { k: cache.k },
            (None, None) => BlockState::Full(cache),
        }
    };
    let trunk = hparams.n_layer_trunk() as usize;
    let forward = |il: usize| {
        hybrid.recurring == Recurring::WithoutKeyHeadsAndForward && hparams.n_ff_of[il] > 0
    };
    Ok(Ok((0..hparams.n_layer as usize)
        .map(|il| match hybrid.recurring {
            Recurring::Every => BlockState::FullAndRecurrent(hparams.state(il), state),
            _ if il >= trunk && hybrid.predicting == Predicting::Nothing => BlockState::None,
            _ if forward(il) => BlockState::None,
            _ if il < trunk && is_recurrent[il] => BlockState::Recurrent(state),
            _ => attends(il),
        })
        .collect()))
}

/// Whether keys are compressed (`is_mla`, llama-hparams.cpp).
pub(super) fn is_compressed(keys: &Keys<'_>) -> Result<bool, Error> {
    let k = keys.or("attention.key_length_mla", 0)?;
    let v = keys.or("attention.value_length_mla", 0)?;
    Ok(k > 0 && v > 0)
}

/// The indexer of a hybrid.
struct Index {
    /// Elements of its keys.
    k: u32,
    /// Which blocks have one, if they attend.
    blocks: Vec<bool>,
}

/// The rows of the indexer (llama-memory-hybrid-idx.cpp, the constructor): those of its tokens, and what
/// is pooled of them.
fn index(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    rows: u32,
) -> Result<Result<Index, String>, Error> {
    let key = keys.required("attention.indexer.key_length")?;
    let n_layer = hparams.n_layer as usize;
    let trunk = hparams.n_layer_trunk() as usize;
    let has = |suffix: &str| {
        let key = format!("{}.{suffix}", keys.architecture);
        keys.header.get(&key).is_some()
    };
    // They would keep the past of a convolution too (llama-hparams.cpp, `ple_conv_state`).
    if has("ple.layers") {
        return Ok(Err("with embeddings of word parts".into()));
    }
    let (pools, blocks) = if keys.architecture == "qwen4exp" {
        // Blocks pool by what they compress by (models/qwen4exp.cpp, `load_arch_hparams`).
        let ratios = keys.per_layer("attention.compress_ratios", n_layer)?;
        let pools = ratios.is_some_and(|ratios| ratios.iter().any(|&ratio| ratio > 0));
        (pools, vec![true; n_layer])
    } else {
        let types = keys.per_layer("attention.indexer.types", trunk)?;
        let types = types.unwrap_or_else(|| vec![1; trunk]);
        let blocks = (0..n_layer).map(|il| types.get(il).is_some_and(|&flag| flag != 0));
        (keys.or("attention.indexer.kpool", 0)? > 0, blocks.collect())
    };
    let k = key.checked_mul(if pools { rows } else { 1 });
    Ok(match k.filter(|&k| k > 0) {
        Some(k) => Ok(Index { k, blocks }),
        None => Err("with an indexer of no size".into()),
    })
}

impl Hybrid {
    /// Which blocks are recurrent, or why that is unknown.
    fn recurring(
        self,
        keys: &Keys<'_>,
        hparams: &Hyperparameters,
    ) -> Result<Result<Vec<bool>, String>, Error> {
        let n_layer = hparams.n_layer as usize;
        let without_heads = |il: usize| hparams.n_head_kv[il] == 0;
        Ok(Ok(match self.recurring {
            Recurring::Every => vec![true; n_layer],
            Recurring::WithoutKeyHeads => (0..n_layer).map(without_heads).collect(),
            Recurring::WithoutKeyHeadsAndForward => (0..n_layer)
                .map(|il| without_heads(il) && hparams.n_ff_of[il] == 0)
                .collect(),
            Recurring::AllButEvery(default) => {
                if let Some(listed) =
                    keys.per_layer("attention.recurrent_layers", hparams.n_layer as usize)?
                {
                    return Ok(Ok(listed.iter().map(|&flag| flag != 0).collect()));
                }
                let every = keys.or("full_attention_interval", default)? as usize;
                if every == 0 {
                    // An integer division by zero.
                    return Ok(Err("with an interval of no blocks".into()));
                }
                (0..n_layer).map(|il| (il + 1) % every != 0).collect()
            }
        }))
    }
}

impl Mixer {
    /// llama-hparams.cpp, `n_embd_r`, `n_embd_s`, in 32 bits; `None` where those overflow or nothing is kept.
    fn state(
        self,
        keys: &Keys<'_>,
        hparams: &Hyperparameters,
    ) -> Result<Option<RecurrentState>, Error> {
        let n_embd = hparams.n_embd;
        let first_heads = hparams.n_head[0];
        let (r, s) = match self {
            Self::Mamba | Self::Mamba2 => {
                let conv = keys.required("ssm.conv_kernel")?;
                let inner = keys.required("ssm.inner_size")?;
                let state = keys.required("ssm.state_size")?;
                let groups = match self {
                    Self::Mamba2 => keys.required("ssm.group_count")?,
                    _ => 0,
                };
                let both = groups.checked_mul(state).and_then(|n| n.checked_mul(2));
                let width = both.and_then(|n| n.checked_add(inner));
                let past = width.and_then(|n| n.checked_mul(conv.saturating_sub(1)));
                (past, state.checked_mul(inner))
            }
            Self::Rwkv => {
                let head = keys.required("wkv.head_size")?;
                let shifts = keys.or("token_shift_count", 2)?;
                let state = n_embd.checked_mul(head).filter(|_| head > 0);
                (shifts.checked_mul(n_embd), state)
            }
            Self::ShortConvolution => {
                let past = keys.required("shortconv.l_cache")?.checked_sub(1);
                (past.and_then(|n| n.checked_mul(n_embd)), Some(0))
            }
            Self::Kda => {
                let head = keys.required("kda.head_dim")?;
                let conv = keys.required("ssm.conv_kernel")?;
                let past = if conv > 0 { conv - 1 } else { 3 };
                let width = head.checked_mul(first_heads).filter(|_| head > 0);
                (
                    width.and_then(|n| n.checked_mul(past)?.checked_mul(3)),
                    width.and_then(|n| n.checked_mul(head)),
                )
            }
            Self::Lightning => {
                let head = hparams.head_dim_k;
                let state = head.checked_mul(head);
                (Some(0), state.and_then(|n| n.checked_mul(first_heads)))
            }
        };
        let state = r.zip(s).filter(|&(r, s)| r > 0 || s > 0);
        Ok(state.map(|(r, s)| RecurrentState { r, s }))
    }
}
