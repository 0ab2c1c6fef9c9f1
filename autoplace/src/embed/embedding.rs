//! The vectors of a text.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Error;

/// What a model makes of a text: one vector, or with [`Pooling::None`](crate::memory::Pooling::None)
/// one for each token.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    pub(super) values: Vec<f32>,
    pub(super) width: usize,
    pub(super) tokens: usize,
    pub(super) truncated: bool,
}

impl Embedding {
    /// The elements of all vectors, end to end.
    pub fn as_slice(&self) -> &[f32] {
        &self.values
    }

    /// The same, owned.
    pub fn into_vec(self) -> Vec<f32> {
        self.values
    }

    /// The vectors: one, or one for each token.
    pub fn vectors(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }

    /// Elements of a vector.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Tokens that were computed, with those that the model adds.
    pub const fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether the text was cut ([`Embedder::truncate`](super::Embedder::truncate)).
    pub const fn is_truncated(&self) -> bool {
        self.truncated
    }
}

impl AsRef<[f32]> for Embedding {
    fn as_ref(&self) -> &[f32] {
        &self.values
    }
}

/// The cosine of the angle between two vectors, from -1.0 to 1.0; 1.0 of two zeros, 0.0 of one, as in llama.cpp
/// (`common_embd_similarity_cos`).
///
/// # Errors
///
/// [`Error::Lengths`] of vectors of different lengths: those of different models, or of texts with a vector for each
/// token ([`Embedding::vectors`] has them one by one).
pub fn cosine_similarity(one: impl AsRef<[f32]>, other: impl AsRef<[f32]>) -> Result<f32, Error> {
    let (one, other) = (one.as_ref(), other.as_ref());
    if one.len() != other.len() {
        let (one, other) = (one.len(), other.len());
        return Err(Error::Lengths { one, other });
    }
    let (mut product, mut first, mut second) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (&a, &b) in one.iter().zip(other) {
        let (a, b) = (f64::from(a), f64::from(b));
        product += a * b;
        first += a * a;
        second += b * b;
    }
    if first == 0.0 || second == 0.0 {
        return Ok(if first == second { 1.0 } else { 0.0 });
    }
    #[allow(clippy::cast_possible_truncation, reason = "from -1 to 1")]
    let cosine = (product / (first.sqrt() * second.sqrt())) as f32;
    Ok(cosine.clamp(-1.0, 1.0))
}

/// Counts and time of an embedder so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Statistics {
    /// Texts, or pairs of a query and a document.
    pub texts: usize,
    /// Their tokens, with those that the model adds.
    pub tokens: usize,
    /// Computations that they took.
    pub batches: usize,
    /// Time that those took, and the reading of their vectors.
    pub time: Duration,
}

impl Statistics {
    pub(super) fn add(&mut self, other: &Self) {
        self.texts += other.texts;
        self.tokens += other.tokens;
        self.batches += other.batches;
        self.time += other.time;
    }

    /// Tokens per second; 0.0 before the first batch.
    pub fn tokens_per_second(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.tokens as f64 / self.time.as_secs_f64() }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} texts of {} tokens in {} batches, {:.1} tok/s",
            self.texts,
            self.tokens,
            self.batches,
            self.tokens_per_second()
        )
    }
}

/// How vectors are scaled, each by itself; a vector of zeros stays one. The same arithmetic as llama.cpp's
/// `--embd-normalize` (common/common.cpp, `common_embd_normalize`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Normalization {
    /// Not at all: as the model gives them.
    None,
    /// To a largest element of 32760, so that they can be kept as 16-bit integers.
    MaxAbsolute,
    /// To a sum of absolute elements of 1.
    Taxicab,
    /// To a length of 1: the product of two vectors is then their cosine similarity.
    #[default]
    Euclidean,
    /// To a p-norm of 1, for this p; 0 counts as 1.
    P(u16),
}

/// llama.cpp's largest element.
const INT16_RANGE: f64 = 32760.0;

