//! The vectors of a text.

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

/// Scales a vector to a length of 1; one of zeros stays as it is. The same arithmetic as llama.cpp's
/// (common/common.cpp, `common_embd_normalize`).
pub(super) fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    #[allow(clippy::cast_possible_truncation, reason = "llama.cpp's factor is a float")]
    let factor = if length > 0.0 { (1.0 / length) as f32 } else { 0.0 };
    vector.iter_mut().for_each(|x| *x *= factor);
}

#[cfg(test)]
mod tests {
    use super::{Error, cosine_similarity, normalize};

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
    fn a_vector_has_a_length_of_1_or_is_zero() {
        for (mut vector, expected) in [([3.0, -4.0], [0.6, -0.8]), ([0.0, 0.0], [0.0, 0.0])] {
            normalize(&mut vector);
            assert_eq!(vector, expected);
        }
    }
}
