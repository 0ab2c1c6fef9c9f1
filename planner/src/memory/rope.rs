//! How positions are scaled. It takes no memory, and is a part of what is loaded.

use serde::{Deserialize, Serialize};

/// How positions are scaled, for a context longer than the model was trained on; what is `None` is as the model says.
/// The fields are those of `llama_context_params`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Rope {
    /// `rope_scaling_type`.
    pub scaling: Option<RopeScaling>,
    /// `rope_freq_base`, above 0.
    pub freq_base: Option<f32>,
    /// `rope_freq_scale`, above 0: 0.25 for a context of 4 times the length.
    pub freq_scale: Option<f32>,
    /// `yarn_orig_ctx`: tokens of context that the model was trained on, before YaRN; above 0.
    pub yarn_orig_ctx: Option<u32>,
    /// `yarn_ext_factor`, 0.0 (all interpolated) or more.
    pub yarn_ext_factor: Option<f32>,
    /// `yarn_attn_factor`, 0.0 or more.
    pub yarn_attn_factor: Option<f32>,
    /// `yarn_beta_fast`, 0.0 or more.
    pub yarn_beta_fast: Option<f32>,
    /// `yarn_beta_slow`, 0.0 or more.
    pub yarn_beta_slow: Option<f32>,
}

/// A method of scaling positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// None, whatever the model says.
    None,
    /// All frequencies alike.
    Linear,
    /// High frequencies less.
    Yarn,
    /// By the model's own factors.
    LongRope,
}
