//! How often a cache of experts on a GPU holds the expert that a token uses: by the share of the experts that it holds.
//!
//! A text uses experts again soon after it has used them. The curve has one parameter for that, the *locality* `a`: of
//! the uses, `(1 - x) / (1 + a * x)` miss a cache that holds the share `x` of the experts. Without locality (`a = 0`)
//! experts would be used by chance, and the misses be `1 - x`.
//!
//! Published hits by the share of the experts (docs/speed-model.md has the table):
//!
//! - 128 experts, 8 used (Qwen3-30B-A3B, kekzl/imp 1374): 74.1 % with 19 %, 89.4 % with 38 %, 96.2 % with 64 %, which
//!   is `a` = 11.2 to 13.5.
//! - 512 experts, 10 used (Qwen3.8-Flash-Next, ggml-org/llama.cpp 27861): 67 % with 12.5 %, 81 % with 25 %: 13.2, 11.8.
//! - A model that is not named (tetherto/qvac-fabric-llm.cpp 237): 77.8 % with 10 %: 30.
//! - The second model again, 300 tokens of one text with a cold cache (kekzl/imp 2061): 62 % with 36 %: 3.7 of the uses
//!   that a cache can hit.

/// The locality of published texts: the middle of the figures above.
const LOCALITY: f64 = 12.0;
/// Limits of a locality that was observed. Beyond them the text is too short, or repeats itself.
const MAX_LOCALITY: f64 = 200.0;

/// How often a cache of experts holds the expert that a token uses.
///
/// ```
/// use autoplace_planner::plan::speed::ExpertHits;
/// // A quarter of 512 experts: 81 % was published.
/// let misses = ExpertHits::default().misses(0.25, (10, 512));
/// assert!((misses - 0.19).abs() < 0.02);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ExpertHits {
    /// How soon experts are used again: 0 for experts that are used by chance.
    pub locality: f64,
}

impl Default for ExpertHits {
    fn default() -> Self {
        Self { locality: LOCALITY }
    }
}

impl ExpertHits {
    /// A curve with this locality.
    pub const fn new(locality: f64) -> Self {
        Self { locality }
    }

    /// Whether a cache of this share holds the experts of one token, `used` of `count` in each layer.
    pub(super) fn holds(share: f64, (used, count): (u32, u32)) -> bool {
        share * f64::from(count) >= f64::from(used)
    }

    /// The share of uses that miss a cache of this share of the experts, of which a token uses `used` of `count` in
    /// each layer. A cache that cannot hold the experts of one token is never hit.
    pub fn misses(self, share: f64, (used, count): (u32, u32)) -> f64 {
        if !Self::holds(share, (used, count)) {
            return 1.0;
        }
        let share = share.clamp(0.0, 1.0);
        (1.0 - share) / (1.0 + self.locality.max(0.0) * share)
    }

    /// The curve that goes through an observation: of `hits` and `misses` with a cache of this share. `None` if it says
    /// nothing: without uses, or with a cache of none or of all experts.
    pub fn observed(share: f64, hits: u64, misses: u64) -> Option<Self> {
        let uses = hits.saturating_add(misses);
        if uses == 0 || !(0.0..1.0).contains(&share) || share == 0.0 {
            return None;
        }
        let missed = misses as f64 / uses as f64;
        let locality = match missed > 0.0 {
            true => ((1.0 - share) / missed - 1.0) / share,
            false => MAX_LOCALITY,
        };
        Some(Self::new(locality.clamp(0.0, MAX_LOCALITY)))
    }
}

#[cfg(test)]
mod tests {
    use super::ExpertHits;

    /// Published hits with llama.cpp's kind of cache and others that drop the least recently used expert: experts used
    /// and in all, experts held of each layer, and the share of hits.
    const PUBLISHED: [((u32, u32), f64, f64); 6] = [
        // kekzl/imp 1374. It counts a slot for each of three tensors: 73, 146 and 244.
        ((8, 128), 73.0 / 3.0, 0.741),
        ((8, 128), 146.0 / 3.0, 0.894),
        ((8, 128), 244.0 / 3.0, 0.962),
        // kekzl/imp 1359: 40 % of the experts, the mean of three texts.
        ((8, 128), 0.4 * 128.0, 0.933),
        // ggml-org/llama.cpp 27861.
        ((10, 512), 64.0, 0.67),
        ((10, 512), 128.0, 0.81),
    ];

    #[test]
    fn the_curve_goes_within_four_points_of_published_hits() {
        for (experts, held, published) in PUBLISHED {
            let hits = 1.0 - ExpertHits::default().misses(held / f64::from(experts.1), experts);
            assert!((hits - published).abs() <= 0.04, "{held} of {experts:?}: {hits} instead of {published}");
        }
    }

    #[test]
    fn an_observation_gives_the_curve_through_it() {
        for (share, hits, misses) in [(0.1, 778, 222), (0.36, 62, 38), (0.5, 50, 50), (0.9, 1, 0)] {
            let observed = ExpertHits::observed(share, hits, misses).unwrap();
            let expected = misses as f64 / (hits + misses) as f64;
            assert!((observed.misses(share, (8, 128)) - expected).abs() < 0.01, "{share}");
        }
        // More misses than by chance mean a locality of 0.
        assert_eq!(ExpertHits::observed(0.5, 1, 99), Some(ExpertHits::new(0.0)));
        for nothing in [(0.0, 1, 1), (1.0, 1, 1), (0.5, 0, 0), (f64::NAN, 1, 1)] {
            assert_eq!(ExpertHits::observed(nothing.0, nothing.1, nothing.2), None);
        }
    }

    #[test]
    fn a_cache_that_holds_fewer_experts_than_a_token_uses_is_never_hit() {
        let hits = ExpertHits::default();
        assert_eq!([hits.misses(0.05, (8, 128)), hits.misses(1.0, (8, 128))], [1.0, 0.0]);
        assert!(hits.misses(8.0 / 128.0, (8, 128)) < 0.6);
    }
}
