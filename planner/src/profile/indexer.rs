//! Blocks that keep more than one cache: keys to attend with, and keys to choose those by.

use super::arch::{Indexer, Pattern, Unstated, Window};
use super::hparams::Keys;
use super::hybrid::is_compressed;
use super::state::{BlockState, Blocks, Distilled, DistilledState, IndexedState};
use super::window::{self, Windows};
use super::{Error, Hyperparameters};

const TYPES: &str = "attention.indexer.types";

/// `DSV4_CSA_RATIO` and `DSV4_HCA_RATIO` (llama-kv-cache-dsv4.h).
const CLOSE: u32 = 4;
const FAR: u32 = 128;

/// What each block keeps, or why that is unknown.
pub(super) fn blocks(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    indexer: Indexer,
) -> Result<(Blocks, Option<Windows>), Error> {
    let compressed = is_compressed(keys)?;
    let unknown = |why: &str| Ok((Err(why.to_owned()), None));
    match indexer {
        Indexer::AfterDense | Indexer::Distilled => {}
        _ if !compressed => return unknown("without the widths of compressed keys"),
        _ => {}
    }
    // There no filter keeps prediction blocks out (llama-model.cpp, `create_memory`).
    if matches!(indexer, Indexer::AfterDense | Indexer::ListedIfChoosing)
        && hparams.n_layer_nextn > 0
    {
        return unknown("with blocks that predict further tokens");
    }
    let trunk = hparams.n_layer_trunk() as usize;
    let types = match indexer {
        Indexer::Glm(_) | Indexer::ListedIfChoosing => keys.per_layer(TYPES, trunk)?,
        _ => None,
    };
    let listed = |types: Option<Vec<u32>>, default: u32| {
        let types = types.unwrap_or_else(|| vec![default; trunk]);
        let flags: Vec<bool> = types.iter().map(|&flag| flag != 0).collect();
        flags
    };
    let indexed = match indexer {
        Indexer::Distilled => return distilled(keys, hparams),
        Indexer::ListedBesideWindows => return beside_windows(keys, hparams),
        Indexer::Every => vec![true; trunk],
        Indexer::AfterDense => {
            let dense = keys.or("leading_dense_block_count", 0)? as usize;
            (0..trunk).map(|il| il >= dense).collect()
        }
        // The first three of 78, and then every fourth (models/glm-dsa.cpp, `GLM_5_2_DEFAULT_INDEXER_TYPES`).
        Indexer::Glm(n_ctx) if hparams.n_ctx_train >= n_ctx && types.is_none() => (0..trunk)
            .map(|il| il < 78 && (il < 2 || il % 4 == 2))
            .collect(),
        Indexer::Glm(_) => listed(types, 1),
        Indexer::ListedIfChoosing => {
            if keys.or("attention.indexer.top_k", 0)? == 0 {
                vec![false; trunk]
            } else {
                listed(types, 0)
            }
        }
    };
    let index_k = keys.or("attention.indexer.key_length", 0)?;
    if index_k == 0 && indexed.contains(&true) {
        return unknown("with an indexer of no size");
    }
    let blocks = hparams.each_block(|il| {
        let cache = hparams.state(il);
        let v = (!compressed).then_some(cache.v);
        match (indexed[il], v) {
            (true, v) => BlockState::Indexed(IndexedState {
                k: cache.k,
                v,
                index_k,
                // One head of the cache's own width (llama-kv-cache-msa.cpp, the constructor).
                index_v: v.map(|_| hparams.head_dim_v),
            }),
            (false, None) => BlockState::Compressed { k: cache.k },
            (false, Some(_)) => BlockState::Full(cache),
        }
    });
    Ok((Ok(blocks), None))
}

/// Compressed keys, some of a window; indexers beside the others (llama-kv-cache-dsa-iswa.cpp, the constructor).
fn beside_windows(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
) -> Result<(Blocks, Option<Windows>), Error> {
    let window = Window {
        unstated: Unstated::Refused,
        fixed: None,
        pattern: Pattern::Listed,
    };
    let windows = match window::read(keys, hparams, window)? {
        Ok(Some(windows)) => windows,
        Ok(None) => return Ok((Err("without a sliding window".into()), None)),
        Err(why) => return Ok((Err(why), None)),
    };
    let n_layer = hparams.n_layer as usize;
    let trunk = hparams.n_layer_trunk() as usize;
    // A list of all blocks or of those that compute a token: those that predict are not asked for.
    let types = match keys.list(TYPES)? {
        Some(types) if types.len() == trunk || types.len() == n_layer => types,
        _ => return Ok((Err("without a list of its indexers".into()), None)),
    };
    let index_k = keys.required("attention.indexer.key_length")?;
    if (0..trunk).any(|il| windows.blocks[il] && types[il] != 0) {
        return Ok((Err("with an indexer in a windowed block".into()), None));
    }
    let blocks = hparams.each_block(|il| {
        if windows.blocks[il] {
            return BlockState::CompressedWindowed {
                k: hparams.windowed_state(il).k,
                window: windows.tokens,
            };
        }
        let k = hparams.state(il).k;
        if types[il] == 0 {
            return BlockState::Compressed { k };
        }
        BlockState::Indexed(IndexedState {
            k,
            v: None,
            index_k,
            index_v: None,
        })
    });
    Ok((Ok(blocks), Some(windows)))
}

/// A window in every block, prediction blocks included, and what lies before it at two ratios (llama-kv-cache-dsv4.cpp,
/// the constructor).
fn distilled(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
) -> Result<(Blocks, Option<Windows>), Error> {
    let tokens = keys.required("attention.sliding_window")?;
    let index = keys.required("attention.indexer.key_length")?;
    let n_layer = hparams.n_layer as usize;
    let ratios = match keys.list("attention.compress_ratios")? {
        Some(ratios) if ratios.len() >= n_layer => ratios,
        _ => return Ok((Err("without a ratio for each block".into()), None)),
    };
    if ratios.iter().any(|ratio| ![0, CLOSE, FAR].contains(ratio)) {
        return Ok((
            Err("that distils by another ratio than 4 and 128".into()),
            None,
        ));
    }
    let trunk = hparams.n_layer_trunk() as usize;
    let head = hparams.head_dim_k_swa;
    let blocks = (0..n_layer).map(|il| {
        let k = hparams.windowed_state(il).k;
        // Of two groups where they overlap.
        let pending = |width: u32, ratio: u32| {
            let width = if ratio == CLOSE {
                width.saturating_mul(2)
            } else {
                width
            };
            let tokens = if ratio == CLOSE { 2 * ratio } else { ratio };
            if il < trunk {
                width.saturating_mul(tokens)
            } else {
                0
            }
        };
        let close = ratios[il] == CLOSE;
        BlockState::Distilled(DistilledState {
            k,
            window: tokens,
            distilled: (ratios[il] > 0).then(|| Distilled {
                ratio: ratios[il],
                index_k: close.then_some(index),
                pending: pending(head, ratios[il]),
                index_pending: if close { pending(index, CLOSE) } else { 0 },
            }),
        })
    });
    let windows = Windows {
        tokens,
        blocks: vec![true; n_layer],
    };
    Ok((Ok(blocks.collect()), Some(windows)))
}
