//! The state of recurrent blocks, and the recurrent blocks of a hybrid model.

use super::arch::{Attention, Hybrid, Mixer, Pattern, Predicting, Recurring, Unstated, Window, Windowed};
use super::kv_layout::{self, Facts, Kept, NoLayout, PREDICTS, Windows, unknown};
use super::{BlockState, Rows};

impl Hybrid {
    /// The state of each block of a hybrid model (llama-model.cpp, `create_memory`).
    pub(super) fn blocks(self, facts: Facts<'_>) -> Result<Kept, NoLayout> {
        let hparams = facts.hparams;
        let windows = self.windows(facts)?;
        if hparams.n_layer_nextn > 0 && self.predicting == Predicting::Unread {
            return unknown(PREDICTS);
        }
        let state = self.mixer.state(facts)?;
        let is_recurrent = self.recurring(facts)?;
        let Attention { compressed, indexed, .. } = self.attention;
        if compressed && !hparams.is_mla() {
            return unknown("without the widths of compressed keys");
        }
        // The head size is 0 in a file whose first block has no heads (llama-model.cpp, `load_hparams`).
        if hparams.head_dim_k == 0 && is_recurrent.contains(&false) {
            return unknown("whose first block has no heads");
        }
        let index = indexed.map(|rows| index(facts, rows)).transpose()?;
        let attends = |il: usize| {
            let (k, v) = hparams.state(il);
            let index = index.as_ref().filter(|(_, blocks)| blocks[il]);
            match (index, &windows) {
                (Some(&(index_k, _)), _) => BlockState::indexed(k, (!compressed).then_some(v), index_k, None),
                (None, Some(windows)) if windows.blocks[il] => {
                    BlockState::attended(hparams.windowed_state(il), Rows::Window(windows.tokens))
                }
                (None, _) if compressed => BlockState::compressed(k, Rows::Tokens),
                (None, _) => BlockState::attended((k, v), Rows::Tokens),
            }
        };
        let trunk = hparams.n_layer_trunk() as usize;
        let forward = |il: usize| self.recurring == Recurring::WithoutKeyHeadsAndForward && hparams.n_ff_of[il] > 0;
        let blocks = (0..hparams.n_layer as usize).map(|il| match self.recurring {
            Recurring::Every => hparams.full(il).and(&state),
            _ if il >= trunk && self.predicting == Predicting::Nothing => BlockState::default(),
            _ if forward(il) => BlockState::default(),
            _ if il < trunk && is_recurrent[il] => state.clone(),
            _ => attends(il),
        });
        Ok((blocks.collect(), windows))
    }

    /// The windows of the blocks that attend, if there are any.
    fn windows(self, facts: Facts<'_>) -> Result<Option<Windows>, NoLayout> {
        let Facts { keys, hparams } = facts;
        match self.attention.windowed {
            Windowed::Never => Ok(None),
            Windowed::AllIfStated => {
                let tokens = keys.or("attention.sliding_window", 0)?;
                let blocks = hparams.n_head_kv.iter().map(|&heads| heads > 0).collect();
                Ok((tokens > 0).then_some(Windows { tokens, blocks }))
            }
            Windowed::Listed => {
                let listed = Window { unstated: Unstated::Refused, fixed: None, pattern: Pattern::Listed };
                kv_layout::windows(facts, listed)
            }
        }
    }

    /// For each block, whether it is recurrent.
    fn recurring(self, Facts { keys, hparams }: Facts<'_>) -> Result<Vec<bool>, NoLayout> {
        let blocks = 0..hparams.n_layer as usize;
        let without_heads = |il: usize| hparams.n_head_kv[il] == 0;
        Ok(match self.recurring {
            Recurring::Every => blocks.map(|_| true).collect(),
            Recurring::WithoutKeyHeads => blocks.map(without_heads).collect(),
            Recurring::WithoutKeyHeadsAndForward => {
                blocks.map(|il| without_heads(il) && hparams.n_ff_of[il] == 0).collect()
            }
            Recurring::AllButEvery(default) => {
                if let Some(listed) = keys.flags("attention.recurrent_layers", hparams.n_layer)? {
                    return Ok(listed);
                }
                let every = keys.or("full_attention_interval", default)? as usize;
                if every == 0 {
                    // With such an interval, llama.cpp would divide by zero.
                    return unknown("with an interval of no blocks");
                }
                blocks.map(|il| (il + 1) % every != 0).collect()
            }
        })
    }
}

/// The index of a hybrid model (llama-memory-hybrid-idx.cpp, the constructor). Returns the elements of a key (times
/// `rows` if keys are pooled) and, for each block, whether it has an index; this matters only for blocks with
/// attention.
fn index(Facts { keys, hparams }: Facts<'_>, rows: u32) -> Result<(u32, Vec<bool>), NoLayout> {
    let key = keys.required("attention.indexer.key_length")?;
    let n_layer = hparams.n_layer as usize;
    // Blocks with these embeddings would also keep the past of a convolution (llama-hparams.cpp, `ple_conv_state`).
    if keys.get("ple.layers").is_some() {
        return unknown("with embeddings of word parts");
    }
    let (pools, blocks) = if keys.architecture == "qwen4exp" {
        // A block with a compression ratio pools its keys (models/qwen4exp.cpp, `load_arch_hparams`).
        let ratios = keys.flags("attention.compress_ratios", hparams.n_layer)?;
        let pools = ratios.is_some_and(|ratios| ratios.contains(&true));
        (pools, vec![true; n_layer])
    } else {
        let trunk = hparams.n_layer_trunk();
        let types = keys.flags("attention.indexer.types", trunk)?;
        let mut blocks = types.unwrap_or_else(|| vec![true; trunk as usize]);
        blocks.resize(n_layer, false);
        (keys.or("attention.indexer.kpool", 0)? > 0, blocks)
    };
    match key.checked_mul(if pools { rows } else { 1 }) {
        Some(k) if k > 0 => Ok((k, blocks)),
        _ => unknown("with an indexer of no size"),
    }
}

impl Mixer {
    /// The state of every block.
    pub(super) fn blocks(self, facts: Facts<'_>) -> Result<Vec<BlockState>, NoLayout> {
        if facts.hparams.n_layer_nextn > 0 {
            return unknown(PREDICTS);
        }
        let state = self.state(facts)?;
        Ok(facts.hparams.each_block(|_| state.clone()))
    }

    /// The recurrent state of a block, in 32-bit arithmetic (llama-hparams.cpp, `n_embd_r`, `n_embd_s`). The layout is
    /// unknown if a number overflows or the state is empty.
    fn state(self, Facts { keys, hparams }: Facts<'_>) -> Result<BlockState, NoLayout> {
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
                (width.and_then(|n| n.checked_mul(past)?.checked_mul(3)), width.and_then(|n| n.checked_mul(head)))
            }
            Self::Lightning => {
                let head = hparams.head_dim_k;
                let state = head.checked_mul(head);
                (Some(0), state.and_then(|n| n.checked_mul(first_heads)))
            }
        };
        match (r, s) {
            (Some(r), Some(s)) if r > 0 || s > 0 => Ok(BlockState::recurrent(r, s)),
            _ => unknown("with a state of no size"),
        }
    }
}
