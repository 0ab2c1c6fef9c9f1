//! The law by which context takes memory.

use crate::gguf::Header;

use super::arch::{self, Law, Reuse, Window};
use super::hparams::Keys;
use super::window::{self, Windows};
use super::{Error, Hyperparameters, hybrid, indexer};

/// How a model's context takes memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateLaw {
    /// We know the law of every block.
    Known {
        /// What each block keeps.
        blocks: Vec<BlockState>,
        /// Elements of the values of the widest block, whether that has a cache or not (`n_embd_v_gqa_max`): without
        /// flash attention all caches are as wide (llama-kv-cache.cpp, the constructor).
        widest_v: u32,
        /// Which blocks attend to a sliding window, those included that keep nothing of their own; empty if none does.
        windowed: Vec<bool>,
    },
    /// We do not know the law of this architecture: only a probe can say what its context takes.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// What one block keeps of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockState {
    /// Nothing: a next-token-prediction block (llama-model.cpp, `create_memory`).
    None,
    /// The keys and values of every token (`llama_kv_cache`).
    Full(LayerState),
    /// The keys and values of the last tokens (`llama_kv_cache_iswa`), of all where the context asks for
    /// it (`swa_full`).
    Windowed {
        /// What is kept of a token.
        state: LayerState,
        /// Tokens of the window (`n_swa`).
        window: u32,
    },
    /// One compressed key of every token for all heads, and no values: multi-head latent attention (llama-kv-cache.cpp,
    /// the constructor).
    Compressed {
        /// Elements of the key.
        k: u32,
    },
    /// The same of the last tokens only (`llama_kv_cache_dsa_iswa`).
    CompressedWindowed {
        /// Elements of the key.
        k: u32,
        /// Tokens of the window (`n_swa`).
        window: u32,
    },
    /// The keys of every token, and shorter keys that tell which of them to attend to (`llama_kv_cache_dsa`,
    /// `llama_kv_cache_msa`, `llama_memory_hybrid_idx`).
    Indexed(IndexedState),
    /// The keys of a window, and keys that stand for several tokens each before it (`llama_kv_cache_dsv4`).
    Distilled(DistilledState),
    /// A state of each sequence, whatever its length (`llama_memory_recurrent`).
    Recurrent(RecurrentState),
    /// Both, side by side (`llama_memory_hybrid`).
    FullAndRecurrent(LayerState, RecurrentState),
}

/// What one block keeps of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerState {
    /// Elements of its keys (`n_embd_k_gqa`, llama-hparams.cpp).
    pub k: u32,
    /// Elements of its values (`n_embd_v_gqa`).
    pub v: u32,
}

/// What one block with an indexer keeps of one token. Without values where keys are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexedState {
    /// Elements of its keys.
    pub k: u32,
    /// Elements of its values.
    pub v: Option<u32>,
    /// Elements of the indexer's keys.
    pub index_k: u32,
    /// Elements of the indexer's values, which nothing reads.
    pub index_v: Option<u32>,
}

/// What one block keeps that distils the tokens before its window (`DeepSeek` V4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DistilledState {
    /// Elements of a token's key.
    pub k: u32,
    /// Tokens of the window (`n_swa`).
    pub window: u32,
    /// How the tokens before it are kept, if they are.
    pub distilled: Option<Distilled>,
}

/// How tokens before a window are kept (llama-kv-cache-dsv4.cpp, the constructor).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Distilled {
    /// Tokens that one key stands for.
    pub ratio: u32,
    /// Elements of the indexer's keys, where there is an indexer.
    pub index_k: Option<u32>,
    /// Elements of what is not distilled yet, twice in 32-bit floats for each sequence; 0 in a block that
    /// predicts further tokens.
    pub pending: u32,
    /// The same of the indexer.
    pub index_pending: u32,
}

/// What one block keeps of one sequence, in 32-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecurrentState {
    /// Elements of the convolution's or token shift's past (`n_embd_r`).
    pub r: u32,
    /// Elements of the state (`n_embd_s`).
    pub s: u32,
}

/// A law, or why there is none.
pub(super) type Blocks = Result<Vec<BlockState>, String>;

