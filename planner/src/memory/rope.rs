//! Scaling of positions. It needs no memory, but it is a parameter of the context.

use serde::{Deserialize, Serialize};

/// Scaling of positions, for contexts longer than in training. If a field is `None`, the model's own value is used. The
/// fields are those of `llama_context_params`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Rope {
    /// `rope_scaling_type`.
    pub scaling: Option<RopeScaling>,
    /// `rope_freq_base`, above 0.
    pub freq_base: Option<f32>,
    /// `rope_freq_scale`, above 0: 0.25 for a context that is 4 times as long.
    pub freq_scale: Option<f32>,
    /// `yarn_orig_ctx`: the training context before YaRN, in tokens; above 0.
    pub yarn_orig_ctx: Option<u32>,
    /// `yarn_ext_factor`, 0.0 (all positions are interpolated) or more.
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
    /// No scaling, even if the model states a scaling.
    None,
    /// Scales all frequencies by the same factor.
    Linear,
    /// Scales high frequencies less (YaRN).
    Yarn,
    /// Uses the model's own factors.
    LongRope,
}
