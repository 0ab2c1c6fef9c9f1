//! How positions are scaled.

use crate::raw;
use crate::safe::call::Error;

/// How positions are scaled for a context that is longer than the contexts of the model's training. `None` means the
/// model's own value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rope {
    /// The method.
    pub scaling: Option<RopeScaling>,
    /// The base frequency, above 0.
    pub freq_base: Option<f32>,
    /// The factor by which frequencies are multiplied, above 0. For a context of 4 times the length it is 0.25.
    pub freq_scale: Option<f32>,
    /// The context length in tokens of the model's training before YaRN; above 0.
    pub yarn_orig_ctx: Option<u32>,
    /// How much YaRN extrapolates: 0.0 (everything is interpolated) or more.
    pub yarn_ext_factor: Option<f32>,
    /// YaRN's scale of attention, 0.0 or more.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN's low correction dimension, 0.0 or more.
    pub yarn_beta_fast: Option<f32>,
    /// YaRN's high correction dimension, 0.0 or more.
    pub yarn_beta_slow: Option<f32>,
}

/// A method of scaling positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// No scaling, even if the model states a method.
    None,
    /// Scales all frequencies alike.
    Linear,
    /// Scales high frequencies less.
    Yarn,
    /// Scales by the model's own factors.
    LongRope,
}

impl Rope {
    /// Refuses values that llama.cpp would read as "the model's own value", and values without a meaning.
    pub(super) fn check(&self) -> Result<(), Error> {
        let numbers = [
            ("rope_freq_base", self.freq_base, true),
            ("rope_freq_scale", self.freq_scale, true),
            ("yarn_ext_factor", self.yarn_ext_factor, false),
            ("yarn_attn_factor", self.yarn_attn_factor, false),
            ("yarn_beta_fast", self.yarn_beta_fast, false),
            ("yarn_beta_slow", self.yarn_beta_slow, false),
        ];
        for (name, number, above_zero) in numbers {
            let Some(number) = number else { continue };
            let holds = number >= 0.0 && (number > 0.0 || !above_zero);
            if !(holds && number.is_finite()) {
                let wanted = if above_zero { "it must be above 0" } else { "it must not be negative" };
                return Err(Error::parameter(name, number, wanted));
            }
        }
        if self.yarn_orig_ctx == Some(0) {
            return Err(Error::parameter("yarn_orig_ctx", 0, "it must be at least 1 token"));
        }
        Ok(())
    }

    pub(super) fn set(&self, native: &mut raw::llama_context_params) {
        if let Some(scaling) = self.scaling {
            native.rope_scaling_type = match scaling {
                RopeScaling::None => raw::LLAMA_ROPE_SCALING_TYPE_NONE,
                RopeScaling::Linear => raw::LLAMA_ROPE_SCALING_TYPE_LINEAR,
                RopeScaling::Yarn => raw::LLAMA_ROPE_SCALING_TYPE_YARN,
                RopeScaling::LongRope => raw::LLAMA_ROPE_SCALING_TYPE_LONGROPE,
            };
        }
        let numbers = [
            (&mut native.rope_freq_base, self.freq_base),
            (&mut native.rope_freq_scale, self.freq_scale),
            (&mut native.yarn_ext_factor, self.yarn_ext_factor),
            (&mut native.yarn_attn_factor, self.yarn_attn_factor),
            (&mut native.yarn_beta_fast, self.yarn_beta_fast),
            (&mut native.yarn_beta_slow, self.yarn_beta_slow),
        ];
        for (field, number) in numbers {
            *field = number.unwrap_or(*field);
        }
        native.yarn_orig_ctx = self.yarn_orig_ctx.unwrap_or(native.yarn_orig_ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::Rope;

    #[test]
    fn numbers_that_mean_something_else_to_llama_cpp_are_refused() {
        let ok =
            Rope { freq_scale: Some(0.25), yarn_ext_factor: Some(0.0), yarn_orig_ctx: Some(4096), ..Rope::default() };
        assert!(ok.check().is_ok());
        for (bad, name) in [
            (Rope { freq_base: Some(0.0), ..ok }, "rope_freq_base"),
            (Rope { freq_scale: Some(f32::INFINITY), ..ok }, "rope_freq_scale"),
            (Rope { yarn_beta_fast: Some(-1.0), ..ok }, "yarn_beta_fast"),
            (Rope { yarn_attn_factor: Some(f32::NAN), ..ok }, "yarn_attn_factor"),
            (Rope { yarn_orig_ctx: Some(0), ..ok }, "yarn_orig_ctx"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
