//! The law by which context takes memory.

use crate::gguf::Header;

use super::arch::{self, Attention};
use super::hparams::Keys;
use super::{Error, Hyperparameters};

/// How a model's context takes memory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateLaw {
    /// Every listed block keeps the keys and values of every token: a plain `llama_kv_cache`, without sliding windows.
    FullAttention {
        /// What each block keeps of a token; `None` for a block without a cache (a next-token-prediction block,
        /// llama-model.cpp:2812-2820).
        layers: Vec<Option<LayerState>>,
    },
    /// We do not know the law of this architecture: only a probe can say what its context takes.
    Unknown {
        /// Why.
        reason: String,
    },
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
        let unknown = |reason: String| Ok(Self::Unknown { reason });
        let Some(attention) = arch::attention(architecture) else {
            return unknown(match arch::why_unknown(architecture) {
                Some(why) => format!("`{architecture}`: {why}"),
                None => format!("`{architecture}` is no architecture we have read"),
            });
        };
        match attention {
            Attention::Plain => {}
            Attention::PlainWithoutWindow => {
                // A window may be a number or one per layer; either makes the law another one.
                let window = header.get(&format!("{architecture}.attention.sliding_window"));
                if window.is_some_and(|value| value.as_uint() != Some(0)) {
                    return unknown(format!("`{architecture}` with a sliding window"));
                }
            }
            Attention::PlainUnless64Blocks => {
                if hparams.n_layer_trunk() == 64 {
                    return unknown(format!(
                        "`{architecture}` with 64 blocks has a sliding window"
                    ));
                }
            }
            Attention::PlainWithoutMla => {
                if keys.or("attention.key_length_mla", 0)? > 0 {
                    return unknown(format!("`{architecture}` with compressed keys"));
                }
            }
        }
        if header.bool(&format!("{architecture}.attention.causal"))? == Some(false) {
            return unknown(format!("`{architecture}` without causal attention"));
        }
        Self::check_heads(&keys, hparams)?;
        Ok(Self::FullAttention {
            layers: hparams.every_layer_in_full(),
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

    /// What each block keeps of a token, where the law is known.
    #[must_use]
    pub fn layers(&self) -> Option<&[Option<LayerState>]> {
        match self {
            Self::FullAttention { layers } => Some(layers),
            Self::Unknown { .. } => None,
        }
    }
}

impl Hyperparameters {
    /// What each block keeps of a token if all of them keep all of it.
    pub(crate) fn every_layer_in_full(&self) -> Vec<Option<LayerState>> {
        let trunk = self.n_layer_trunk();
        (0..self.n_layer)
            .zip(&self.n_head_kv)
            .map(|(il, &heads)| {
                // llama-model.cpp:2814: prediction blocks are left out, unless the model is nothing else.
                (trunk == 0 || il < trunk).then(|| LayerState {
                    k: heads.saturating_mul(self.head_dim_k),
                    v: heads.saturating_mul(self.head_dim_v),
                })
            })
            .collect()
    }
}
