//! Blocks with several caches: keys for the attention, and index keys that select among these keys.

use super::arch::{Indexer, Pattern, Unstated, Window};
use super::kv_layout::{Facts, Kept, NoLayout, PREDICTS, Windows, unknown, windows};
use super::{BlockState, Part, Rows};

const TYPES: &str = "attention.indexer.types";
const RATIOS: &str = "attention.compress_ratios";

/// The reason to reject a model in which no block has an index. llama.cpp computes the width of the rotation matrix in
/// a loop that divides by zero if a cache has no blocks (llama-kv-cache.cpp, the constructor).
const EMPTY: &str = "llama.cpp ends the process if no block has an index (llama-kv-cache.cpp, the constructor)";

/// `DSV4_CSA_RATIO` and `DSV4_HCA_RATIO` (llama-kv-cache-dsv4.h).
const CLOSE: u32 = 4;
const FAR: u32 = 128;

/// The state of each block.
pub(super) fn blocks(facts: Facts<'_>, indexer: Indexer) -> Result<Kept, NoLayout> {
    let Facts { keys, hparams } = facts;
    let compressed = hparams.is_mla();
    let own_widths = matches!(indexer, Indexer::AfterDense | Indexer::Distilled | Indexer::DistilledAndReused);
    if !compressed && !own_widths {
        return unknown("without the widths of compressed keys");
    }
    // For these kinds of index, no filter excludes prediction blocks (llama-model.cpp, `create_memory`).
    let unfiltered = matches!(indexer, Indexer::AfterDense | Indexer::ListedIfChoosing | Indexer::ListedAndReused);
    if unfiltered && hparams.n_layer_nextn > 0 {
        return unknown(PREDICTS);
    }
    let trunk = hparams.n_layer_trunk() as usize;
    let types = match indexer {
        Indexer::Glm(_) | Indexer::ListedIfChoosing | Indexer::ListedAndReused => {
            keys.flags(TYPES, hparams.n_layer_trunk())?
        }
        _ => None,
    };
    let indexed = match indexer {
        Indexer::Distilled => return distilled(facts),
        Indexer::DistilledAndReused => return distilled_and_reused(facts),
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
        Indexer::Glm(_) | Indexer::ListedAndReused => types.unwrap_or_else(|| vec![true; trunk]),
        Indexer::ListedIfChoosing => {
            let chooses = keys.or("attention.indexer.top_k", 0)? > 0;
            types.filter(|_| chooses).unwrap_or_else(|| vec![false; trunk])
        }
    };
    if matches!(indexer, Indexer::Glm(_)) {
        keys.check(indexed.contains(&true), TYPES, &"without an index", &EMPTY)?;
    }
    let index_k = keys.or("attention.indexer.key_length", 0)?;
    if index_k == 0 && indexed.contains(&true) {
        return unknown("with an indexer of no size");
    }
    let sources = match indexer {
        Indexer::ListedAndReused => sources(facts, &indexed)?,
        _ => (0..trunk).collect(),
    };
    let blocks = hparams.each_block(|il| {
        let (k, v) = hparams.state(il);
        let v = (!compressed).then_some(v);
        if sources[il] != il {
            // Each block with an index has its own index keys (llama-kv-cache-dsa.cpp, the constructor).
            return BlockState::new(indexed[il].then_some((Part::IndexKeys, index_k, Rows::Tokens)));
        }
        match (indexed[il], v) {
            // The values of an index have one head with the width of the cache (llama-kv-cache-msa.cpp, the
            // constructor).
            (true, v) => BlockState::indexed(k, v, index_k, v.map(|_| hparams.head_dim_v)),
            (false, None) => BlockState::compressed(k, Rows::Tokens),
            (false, Some(_)) => hparams.full(il),
        }
    });
    Ok((blocks, None))
}

