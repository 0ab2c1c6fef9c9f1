//! The allowed types for keys and values, and the price that the search puts on a smaller type.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::machine::ParseError;
use crate::memory::backend::{Family, fuses_attention};
use crate::memory::{ContextParams, FlashAttention, KvType};
use crate::profile::ModelProfile;

/// The types that the planner may choose for the keys and values.
///
/// A smaller type leaves memory for more layers on GPUs or for a longer context, and slightly changes the model's
/// answers ([`KvType::perplexity_cost`]). The planner chooses a smaller type if the gain in speed is worth that loss,
/// and the notes of the plan state the gain.
///
/// ```
/// use autoplace_planner::memory::KvType;
/// use autoplace_planner::plan::{KvCache, Request};
/// let request = Request::new().kv_cache(KvCache::Auto);
/// assert_eq!("auto:q4_0".parse(), Ok(KvCache::DownTo(KvType::Q4_0)));
/// # let _ = request;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KvCache {
    /// The types of [`ContextParams`]: `type_k` and `type_v`.
    #[default]
    Given,
    /// The types of [`ContextParams`], or `Q8_0` if it is worth the loss in quality.
    Auto,
    /// The types of [`ContextParams`], or a smaller type, but none smaller than this one, if it is worth the loss in
    /// quality. This loss is about thirty times as large with `Q4_0` as with `Q8_0`.
    DownTo(KvType),
}

/// The types that the planner tries, the widest first. llama.cpp's CUDA kernels read them without a build option
/// (`GGML_CUDA_FA_ALL_QUANTS`), and measurements of their quality are published.
const TRIED: [KvType; 2] = [KvType::Q8_0, KvType::Q4_0];

/// The minimum share of the time that a smaller type must save, however small its loss in quality is. Another type has
/// further disadvantages: saved caches of the same text, and the plans of other programs, use the wider type.
const MIN_SAVING: f64 = 0.05;

/// How much saved time is worth a rise of perplexity. With Q4_K_M instead of Q8_0, people accept that the perplexity is
/// 2.8 % higher (LLaMA 3 8B, ggml-org/llama.cpp#6936), because only 4.83 instead of 8.5 bits are read for each weight.
/// Therefore 1 % of perplexity is worth ln(8.5 / 4.83) / 2.8 = 20 % of the time.
const TIME_FOR_PERPLEXITY: f64 = 20.0;

impl KvCache {
    /// The smallest type that the planner may choose; `None` if the planner keeps the given types.
    const fn least(self) -> Option<KvType> {
        match self {
            Self::Given => None,
            Self::Auto => Some(KvType::Q8_0),
            Self::DownTo(least) => Some(least),
        }
    }

    /// The parameters for each type that the search may choose: first the given types, then smaller ones. llama.cpp
    /// accepts all of them for this model.
    pub(super) fn choices(self, profile: &ModelProfile, params: &ContextParams) -> Vec<ContextParams> {
        let mut all = vec![params.clone()];
        let Some(least) = self.least() else {
            return all;
        };
        let bits = |ty: KvType| ty.tensor_type().row_bytes(256);
        let given = bits(params.type_k).min(bits(params.type_v));
        // Quantised values need fused attention, and llama.cpp never fuses the attention of Grok (llama-context.cpp,
        // `llama_init_from_model`).
        let may_fuse = params.flash_attn != FlashAttention::Off && profile.architecture != "grok";
        for ty in TRIED.into_iter().filter(|&ty| may_fuse && bits(ty) < given && bits(ty) >= bits(least)) {
            let smaller = ContextParams { type_k: ty, type_v: ty, ..params.clone() };
            // llama.cpp rejects a head size that is not a multiple of the type's block size.
            if smaller.check_kv_types(&profile.hparams).is_ok() {
                all.push(smaller);
            }
        }
        all
    }
}

/// The share that is added to the seconds of a plan with this type of cache.
pub(super) fn price(ty: KvType) -> f64 {
    MIN_SAVING + TIME_FOR_PERPLEXITY * ty.perplexity_cost().unwrap_or(0.0)
}

/// Whether every GPU of this backend is known to fuse attention over a cache of these types.
pub(super) fn is_fused(backend: &str, profile: &ModelProfile, params: &ContextParams) -> bool {
    fuses_attention(Family::from_backend(backend), profile, params)
}

impl fmt::Display for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given => f.write_str("given"),
            Self::Auto => f.write_str("auto"),
            Self::DownTo(least) => write!(f, "auto:{}", least.tensor_type().name().to_lowercase()),
        }
    }
}

impl FromStr for KvCache {
    type Err = ParseError;

    /// Parses `auto`, or `auto:q4_0` with the smallest type that the planner may choose.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.split_once(':') {
            None if text.eq_ignore_ascii_case("auto") => Ok(Self::Auto),
            Some((auto, least)) if auto.eq_ignore_ascii_case("auto") => least.parse().map(Self::DownTo),
            _ => Err(ParseError::new(
                text,
                "not a cache type choice: use auto, or auto:q4_0 with the smallest type allowed",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KvCache, price};
    use crate::memory::KvType;

    #[test]
    fn a_choice_is_parsed_as_it_is_displayed_and_other_texts_are_refused() {
        for choice in [KvCache::Auto, KvCache::DownTo(KvType::Q4_0)] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for wrong in ["", "given", "auto:", "auto:q9", "q8_0"] {
            assert!(wrong.parse::<KvCache>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn four_bits_must_save_a_quarter_of_the_time_and_eight_a_twentieth() {
        let [eight, four] = [KvType::Q8_0, KvType::Q4_0].map(price);
        assert!((0.05..0.07).contains(&eight) && (0.25..0.35).contains(&four), "{eight} {four}");
    }
}