impl Normalization {
    /// Scales a vector.
    pub fn apply(self, vector: &mut [f32]) {
        let size = match self {
            Self::None => return,
            Self::MaxAbsolute => {
                let largest = vector.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                f64::from(largest) / INT16_RANGE
            }
            Self::Euclidean => {
                let sum: f64 = vector.iter().map(|x| f64::from(x * x)).sum();
                sum.sqrt()
            }
            Self::Taxicab => p_norm(vector, 1),
            Self::P(2) => return Self::Euclidean.apply(vector),
            Self::P(p) => p_norm(vector, p.max(1)),
        };
        #[allow(clippy::cast_possible_truncation, reason = "llama.cpp's factor is a float")]
        let factor = if size > 0.0 { (1.0 / size) as f32 } else { 0.0 };
        for x in vector {
            *x *= factor;
        }
    }
}

fn p_norm(vector: &[f32], p: u16) -> f64 {
    let sum: f64 = vector.iter().map(|x| f64::from(x.abs()).powf(f64::from(p))).sum();
    sum.powf(1.0 / f64::from(p))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{Error, Normalization as N, Statistics, cosine_similarity, p_norm};

    #[test]
    fn the_cosine_is_of_the_angle_alone() {
        let cosine = |a: [f32; 2], b: [f32; 2]| cosine_similarity(a, b).unwrap();
        assert_eq!(cosine([1.0, 0.0], [7.0, 0.0]), 1.0);
        assert_eq!(cosine([1.0, 0.0], [0.0, 0.1]), 0.0);
        assert_eq!(cosine([1.0, 1.0], [-2.0, -2.0]), -1.0);
        assert_eq!(cosine([0.0; 2], [0.0; 2]), 1.0);
        assert_eq!(cosine([0.0; 2], [1.0; 2]), 0.0);
        let error = cosine_similarity([1.0, 0.0], [1.0, 0.0, 0.5]).unwrap_err();
        assert!(matches!(error, Error::Lengths { one: 2, other: 3 }), "{error}");
    }

    #[test]
    fn the_speed_is_of_the_time_that_was_computed() {
        let mut statistics = Statistics::default();
        assert_eq!(statistics.tokens_per_second(), 0.0);
        (statistics.texts, statistics.tokens, statistics.batches) = (3, 50, 2);
        statistics.time = Duration::from_millis(500);
        assert_eq!(statistics.to_string(), "3 texts of 50 tokens in 2 batches, 100.0 tok/s");
    }

    fn scaled(normalization: N, vector: &[f32]) -> Vec<f32> {
        let mut vector = vector.to_vec();
        normalization.apply(&mut vector);
        vector
    }

    #[test]
    fn each_kind_is_llama_cpps() {
        let vector = [3.0, -4.0];
        assert_eq!(scaled(N::None, &vector), vector);
        assert_eq!(scaled(N::Euclidean, &vector), [0.6, -0.8]);
        assert_eq!(scaled(N::P(2), &vector), [0.6, -0.8]);
        let seventh = 1.0 / 7.0;
        assert_eq!(scaled(N::Taxicab, &vector), [3.0 * seventh, -4.0 * seventh]);
        assert_eq!(scaled(N::P(0), &vector), scaled(N::Taxicab, &vector));
        assert_eq!(scaled(N::MaxAbsolute, &vector), [24570.0, -32760.0]);
        let cube = (27.0_f32 + 64.0).cbrt();
        let third = scaled(N::P(3), &vector);
        assert!((third[0] - 3.0 / cube).abs() < 1e-6, "{third:?}");
    }

    #[test]
    fn zeros_stay_zeros() {
        for normalization in [N::MaxAbsolute, N::Taxicab, N::Euclidean, N::P(4)] {
            assert_eq!(scaled(normalization, &[0.0; 3]), [0.0; 3]);
        }
    }

    proptest! {
        #[test]
        fn the_norm_is_one_afterwards(
            vector in prop::collection::vec(-1e3_f32..1e3, 1..64),
            p in 1_u16..6,
        ) {
            prop_assume!(vector.iter().any(|x| x.abs() > 1e-3));
            let norm = p_norm(&scaled(N::P(p), &vector), p);
            prop_assert!((norm - 1.0).abs() < 1e-3, "{norm}");
        }
    }
}