/// For each block, the block whose compressed keys it uses (models/mistral-large4.cpp, `load_arch_hparams`).
fn sources(Facts { keys, hparams }: Facts<'_>, indexed: &[bool]) -> Result<Vec<usize>, NoLayout> {
    let trunk = hparams.n_layer_trunk();
    let sources = match keys.per_layer("attention.kv_source_map", trunk as usize)? {
        Some(listed) => listed.into_iter().map(|source| source as usize).collect(),
        None => (0..trunk as usize).collect::<Vec<_>>(),
    };
    let rotates = keys.flags("attention.rope_pattern", trunk)?.unwrap_or_else(|| vec![true; trunk as usize]);
    // llama.cpp rejects a file whose first block has no index.
    if !indexed[0] {
        return unknown("without an indexer in its first block");
    }
    let fits =
        |(il, &source): (usize, &usize)| source <= il && sources[source] == source && rotates[source] == rotates[il];
    if !sources.iter().enumerate().all(fits) {
        return unknown("with a block that uses keys that no earlier block keeps");
    }
    Ok(sources)
}

/// Every block has compressed keys: some blocks keep a window of them, the others have an index
/// (llama-kv-cache-dsa-iswa.cpp, the constructor).
fn beside_windows(facts: Facts<'_>) -> Result<Kept, NoLayout> {
    let Facts { keys, hparams } = facts;
    let window = Window { unstated: Unstated::Refused, fixed: None, pattern: Pattern::Listed };
    let Some(windows) = windows(facts, window)? else {
        return unknown("without a sliding window");
    };
    let n_layer = hparams.n_layer as usize;
    let trunk = hparams.n_layer_trunk() as usize;
    // The list covers either all blocks, or only the blocks that compute a token. llama.cpp does not look up prediction
    // blocks in it.
    let types = match keys.list(TYPES)? {
        Some(types) if types.len() == trunk || types.len() == n_layer => types,
        _ => return unknown("without a list of its indexers"),
    };
    let index_k = keys.required("attention.indexer.key_length")?;
    keys.check(types[..trunk].iter().any(|&ty| ty != 0), TYPES, &"without an index", &EMPTY)?;
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

/// Every block keeps a window, including the blocks that predict further tokens. The tokens before the window are
/// compressed at two ratios (llama-kv-cache-dsv4.cpp, the constructor).
fn distilled(facts: Facts<'_>) -> Result<Kept, NoLayout> {
    let hparams = facts.hparams;
    let index = facts.keys.required("attention.indexer.key_length")?;
    let ratios = ratios(facts)?;
    if ratios.iter().any(|ratio| ![0, CLOSE, FAR].contains(ratio)) {
        return unknown("that distils by a ratio other than 4 and 128");
    }
    let trunk = hparams.n_layer_trunk() as usize;
    facts.keys.check(ratios[..trunk].contains(&CLOSE), RATIOS, &"without a ratio of 4", &EMPTY)?;
    // llama.cpp also creates a cache for blocks without a window, although there are no such blocks.
    let limit = "llama.cpp ends the process if keys have the same width (llama-kv-cache.cpp, the constructor)";
    facts.keys.check(hparams.head_dim_k != index, "attention.indexer.key_length", &index, &limit)?;
    let compressed = |il: usize| {
        let (ratio, close) = (ratios[il], ratios[il] == CLOSE);
        // If the ratio is `CLOSE`, groups overlap, so two groups are pending. The state holds their tokens and weights.
        let groups = if close { 2 } else { 1 };
        let pending = |width: u32| width.saturating_mul(groups).saturating_mul(groups * ratio);
        let keys = [Some(hparams.windowed_state(il).0), close.then_some(index)].into_iter().flatten();
        let keys = keys.map(|n| (Part::IndexKeys, n, Rows::Groups(ratio)));
        let widths = [Some(hparams.head_dim_k_swa), close.then_some(index)].into_iter().flatten();
        let pending = widths.flat_map(|width| [(Part::State, pending(width), Rows::Pending); 2]);
        BlockState::new(keys.chain(pending))
    };
    beside_own_windows(facts, |il| if ratios[il] == 0 { BlockState::default() } else { compressed(il) })
}

/// As [`distilled`], but at the ratios 1 and 2, and with compressed keys and index keys in the same row. Only some
/// blocks keep compressed keys. Any other block with a ratio reads the compressed keys of the nearest earlier block
/// that keeps them (models/deepseek41.cpp, `load_arch_hparams`; llama-kv-cache-dsv4.cpp, the constructor).
fn distilled_and_reused(facts: Facts<'_>) -> Result<Kept, NoLayout> {
    let Facts { keys, hparams } = facts;
    let index = keys.required("attention.indexer.key_length")?;
    let ratios = ratios(facts)?;
    let trunk = hparams.n_layer_trunk() as usize;
    let (Some(sources), Some(choosers)) =
        (keys.list("attention.kv_source_layers")?, keys.list("attention.indexer.source_layers")?)
    else {
        return unknown("without a list of the blocks that keep compressed keys");
    };
    let mut reads = vec![None; trunk];
    let (mut last, mut chooser) = (None, None);
    for il in 0..trunk {
        let is_in = |list: &[u32]| list.iter().any(|&listed| listed as usize == il);
        last = if is_in(&sources) { Some(il) } else { last };
        chooser = if is_in(&choosers) { Some(il) } else { chooser };
        if ratios[il] == 0 {
            continue;
        }
        // llama.cpp rejects a file in which a block's source is missing or has another ratio.
        let fits = |of: Option<usize>| of.is_some_and(|of| ratios[of] == ratios[il]);
        if ratios[il] > 2 || !fits(last) || !fits(chooser) || chooser < last {
            return unknown("with a block that reads compressed keys of no earlier block");
        }
        reads[il] = last;
    }
    let head = hparams.head_dim_k_swa;
    let compressed = |il: usize| {
        let ratio = ratios[il];
        let row = head.saturating_add(index);
        // The state contains the pending tokens and their weights.
        let pending = (Part::State, head.saturating_mul(ratio), Rows::Pending);
        BlockState::new([(Part::IndexKeys, row, Rows::Groups(ratio)), pending, pending])
    };
    beside_own_windows(facts, |il| match reads.get(il).copied().flatten() {
        Some(source) if source == il => compressed(il),
        Some(source) => BlockState { reads: Some(source), ..BlockState::default() },
        None => BlockState::default(),
    })
}

/// The ratio at which each block compresses tokens; 0 for a block that does not compress tokens.
fn ratios(Facts { keys, hparams }: Facts<'_>) -> Result<Vec<u32>, NoLayout> {
    let n_layer = hparams.n_layer as usize;
    let ratios = match keys.list(RATIOS)? {
        Some(ratios) if ratios.len() >= n_layer => ratios,
        _ => return unknown("without a ratio for each block"),
    };
    // If a prediction block has a ratio, llama.cpp looks it up in a list that has only the blocks before it
    // (llama-kv-cache-dsv4.cpp, `is_comp_owner`).
    for &ratio in &ratios[hparams.n_layer_trunk() as usize..n_layer] {
        let limit = "llama.cpp reads beyond a list if a block that predicts further tokens compresses tokens";
        keys.check(ratio == 0, RATIOS, &ratio, &limit)?;
    }
    Ok(ratios)
}

/// The state of a model in which every block keeps a window of keys for each sequence, and in addition the tensors that
/// `also` returns for the block.
fn beside_own_windows(
    Facts { keys, hparams }: Facts<'_>,
    also: impl Fn(usize) -> BlockState,
) -> Result<Kept, NoLayout> {
    let tokens = keys.required("attention.sliding_window")?;
    let n_layer = hparams.n_layer as usize;
    let block = |il: usize| {
        let (also, (k, _)) = (also(il), hparams.windowed_state(il));
        let reads = also.reads;
        BlockState { reads, ..BlockState::compressed(k, Rows::OwnWindow(tokens)).and(&also) }
    };
    let windows = Windows { tokens, blocks: vec![true; n_layer] };
    Ok(((0..n_layer).map(block).collect(), Some(windows)))
}