impl StateLaw {
    pub(super) fn of(
        header: &Header,
        architecture: &str,
        hparams: &Hyperparameters,
    ) -> Result<Self, Error> {
        let keys = Keys {
            header,
            architecture,
        };
        let unknown = |why: &str| Self::Unknown {
            reason: format!("`{architecture}` {why}"),
        };
        let Some(law) = arch::law(architecture) else {
            return Ok(match arch::why_unknown(architecture) {
                Some(why) => Self::Unknown {
                    reason: format!("`{architecture}`: {why}"),
                },
                None => unknown("is no architecture we have read"),
            });
        };
        if hparams.n_layer_trunk() == 0 {
            return Ok(unknown("of nothing but blocks that predict further tokens"));
        }
        // What a batch is limited by, and so a window's cache (llama-context.cpp, the constructor).
        let causal = header.bool(&format!("{architecture}.attention.causal"))? != Some(false);
        if !causal && !matches!(law, Law::Nothing | Law::Full) {
            return Ok(unknown("without causal attention"));
        }
        let (blocks, windows) = match law {
            Law::Nothing => (Ok(vec![BlockState::None; hparams.n_layer as usize]), None),
            Law::Recurrent(mixer) => (hybrid::recurrent(&keys, hparams, mixer)?, None),
            Law::Hybrid(hybrid) => {
                let windows = hybrid::windows(&keys, hparams, hybrid)?;
                let blocks = hybrid::blocks(&keys, hparams, hybrid, windows.as_ref())?;
                (blocks, windows)
            }
            _ => {
                Self::check_heads(&keys, hparams)?;
                Self::attention(&keys, hparams, law)?
            }
        };
        let windows = windows.as_ref();
        Ok(match blocks {
            Ok(blocks) => Self::Known {
                blocks,
                widest_v: hparams.widest_v_of(|il| windows.is_some_and(|w| w.blocks[il])),
                windowed: windows.map(|w| w.blocks.clone()).unwrap_or_default(),
            },
            Err(why) => unknown(&why),
        })
    }

    /// What each block keeps where all of them attend.
    fn attention(
        keys: &Keys<'_>,
        hparams: &Hyperparameters,
        law: Law,
    ) -> Result<(Blocks, Option<Windows>), Error> {
        let windowed = |window| -> Result<_, Error> {
            Ok(match window::read(keys, hparams, window)? {
                Ok(Some(windows)) => (Ok(hparams.windowed(&windows)), Some(windows)),
                Ok(None) => (Ok(full(hparams)), None),
                Err(why) => (Err(why), None),
            })
        };
        Ok(match law {
            Law::Windowed(window) => windowed(window)?,
            Law::WindowedAt64Blocks(window) if hparams.n_layer_trunk() == 64 => windowed(window)?,
            Law::Drafting(_) if keys.or("hyper_connection.count", 0)? > 0 => {
                (Err("with hyper-connections".into()), None)
            }
            Law::Drafting(window) => windowed(window)?,
            Law::Reused(window, reuse) => reused(keys, hparams, window, reuse)?,
            Law::Compressible => (compressible(keys, hparams)?, None),
            Law::Indexed(indexer) => indexer::blocks(keys, hparams, indexer)?,
            Law::EncoderDecoder
                if keys.or("decoder_block_count", hparams.n_layer)? > hparams.n_layer =>
            {
                let why = "with more blocks that decode than that encode";
                (Err(why.into()), None)
            }
            Law::Routed => {
                let every = 0..hparams.n_layer as usize;
                (
                    Ok(every
                        .map(|il| BlockState::Full(hparams.state(il)))
                        .collect()),
                    None,
                )
            }
            _ => (Ok(full(hparams)), None),
        })
    }

    /// Attention cannot share queries among key heads otherwise: ggml_can_mul_mat and the flash-attention
    /// kernels assert it.
    fn check_heads(keys: &Keys<'_>, hparams: &Hyperparameters) -> Result<(), Error> {
        for (il, (&heads, &kv)) in hparams.n_head.iter().zip(&hparams.n_head_kv).enumerate() {
            // Blocks without any attention exist (deci): their keys have no heads.
            let holds = kv == 0 || (heads > 0 && heads % kv == 0);
            keys.check(
                holds,
                "attention.head_count_kv",
                kv,
                format!("it must divide the {heads} heads of block {il}"),
            )?;
        }
        keys.check(
            hparams.head_dim_k > 0 && hparams.head_dim_v > 0,
            "attention.head_count",
            hparams.n_head[0],
            "a model with attention has heads of at least one element (llama-model.cpp:1437)",
        )
    }

    /// Whether keys are compressed: then values are part of them, and there is one type for both.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        let compressed = |block: &BlockState| match block {
            BlockState::Compressed { .. }
            | BlockState::CompressedWindowed { .. }
            | BlockState::Distilled(_) => true,
            BlockState::Indexed(state) => state.v.is_none(),
            _ => false,
        };
        self.blocks().unwrap_or_default().iter().any(compressed)
    }

    /// Which blocks attend to a sliding window, where the law is known; empty if none does.
    #[must_use]
    pub fn windows(&self) -> Option<&[bool]> {
        match self {
            Self::Known { windowed, .. } => Some(windowed),
            Self::Unknown { .. } => None,
        }
    }

    /// What each block keeps, where the law is known.
    #[must_use]
    pub fn blocks(&self) -> Option<&[BlockState]> {
        match self {
            Self::Known { blocks, .. } => Some(blocks),
            Self::Unknown { .. } => None,
        }
    }
}

