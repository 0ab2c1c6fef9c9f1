//! The blocks of a model that predict further tokens (MTP, next-token prediction): whether llama.cpp can compute with
//! them, and what of the file is loaded then.

use super::names::Slot;
use super::{Hyperparameters, ModelProfile};

/// Why a model's blocks cannot be used to predict further tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum MtpError {
    /// There are none.
    #[error("{model} has no blocks that predict further tokens: {reason}")]
    NoHeads { model: String, reason: String },
    /// llama.cpp has no graph for them, or one whose draft tokens could not be taken back.
    #[error("{model}: the blocks of `{architecture}` that predict further tokens cannot be used: {reason}")]
    Architecture { model: String, architecture: String, reason: &'static str },
    /// There are several, each for another token; only chains of one are computed.
    #[error("{model} has {heads} blocks that predict further tokens, and only one can be used")]
    Several { model: String, heads: u32 },
    /// A part of its memory is recurrent, and llama.cpp takes the states of several sequences back only while all of
    /// them are computed together.
    #[error(
        "{model}: further tokens are predicted for one sequence only, and {n_seq_max} were asked for: a part of its memory is recurrent"
    )]
    Sequences { model: String, n_seq_max: u32 },
    /// A context for embeddings chooses no tokens.
    #[error("{model}: a context for embeddings predicts no further tokens")]
    Embeds { model: String },
}

/// What models/*.cpp asserts of every prediction block: weights by the middle of their name.
const ALWAYS: &str = "nextn.eh_proj nextn.enorm nextn.hnorm";

/// The architectures whose memory can forget single tokens and whose prediction blocks llama.cpp computes
/// (models/*.cpp, `graph_mtp`), with what such a block has besides; or why it cannot be used.
fn needs(architecture: &str, hparams: &Hyperparameters) -> Result<&'static str, &'static str> {
    match architecture {
        "cohere2moe" | "deepseek32" | "glm-dsa" | "glm4moe" | "qwen35moe" => Ok("ffn_gate_inp"),
        // models/deepseek2.cpp, `graph_mtp`, asserts both.
        "deepseek2" if hparams.has_temperature => {
            Err("llama.cpp does not compute with them where attention has a temperature")
        }
        "deepseek2" if !hparams.is_mla() => Err("llama.cpp does not compute with them where keys are not compressed"),
        "deepseek2" => Ok("attn_q_a attn_q_a_norm attn_q_b ffn_gate_inp ffn_gate_shexp"),
        "hy_v3" | "qwen35" | "step35" => Ok(""),
        // Its files have three blocks, and no model of one has been computed with.
        "mimo2" => Err("it has not been tried"),
        "bailingmoe3" | "deepseek4" | "glm5-next" | "nemotron_h_moe" | "qwen3next" | "qwen4exp" => {
            Err("a part of its memory is recurrent, so that a rejected draft token could not be taken back")
        }
        _ => Err("llama.cpp does not compute with them"),
    }
}

impl ModelProfile {
    /// The same model with the blocks loaded that predict further tokens, which a second context computes with: only a
    /// [probe](crate::plan::Planner::plan_probed) can plan it then.
    ///
    /// # Errors
    ///
    /// [`MtpError`] where the file has none, or llama.cpp cannot use them.
    pub fn with_mtp(mut self) -> Result<Self, MtpError> {
        let (heads, trunk) = (self.hparams.n_layer_nextn, self.hparams.n_layer_trunk());
        if heads == 0 {
            return Err(self.no_heads(format!("`{}.nextn_predict_layers` is 0", self.architecture)));
        }
        if trunk == 0 {
            return Err(self.no_heads("it has nothing else".to_owned()));
        }
        let (model, architecture) = (self.name.clone(), self.architecture.clone());
        let needs = match needs(&architecture, &self.hparams) {
            Err(reason) => return Err(MtpError::Architecture { model, architecture, reason }),
            Ok(_) if heads > 1 => return Err(MtpError::Several { model, heads }),
            Ok(needs) => needs,
        };
        let (head, skipped): (Vec<_>, _) = std::mem::take(&mut self.weights.skipped)
            .into_iter()
            .partition(|weight| Slot::of(&self.architecture, &weight.name) == Slot::Block(trunk));
        self.weights.skipped = skipped;
        head.into_iter().for_each(|weight| self.weights.add(trunk as usize, weight));
        let block = &self.weights.blocks[trunk as usize];
        let missing = |stem: &&str| {
            let prefix = format!("blk.{trunk}.{stem}.");
            !block.iter().any(|weight| weight.name.starts_with(&prefix))
        };
        let mut stems = ALWAYS.split(' ').chain(needs.split_whitespace());
        if let Some(stem) = stems.find(missing) {
            return Err(self.no_heads(format!("`blk.{trunk}.{stem}` is missing")));
        }
        self.mtp = true;
        Ok(self)
    }

    /// Whether the blocks that predict further tokens are loaded.
    pub const fn predicts(&self) -> bool {
        self.mtp
    }

    /// Whether rejected draft tokens are taken back by going back to an earlier state (llama-arch.cpp,
    /// `llm_arch_supports_rs_rollback`), which has to be kept.
    pub(crate) fn goes_back_by_states(&self) -> bool {
        self.mtp && matches!(self.architecture.as_str(), "qwen35" | "qwen35moe")
    }

    /// Whether it can predict further tokens in a context for so many sequences.
    pub(crate) fn check_predicting(&self, n_seq_max: u32, embeds: bool) -> Result<(), MtpError> {
        let model = self.name.clone();
        if self.mtp && embeds {
            Err(MtpError::Embeds { model })
        } else if self.goes_back_by_states() && n_seq_max > 1 {
            Err(MtpError::Sequences { model, n_seq_max })
        } else {
            Ok(())
        }
    }

    fn no_heads(&self, reason: String) -> MtpError {
        MtpError::NoHeads { model: self.name.clone(), reason }
    }
}
