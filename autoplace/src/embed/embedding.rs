//! The vectors of a text.

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
/// (`common_embd_similarity_cos`). Of vectors of different lengths only what both have counts.
pub fn cosine_similarity(one: impl AsRef<[f32]>, other: impl AsRef<[f32]>) -> f32 {
    let (mut product, mut first, mut second) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (&a, &b) in one.as_ref().iter().zip(other.as_ref()) {
        let (a, b) = (f64::from(a), f64::from(b));
        product += a * b;
        first += a * a;
        second += b * b;
    }
    if first == 0.0 || second == 0.0 {
        return if first == second { 1.0 } else { 0.0 };
    }
    #[allow(clippy::cast_possible_truncation, reason = "from -1 to 1")]
    let cosine = (product / (first.sqrt() * second.sqrt())) as f32;
    cosine.clamp(-1.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::{Embedding, cosine_similarity};

    #[test]
    fn the_cosine_is_of_the_angle_alone() {
        let cosine = |a: [f32; 2], b: [f32; 2]| cosine_similarity(a, b);
        assert_eq!(cosine([1.0, 0.0], [7.0, 0.0]), 1.0);
        assert_eq!(cosine([1.0, 0.0], [0.0, 0.1]), 0.0);
        assert_eq!(cosine([1.0, 1.0], [-2.0, -2.0]), -1.0);
        assert_eq!(cosine([0.0; 2], [0.0; 2]), 1.0);
        assert_eq!(cosine([0.0; 2], [1.0; 2]), 0.0);
    }

    #[test]
    fn an_unpooled_text_has_a_vector_for_each_token() {
        let embedding = Embedding {
            values: vec![1.0, 2.0, 3.0, 4.0],
            width: 2,
            tokens: 2,
            truncated: false,
        };
        let vectors: Vec<_> = embedding.vectors().collect();
        assert_eq!(vectors, [[1.0, 2.0], [3.0, 4.0]]);
    }
}
