//! Blocks that predict further tokens (MTP, next-token prediction): whether llama.cpp can use them, and which weights
//! are loaded for them.

use super::names::Slot;
use super::{Hyperparameters, ModelProfile};

/// Why a model's blocks cannot predict further tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum MtpError {
    /// The model has no blocks that predict further tokens.
    #[error("{model} has no blocks that predict further tokens: {reason}")]
    NoHeads { model: String, reason: String },
    /// llama.cpp cannot compute with this architecture's prediction blocks or cannot roll back their draft tokens, or
    /// the architecture has not been tried.
    #[error("{model}: the blocks of `{architecture}` that predict further tokens cannot be used: {reason}")]
    Architecture { model: String, architecture: String, reason: &'static str },
    /// The model has several prediction blocks, one for each further token; only a single block is supported.
    #[error("{model} has {heads} blocks that predict further tokens, but only one can be used")]
    Several { model: String, heads: u32 },
    /// A part of the model's memory is recurrent. llama.cpp can roll back the states of several sequences only if all
    /// of them are computed together.
    #[error(
        "{model}: further tokens are predicted for one sequence only, but {n_seq_max} were requested: a part of the model's memory is recurrent"
    )]
    Sequences { model: String, n_seq_max: u32 },
    /// A context for embeddings generates no tokens.
    #[error("{model}: a context for embeddings predicts no further tokens")]
    Embeds { model: String },
}

/// The weights that models/*.cpp assert in every prediction block. Each entry is the middle of a weight's name.
const ALWAYS: &str = "nextn.eh_proj nextn.enorm nextn.hnorm";

/// The weights that a prediction block of this architecture needs in addition to [`ALWAYS`] (models/*.cpp,
/// `graph_mtp`). The error is the reason why the block cannot be used.
fn needs(architecture: &str, hparams: &Hyperparameters) -> Result<&'static str, &'static str> {
    match architecture {
        "cohere2moe" | "deepseek32" | "glm-dsa" | "glm4moe" | "qwen35moe" => Ok("ffn_gate_inp"),
        // models/deepseek2.cpp, `graph_mtp`, asserts both conditions.
        "deepseek2" if hparams.has_temperature => {
            Err("llama.cpp does not compute with them where attention has a temperature")
        }
        "deepseek2" if !hparams.is_mla() => Err("llama.cpp does not compute with them where keys are not compressed"),
        "deepseek2" => Ok("attn_q_a attn_q_a_norm attn_q_b ffn_gate_inp ffn_gate_shexp"),
        "hy_v3" | "qwen35" | "step35" => Ok(""),
        // The files of mimo2 have three prediction blocks, and no model with a single one was tried.
        "mellum" | "mimo2" => Err("it has not been tried"),
        "bailingmoe3" | "deepseek4" | "glm5-next" | "nemotron_h_moe" | "qwen3next" | "qwen4exp" => {
            Err("a part of its memory is recurrent, so that a rejected draft token could not be taken back")
        }
        _ => Err("llama.cpp does not compute with them"),
    }
}

impl ModelProfile {
    /// The same model, with the blocks that predict further tokens loaded too. A second context computes them, so only
    /// a [probe](crate::plan::Planner::plan_probed) can plan the model.
    ///
    /// # Errors
    ///
    /// [`MtpError`] if the file has no such blocks or llama.cpp cannot use them.
    pub fn with_mtp(mut self) -> Result<Self, MtpError> {
        let (heads, trunk) = (self.hparams.n_layer_nextn, self.hparams.n_layer_trunk());
        if heads == 0 {
            return Err(self.no_heads(format!("`{}.nextn_predict_layers` is 0", self.architecture)));
        }
        if trunk == 0 {
            return Err(self.no_heads("the model has no other blocks".to_owned()));
        }
        let (model, architecture) = (self.name.clone(), self.architecture.clone());
        let needs = match needs(&architecture, &self.hparams) {
            Err(reason) => return Err(MtpError::Architecture { model, architecture, reason }),
            Ok(_) if heads > 1 => return Err(MtpError::Several { model, heads }),
            Ok(needs) => needs,
        };
        let (head, skipped): (Vec<_>, _) = std::mem::take(&mut self.weights.skipped)
            .into_iter()
            .partition(|weight| Slot::from_name(&self.architecture, &weight.name) == Slot::Block(trunk));
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

    /// Whether llama.cpp keeps earlier states, so that it can return to them when draft tokens are rejected
    /// (llama-arch.cpp, `llm_arch_supports_rs_rollback`).
    pub(crate) fn goes_back_by_states(&self) -> bool {
        self.mtp && matches!(self.architecture.as_str(), "qwen35" | "qwen35moe")
    }

    /// Checks that further tokens can be predicted in a context for `n_seq_max` sequences.
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
