//! Blocks with several caches: keys to attend with, and index keys that select among them.

use super::arch::{Indexer, Pattern, Unstated, Window};
use super::kv_layout::{Facts, Kept, NoLayout, PREDICTS, Windows, unknown, windows};
use super::{BlockState, Part, Rows};

const TYPES: &str = "attention.indexer.types";

/// `DSV4_CSA_RATIO` and `DSV4_HCA_RATIO` (llama-kv-cache-dsv4.h).
const CLOSE: u32 = 4;
const FAR: u32 = 128;

/// The state of each block.
pub(super) fn blocks(facts: Facts<'_>, indexer: Indexer) -> Result<Kept, NoLayout> {
    let Facts { keys, hparams } = facts;
    let compressed = hparams.is_mla();
    if !compressed && !matches!(indexer, Indexer::AfterDense | Indexer::Distilled) {
        return unknown("without the widths of compressed keys");
    }
    // For these, no filter excludes prediction blocks (llama-model.cpp, `create_memory`).
    let unfiltered = matches!(indexer, Indexer::AfterDense | Indexer::ListedIfChoosing);
    if unfiltered && hparams.n_layer_nextn > 0 {
        return unknown(PREDICTS);
    }
    let trunk = hparams.n_layer_trunk() as usize;
    let types = match indexer {
        Indexer::Glm(_) | Indexer::ListedIfChoosing => keys.flags(TYPES, hparams.n_layer_trunk())?,
        _ => None,
    };
    let indexed = match indexer {
        Indexer::Distilled => return distilled(facts),
        Indexer::ListedBesideWindows => return beside_windows(facts),
        Indexer::Every => vec![true; trunk],
        Indexer::AfterDense => {
            let dense = keys.or("leading_dense_block_count", 0)? as usize;
            (0..trunk).map(|il| il >= dense).collect()
        }
        // The first three of 78 blocks, and then every fourth (models/glm-dsa.cpp, `GLM_5_2_DEFAULT_INDEXER_TYPES`).
        Indexer::Glm(n_ctx) if hparams.n_ctx_train >= n_ctx && types.is_none() => {
            (0..trunk).map(|il| il < 78 && (il < 2 || il % 4 == 2)).collect()
        }
        Indexer::Glm(_) => types.unwrap_or_else(|| vec![true; trunk]),
        Indexer::ListedIfChoosing => {
            let chooses = keys.or("attention.indexer.top_k", 0)? > 0;
            types.filter(|_| chooses).unwrap_or_else(|| vec![false; trunk])
        }
    };
    let index_k = keys.or("attention.indexer.key_length", 0)?;
    if index_k == 0 && indexed.contains(&true) {
        return unknown("with an indexer of no size");
    }
    let blocks = hparams.each_block(|il| {
        let (k, v) = hparams.state(il);
        let v = (!compressed).then_some(v);
        match (indexed[il], v) {
            // Values of one head of the cache's width (llama-kv-cache-msa.cpp, the constructor).
            (true, v) => BlockState::indexed(k, v, index_k, v.map(|_| hparams.head_dim_v)),
            (false, None) => BlockState::compressed(k, Rows::Tokens),
            (false, Some(_)) => hparams.full(il),
        }
    });
    Ok((blocks, None))
}

/// Compressed keys, in some blocks of a window; the others have an index (llama-kv-cache-dsa-iswa.cpp, the
/// constructor).
fn beside_windows(facts: Facts<'_>) -> Result<Kept, NoLayout> {
    let Facts { keys, hparams } = facts;
    let window = Window { unstated: Unstated::Refused, fixed: None, pattern: Pattern::Listed };
    let Some(windows) = windows(facts, window)? else {
        return unknown("without a sliding window");
    };
    let n_layer = hparams.n_layer as usize;
    let trunk = hparams.n_layer_trunk() as usize;
    // The list covers all blocks or only those that compute a token; blocks that predict are not looked up.
    let types = match keys.list(TYPES)? {
        Some(types) if types.len() == trunk || types.len() == n_layer => types,
        _ => return unknown("without a list of its indexers"),
    };
    let index_k = keys.required("attention.indexer.key_length")?;
    if (0..trunk).any(|il| windows.blocks[il] && types[il] != 0) {
        return unknown("with an indexer in a windowed block");
    }
    let blocks = hparams.each_block(|il| {
        let (k, _) = hparams.state(il);
        match (windows.blocks[il], types[il]) {
            (true, _) => BlockState::compressed(hparams.windowed_state(il).0, Rows::Window(windows.tokens)),
            (false, 0) => BlockState::compressed(k, Rows::Tokens),
            (false, _) => BlockState::indexed(k, None, index_k, None),
        }
    });
    Ok((blocks, Some(windows)))
}

/// A window in every block, including those that predict, and the tokens before it compressed at two ratios
/// (llama-kv-cache-dsv4.cpp, the constructor).
fn distilled(Facts { keys, hparams }: Facts<'_>) -> Result<Kept, NoLayout> {
    let tokens = keys.required("attention.sliding_window")?;
    let index = keys.required("attention.indexer.key_length")?;
    let n_layer = hparams.n_layer as usize;
    let ratios = match keys.list("attention.compress_ratios")? {
        Some(ratios) if ratios.len() >= n_layer => ratios,
        _ => return unknown("without a ratio for each block"),
    };
    if ratios.iter().any(|ratio| ![0, CLOSE, FAR].contains(ratio)) {
        return unknown("that distils by another ratio than 4 and 128");
    }
    let trunk = hparams.n_layer_trunk() as usize;
    let blocks = (0..n_layer).map(|il| {
        let (k, _) = hparams.windowed_state(il);
        let window = BlockState::compressed(k, Rows::OwnWindow(tokens));
        let (ratio, close) = (ratios[il], ratios[il] == CLOSE);
        if ratio == 0 {
            return window;
        }
        // Overlapping ratios have two groups. The state holds the pending tokens and their weights.
        let groups = if close { 2 } else { 1 };
        let pending = |width: u32| match il < trunk {
            true => width.saturating_mul(groups).saturating_mul(groups * ratio),
            false => 0,
        };
        let keys = [Some(k), close.then_some(index)].into_iter().flatten();
        let keys = keys.map(|n| (Part::IndexKeys, n, Rows::Groups(ratio)));
        let widths = [Some(hparams.head_dim_k_swa), close.then_some(index)].into_iter().flatten();
        let pending = widths.flat_map(|width| [(Part::State, pending(width), Rows::Sequences); 2]);
        window.and(&BlockState::new(keys.chain(pending)))
    });
    let windows = Windows { tokens, blocks: vec![true; n_layer] };
    Ok((blocks.collect(), Some(windows)))
}