/// Every block keeps every token.
fn full(hparams: &Hyperparameters) -> Vec<BlockState> {
    let state = |il| BlockState::Full(hparams.state(il));
    hparams.each_block(state)
}

/// models/deepseek2.cpp: with the widths of both, the keys of all heads are one (`is_mla`, llama-hparams.cpp).
fn compressible(keys: &Keys<'_>, hparams: &Hyperparameters) -> Result<Blocks, Error> {
    let k = keys.or("attention.key_length_mla", 0)?;
    let v = keys.or("attention.value_length_mla", 0)?;
    Ok(match (k, v) {
        (0, 0) => Ok(full(hparams)),
        (0, _) | (_, 0) => Err("with the width of only one of compressed keys and values".into()),
        _ => {
            let key = |il| BlockState::Compressed {
                k: hparams.state(il).k,
            };
            Ok(hparams.each_block(key))
        }
    })
}

/// Blocks from some on use the cache of the last windowed or of the last full block before them
/// (llama-model.cpp, `create_memory`).
fn reused(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    window: Window,
    reuse: Reuse,
) -> Result<(Blocks, Option<Windows>), Error> {
    let windows = match window::read(keys, hparams, window)? {
        Ok(Some(windows)) => windows,
        Ok(None) => return Ok((Err("without a sliding window".into()), None)),
        Err(why) => return Ok((Err(why), None)),
    };
    if hparams.n_layer_nextn > 0 {
        return Ok((Err("with blocks that predict further tokens".into()), None));
    }
    let n_layer = hparams.n_layer;
    let from = match reuse {
        Reuse::From(block) => block,
        Reuse::Stated => n_layer.saturating_sub(keys.or("attention.shared_kv_layers", 0)?),
    };
    // llama.cpp ends the process where there is no such block (llama-kv-cache.cpp, the constructor).
    let first = from as usize;
    let fits =
        from >= 2 && (from >= n_layer || (windows.blocks[first - 2] && !windows.blocks[first - 1]));
    if !fits {
        let why = format!(
            "that uses the caches of blocks {} and {} again",
            first.wrapping_sub(2),
            first.wrapping_sub(1)
        );
        return Ok((Err(why), None));
    }
    let mut blocks = hparams.windowed(&windows);
    blocks
        .iter_mut()
        .skip(first)
        .for_each(|block| *block = BlockState::None);
    Ok((Ok(blocks), Some(windows)))
}

impl Hyperparameters {
    /// What block `il` keeps of a token.
    pub(super) fn state(&self, il: usize) -> LayerState {
        let heads = self.n_head_kv[il];
        LayerState {
            k: heads.saturating_mul(self.head_dim_k),
            v: heads.saturating_mul(self.head_dim_v),
        }
    }

    /// What block `il` keeps of a token if it is windowed.
    pub(super) fn windowed_state(&self, il: usize) -> LayerState {
        let heads = self.n_head_kv[il];
        LayerState {
            k: heads.saturating_mul(self.head_dim_k_swa),
            v: heads.saturating_mul(self.head_dim_v_swa),
        }
    }

    /// What `of` says of each block that computes a token; prediction blocks keep nothing (llama-model.cpp,
    /// `create_memory`).
    pub(super) fn each_block(&self, of: impl Fn(usize) -> BlockState) -> Vec<BlockState> {
        let trunk = self.n_layer_trunk() as usize;
        (0..self.n_layer as usize)
            .map(|il| if il < trunk { of(il) } else { BlockState::None })
            .collect()
    }

    /// What each block keeps if some of them are windowed.
    pub(super) fn windowed(&self, windows: &Windows) -> Vec<BlockState> {
        self.each_block(|il| {
            if windows.blocks[il] {
                BlockState::Windowed {
                    state: self.windowed_state(il),
                    window: windows.tokens,
                }
            } else {
                BlockState::Full(self.state(il))
            }
        })
    }

    /// What each block keeps if all of them keep every token.
    pub(crate) fn every_block_in_full(&self) -> Vec<BlockState> {
        full(self)
    }

    /// Elements of the values of the widest block.
    pub(crate) fn widest_v(&self) -> u32 {
        self.widest_v_of(|_| false)
    }

    /// The same where some blocks are windowed (`n_embd_v_gqa_max`, llama-hparams.cpp).
    fn widest_v_of(&self, is_windowed: impl Fn(usize) -> bool) -> u32 {
        let values = |il| {
            if is_windowed(il) {
                self.windowed_state(il).v
            } else {
                self.state(il).v
            }
        };
        (0..self.n_layer as usize).map(values).max().unwrap_or(0)
    }
}
