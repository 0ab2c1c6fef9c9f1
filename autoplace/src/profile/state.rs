//! The law by which context takes memory.

use crate::gguf::Header;

use super::arch::{self, Law, Mixer};
use super::hparams::Keys;
use super::window;
use super::{Error, Hyperparameters};

/// How a model's context takes memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateLaw {
    /// We know the law of every block.
    Known {
        /// What each block keeps.
        blocks: Vec<BlockState>,
        /// Elements of the values of the widest block, whether that has a cache or not (`n_embd_v_gqa_max`): without flash
        /// attention all caches are as wide (llama-kv-cache.cpp:210).
        widest_v: u32,
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
    /// Nothing: a next-token-prediction block (llama-model.cpp:2812-2820).
    None,
    /// The keys and values of every token (`llama_kv_cache`).
    Full(LayerState),
    /// The keys and values of the last tokens (`llama_kv_cache_iswa`), of all where the context asks for it (`swa_full`).
    Windowed {
        /// What is kept of a token.
        state: LayerState,
        /// Tokens of the window (`n_swa`).
        window: u32,
    },
    /// One compressed key of every token for all heads, and no values: multi-head latent attention (llama-kv-cache.cpp:204-240).
    Compressed {
        /// Elements of the key.
        k: u32,
    },
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
type Blocks = Result<Vec<BlockState>, String>;

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
        let Some(law) = arch::law(architecture) else {
            let reason = match arch::why_unknown(architecture) {
                Some(why) => format!("`{architecture}`: {why}"),
                None => format!("`{architecture}` is no architecture we have read"),
            };
            return Ok(Self::Unknown { reason });
        };
        if header.bool(&format!("{architecture}.attention.causal"))? == Some(false) {
            let reason = format!("`{architecture}` without causal attention");
            return Ok(Self::Unknown { reason });
        }
        if !matches!(law, Law::Recurrent(_)) {
            Self::check_heads(&keys, hparams)?;
        }
        let blocks = match law {
            Law::Full => Ok(full(hparams)),
            Law::Windowed(window) => window::blocks(&keys, hparams, window)?,
            Law::WindowedAt64Blocks(window) if hparams.n_layer_trunk() == 64 => {
                window::blocks(&keys, hparams, window)?
            }
            Law::WindowedAt64Blocks(_) => Ok(full(hparams)),
            Law::Compressible => compressible(&keys, hparams)?,
            Law::Recurrent(mixer) => recurrent(&keys, hparams, mixer, |_, state| {
                BlockState::Recurrent(state)
            })?,
            Law::HybridByHeads(mixer) => recurrent(&keys, hparams, mixer, |il, state| {
                if hparams.n_head_kv[il] == 0 {
                    BlockState::Recurrent(state)
                } else {
                    BlockState::Full(hparams.state(il))
                }
            })?,
            Law::HybridInEveryBlock(mixer) => recurrent(&keys, hparams, mixer, |il, state| {
                BlockState::FullAndRecurrent(hparams.state(il), state)
            })?,
        };
        Ok(match blocks {
            Ok(blocks) => Self::Known {
                blocks,
                widest_v: hparams.widest_v(),
            },
            Err(why) => Self::Unknown {
                reason: format!("`{architecture}` {why}"),
            },
        })
    }

    /// Attention cannot share queries among key heads otherwise: ggml_can_mul_mat and the flash-attention kernels assert it.
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
        let compressed = |block: &BlockState| matches!(block, BlockState::Compressed { .. });
        self.blocks().unwrap_or_default().iter().any(compressed)
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

/// models/deepseek2.cpp: with the widths of both, the keys of all heads are one (`is_mla`, llama-hparams.cpp:340).
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

/// Blocks that keep a state, each as `of` says.
fn recurrent(
    keys: &Keys<'_>,
    hparams: &Hyperparameters,
    mixer: Mixer,
    of: impl Fn(usize, RecurrentState) -> BlockState,
) -> Result<Blocks, Error> {
    if hparams.n_layer_nextn > 0 {
        return Ok(Err("with blocks that predict further tokens".into()));
    }
    Ok(match mixer.state(keys, hparams)? {
        Some(state) => Ok(hparams.each_block(|il| of(il, state))),
        None => Err("with a state of no size".into()),
    })
}

impl Mixer {
    /// llama-hparams.cpp:208-272, in 32 bits; `None` where those overflow or nothing is kept.
    fn state(
        self,
        keys: &Keys<'_>,
        hparams: &Hyperparameters,
    ) -> Result<Option<RecurrentState>, Error> {
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
                let n_embd = hparams.n_embd;
                (shifts.checked_mul(n_embd), n_embd.checked_mul(head))
            }
        };
        let state = r.zip(s).filter(|&(r, s)| r > 0 && s > 0);
        Ok(state.map(|(r, s)| RecurrentState { r, s }))
    }
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

    /// What `of` says of each block that computes a token; prediction blocks keep nothing, unless the model is nothing else
    /// (llama-model.cpp:2814).
    pub(super) fn each_block(&self, of: impl Fn(usize) -> BlockState) -> Vec<BlockState> {
        let trunk = self.n_layer_trunk() as usize;
        (0..self.n_layer as usize)
            .map(|il| {
                if trunk == 0 || il < trunk {
                    of(il)
                } else {
                    BlockState::None
                }
            })
            .collect()
    }

    /// What each block keeps if all of them keep every token.
    pub(crate) fn every_block_in_full(&self) -> Vec<BlockState> {
        full(self)
    }

    /// Elements of the values of the widest block.
    pub(crate) fn widest_v(&self) -> u32 {
        let heads = self.n_head_kv.iter().copied().max().unwrap_or(0);
        heads.saturating_mul(self.head_dim_v)
    }
}
