//! What a vector is divided by.

use serde::{Deserialize, Serialize};

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
        #[allow(
            clippy::cast_possible_truncation,
            reason = "llama.cpp's factor is a float"
        )]
        let factor = if size > 0.0 { (1.0 / size) as f32 } else { 0.0 };
        for x in vector {
            *x *= factor;
        }
    }
}

fn p_norm(vector: &[f32], p: u16) -> f64 {
    let sum: f64 = vector
        .iter()
        .map(|x| f64::from(x.abs()).powf(f64::from(p)))
        .sum();
    sum.powf(1.0 / f64::from(p))
}

#[cfg(test)]
mod tests {
    use super::{Normalization as N, p_norm};
    use proptest::prelude::*;

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
