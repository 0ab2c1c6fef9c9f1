//! The vectors of a text, their similarity, and their scaling.

use serde::{Deserialize, Serialize};

use super::Error;

/// The result for a text: one vector, or one vector per token with [`Pooling::None`](crate::memory::Pooling::None).
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    pub(super) values: Vec<f32>,
    pub(super) width: usize,
    pub(super) tokens: usize,
    pub(super) truncated: bool,
}

impl Embedding {
    /// The elements of all vectors, one vector after the other.
    pub fn as_slice(&self) -> &[f32] {
        &self.values
    }

    /// The elements of all vectors, one vector after the other, as an owned list.
    pub fn into_vec(self) -> Vec<f32> {
        self.values
    }

    /// The vectors: one, or one per token.
    pub fn vectors(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }

    /// The number of elements per vector.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// Number of computed tokens, including those that the model adds.
    pub const fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether the text was truncated ([`Embedder::truncate`](super::Embedder::truncate)).
    pub const fn is_truncated(&self) -> bool {
        self.truncated
    }
}

impl AsRef<[f32]> for Embedding {
    fn as_ref(&self) -> &[f32] {
        &self.values
    }
}

/// The cosine of the angle between two vectors, from -1.0 to 1.0. For two zero vectors, the result is 1.0. For a zero
/// vector and any other vector, it is 0.0, as in llama.cpp (`common_embd_similarity_cos`).
///
/// # Errors
///
/// [`Error::Lengths`] for vectors of different lengths. Such vectors come from different models, or from texts with a
/// vector per token. [`Embedding::vectors`] returns the vectors of such a text one by one.
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

/// The scaling of a vector. A zero vector stays zero. The arithmetic is the same as in llama.cpp's `--embd-normalize`
/// (common/common.cpp, `common_embd_normalize`). [`from_llama_cpp`](Self::from_llama_cpp) reads the numbers of this
/// flag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Normalization {
    /// No scaling (-1).
    None,
    /// The largest absolute value of an element becomes 32760, for storage as 16-bit integers (0).
    MaxAbsolute,
    /// The sum of the absolute values of the elements becomes 1 (1).
    Taxicab,
    /// The length becomes 1, so that the product of two vectors is their cosine similarity (2).
    #[default]
    Euclidean,
    /// The p-norm for this p becomes 1 (3 and more). A p of 0 counts as 1.
    P(u16),
}

/// `true` is [`Euclidean`](Normalization::Euclidean), `false` is [`None`](Normalization::None).
impl From<bool> for Normalization {
    fn from(is_scaled: bool) -> Self {
        if is_scaled { Self::Euclidean } else { Self::None }
    }
}

/// llama.cpp's largest element for [`Normalization::MaxAbsolute`].
const MAX_ABSOLUTE: f64 = 32760.0;

impl Normalization {
    /// Converts a number of llama.cpp: -1 means no scaling, 0 the largest absolute value, 1 taxicab, 2 Euclidean, and a
    /// larger p the p-norm. `None` for any other number.
    pub fn from_llama_cpp(number: i64) -> Option<Self> {
        match number {
            -1 => Some(Self::None),
            0 => Some(Self::MaxAbsolute),
            1 => Some(Self::Taxicab),
            2 => Some(Self::Euclidean),
            p => u16::try_from(p).ok().map(Self::P),
        }
    }

    /// Scales a vector.
    pub fn apply(self, vector: &mut [f32]) {
        let size = match self {
            Self::None => return,
            Self::MaxAbsolute => vector.iter().fold(0.0_f64, |most, x| most.max(f64::from(x.abs()))) / MAX_ABSOLUTE,
            Self::Euclidean | Self::P(2) => vector.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt(),
            Self::Taxicab => p_norm(vector, 1),
            Self::P(p) => p_norm(vector, p.max(1)),
        };
        #[allow(clippy::cast_possible_truncation, reason = "llama.cpp's factor is a float")]
        let factor = if size > 0.0 { (1.0 / size) as f32 } else { 0.0 };
        vector.iter_mut().for_each(|x| *x *= factor);
    }
}

fn p_norm(vector: &[f32], p: u16) -> f64 {
    // The elements are divided by the largest element, so that no power overflows.
    let largest = vector.iter().fold(0.0_f64, |most, x| most.max(f64::from(x.abs())));
    if largest == 0.0 {
        return 0.0;
    }
    let sum: f64 = vector.iter().map(|x| (f64::from(x.abs()) / largest).powf(f64::from(p))).sum();
    largest * sum.powf(1.0 / f64::from(p))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Error, Normalization as N, cosine_similarity, p_norm};

    #[test]
    fn the_cosine_depends_only_on_the_angle() {
        let cosine = |a: [f32; 2], b: [f32; 2]| cosine_similarity(a, b).unwrap();
        assert_eq!(cosine([1.0, 0.0], [7.0, 0.0]), 1.0);
        assert_eq!(cosine([1.0, 0.0], [0.0, 0.1]), 0.0);
        assert_eq!(cosine([1.0, 1.0], [-2.0, -2.0]), -1.0);
        assert_eq!(cosine([0.0; 2], [0.0; 2]), 1.0);
        assert_eq!(cosine([0.0; 2], [1.0; 2]), 0.0);
        let error = cosine_similarity([1.0, 0.0], [1.0, 0.0, 0.5]).unwrap_err();
        assert!(matches!(error, Error::Lengths { one: 2, other: 3 }), "{error}");
    }

    fn scaled(normalization: N, vector: &[f32]) -> Vec<f32> {
        let mut vector = vector.to_vec();
        normalization.apply(&mut vector);
        vector
    }

    #[test]
    fn each_scaling_equals_llama_cpps() {
        let vector = [3.0, -4.0];
        let seventh = 1.0 / 7.0;
        for (number, expected) in
            [(-1, vector), (0, [24570.0, -32760.0]), (1, [3.0 * seventh, -4.0 * seventh]), (2, [0.6, -0.8])]
        {
            let normalization = N::from_llama_cpp(number).unwrap();
            assert_eq!(scaled(normalization, &vector), expected, "{number}");
            let zeros = [0.0; 3];
            assert_eq!(scaled(normalization, &zeros), zeros, "{number}");
        }
        let cube = (27.0_f32 + 64.0).cbrt();
        let third = scaled(N::from_llama_cpp(3).unwrap(), &vector);
        assert!((third[0] - 3.0 / cube).abs() < 1e-6, "{third:?}");
        assert_eq!(scaled(N::P(0), &vector), scaled(N::Taxicab, &vector));
        assert_eq!(scaled(N::P(2), &vector), scaled(N::Euclidean, &vector));
        assert_eq!([N::from(true), N::from(false)], [N::Euclidean, N::None]);
        assert_eq!([N::from_llama_cpp(-2), N::from_llama_cpp(65_536)], [None, None]);
        // With a large p, the p-norm approaches the largest element.
        assert!((scaled(N::P(u16::MAX), &[1e30, 1e3])[0] - 1.0).abs() < 1e-3);
    }

    proptest! {
        #[test]
        fn the_norm_is_1_afterwards(vector in prop::collection::vec(-1e3_f32..1e3, 1..64), p in 1_u16..6) {
            prop_assume!(vector.iter().any(|x| x.abs() > 1e-3));
            let norm = p_norm(&scaled(N::P(p), &vector), p);
            prop_assert!((norm - 1.0).abs() < 1e-3, "{norm}");
        }
    }
}
