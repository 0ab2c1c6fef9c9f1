//! How often a cache of experts on a GPU holds the expert that a token uses. This depends on the share of the experts
//! in the cache.
//!
//! A text tends to use an expert again soon. The curve describes this tendency by one parameter, the *locality* `a`: if
//! a cache holds the share `x` of the experts, `(1 - x) / (1 + a * x)` of the uses miss it. Without locality (`a = 0`),
//! experts would be used at random, and `1 - x` of the uses would miss.
//!
//! The following hits were published for these shares of the experts (docs/speed-model.md has the table). They
//! correspond to these localities:
//!
//! - 128 experts, 8 used (Qwen3-30B-A3B, kekzl/imp 1374): 74.1 % of uses hit with 19 % of the experts, 89.4 % with 38
//!   %, 96.2 % with 64 %. `a` is 11.2 to 13.5.
//! - 512 experts, 10 used (Qwen3.8-Flash-Next, ggml-org/llama.cpp 27861): 67 % with 12.5 %, 81 % with 25 %. `a` is 13.2
//!   and 11.8.
//! - 128 experts, 4 used (gpt-oss 120B, Helldez/BigMoeOnEdge, docs/benchmarks-gpt-oss.md): 27.1 % with 3.4 %. `a` is
//!   9.4. With 2 used: 32.0 % with 3.4 %, and 45 % with 5.2 % (docs/bench-data/2026-07-15-route-trace). `a` is 12.2 and
//!   13.9.
//! - The second model again, a tenth of the bytes of all experts (tetherto/qvac-fabric-llm.cpp 237): 77.8 %. `a` is at
//!   most 30. It is less, because the cache has only experts of layers on the host, and holds more than a tenth of
//!   them.
//! - The second model again, 300 tokens of one text with a cold cache (kekzl/imp 2061): 62 % with 36 %. `a` is 3.7, if
//!   only the uses that the cache could hit are counted.
//! - 256 experts, 6 used (DeepSeek V4 Flash, FlashML-org/FreeToken 174): 8 to 18 % with 4.5 %. `a` is 1 to 4.

/// The locality of published texts: the middle of the figures in the module's description.
const LOCALITY: f64 = 12.0;
/// The largest locality that counts as observed. A larger value comes from a text that is too short or repeats itself.
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
    /// How soon experts are used again; 0 if experts are used at random.
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

    /// The share of uses that miss a cache with this share of the experts. A token uses `used` of `count` experts in
    /// each layer. A cache too small for the experts of one token is never hit.
    pub fn misses(self, share: f64, (used, count): (u32, u32)) -> f64 {
        if !Self::holds(share, (used, count)) {
            return 1.0;
        }
        let share = share.clamp(0.0, 1.0);
        (1.0 - share) / (1.0 + self.locality.max(0.0) * share)
    }

    /// The curve through an observation: `hits` and `misses` of a cache with this share of the experts. `None` if
    /// nothing follows from the observation, because there were no uses, or because the cache holds either no experts
    /// or all of them.
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

    /// Published hits with llama.cpp's kind of cache, and with other caches that drop the least recently used expert.
    /// Each row has the experts used and the experts in all, the experts that the cache holds of each layer, and the
    /// share of hits.
    const PUBLISHED: [((u32, u32), f64, f64); 11] = [
        // Source: kekzl/imp 1374. It counts one slot for each of three tensors: 73, 146 and 244.
        ((8, 128), 73.0 / 3.0, 0.741),
        ((8, 128), 146.0 / 3.0, 0.894),
        ((8, 128), 244.0 / 3.0, 0.962),
        // Source: kekzl/imp 1359, with 40 % of the experts, the mean of three texts.
        ((8, 128), 0.4 * 128.0, 0.933),
        // Source: ggml-org/llama.cpp 27861.
        ((10, 512), 64.0, 0.67),
        ((10, 512), 128.0, 0.81),
        // Source: Helldez/BigMoeOnEdge, docs/benchmarks-gpt-oss.md, 2,000 of 58,092 MiB, 256 tokens. These and the next
        // figures were found after the locality had been chosen.
        ((4, 128), 128.0 * 2000.0 / 58_092.0, 0.271),
        ((2, 128), 128.0 * 2000.0 / 58_092.0, 0.320),
        // Source: the same, docs/bench-data/2026-07-15-route-trace, generated tokens alone: gpt-oss 120B and
        // Qwen3-30B-A3B.
        ((2, 128), 128.0 * 3000.0 / 58_092.0, 0.45),
        ((6, 128), 128.0 * 4000.0 / 16_740.0, 0.80),
        // Source: the same, docs/bench-data/2026-07-20-cache-replay, 256 tokens.
        ((6, 128), 128.0 * 3000.0 / 16_740.0, 0.708),
    ];

    #[test]
    fn the_curve_goes_within_five_points_of_published_hits() {
        for (experts, held, published) in PUBLISHED {
            let hits = 1.0 - ExpertHits::default().misses(held / f64::from(experts.1), experts);
            assert!((hits - published).abs() <= 0.05, "{held} of {experts:?}: {hits} instead of {published}");
        }
    }

    #[test]
    fn an_observation_gives_a_curve_through_its_point() {
        for (share, hits, misses) in [(0.1, 778, 222), (0.36, 62, 38), (0.5, 50, 50), (0.9, 1, 0)] {
            let observed = ExpertHits::observed(share, hits, misses).unwrap();
            let expected = misses as f64 / (hits + misses) as f64;
            assert!((observed.misses(share, (8, 128)) - expected).abs() < 0.01, "{share}");
        }
        // If there are more misses than by chance, the locality is 0.
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
