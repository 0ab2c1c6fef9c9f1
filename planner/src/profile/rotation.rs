//! The matrices by which caches rotate keys and values. In: a model's layout. Out: the same layout with these matrices.
//!
//! llama.cpp multiplies quantised keys and values by a Hadamard matrix, which spreads large elements over all of them.
//! Each cache keeps one matrix for the keys and one for the values of each block, in a buffer of its own on the block's
//! device. The environment variable `LLAMA_ATTN_ROT_DISABLE` leaves the matrices out. The estimate ignores the
//! variable, so with the variable set the estimate is too high by the bytes of the matrices.

use super::{BlockState, Hyperparameters, KeptTensor, Part, Rotation, Rows};

/// The width of the matrix for values, and the smallest width for keys (llama-kv-cache.cpp, the constructor).
const LEAST: u32 = 64;

/// Architectures whose index keys are always rotated (llama-kv-cache.cpp, the constructor).
const ALWAYS: &str = "deepseek32 deepseek4 glm-dsa dots3note mistral-large4";

/// Sets the matrix of each tensor (llama-kv-cache.cpp, the constructor). `windowed` has a flag for each block, or is
/// empty. `index_k` is the number of elements of an index key, or 0 without index keys.
pub(super) fn set(
    blocks: &mut [BlockState],
    architecture: &str,
    hparams: &Hyperparameters,
    windowed: &[bool],
    index_k: u32,
) {
    let heads = |il: usize| match windowed.get(il) {
        Some(true) => (hparams.head_dim_k_swa, hparams.head_dim_v_swa),
        _ => (hparams.head_dim_k, hparams.head_dim_v),
    };
    // The heads of the first block decide for all blocks, even for blocks in another cache.
    let (first_k, first_v) = heads(0);
    let always = |head: u32| head == index_k && index_k > 0 && ALWAYS.split(' ').any(|listed| listed == architecture);
    for (il, block) in blocks.iter_mut().enumerate() {
        let (k, v) = heads(il);
        let mut compresses = true;
        for kept in &mut block.kept {
            kept.rotation = match (kept.part, kept.rows) {
                (Part::State, _) => Rotation::Never,
                (Part::Keys, _) => of_keys(k, first_k, always(hparams.head_dim_k)),
                (Part::Values, _) => of_values(v, first_v),
                // A row contains both compressed keys and index keys.
                (Part::IndexKeys, Rows::Groups(_)) if architecture == "deepseek41" => of_keys(kept.n, kept.n, false),
                // The first tensor with a row for each group contains compressed keys. The second such tensor contains
                // the index keys that select among them.
                (Part::IndexKeys, Rows::Groups(_)) if compresses => {
                    compresses = false;
                    of_keys(k, first_k, always(hparams.head_dim_k))
                }
                (Part::IndexKeys, _) => of_keys(kept.n, of_first_index(kept, windowed, hparams), always(index_k)),
                (Part::IndexValues, _) => of_values(v, first_v),
            };
        }
    }
}

/// The number of elements of the first block's key, in the cache that holds the index keys of `kept`. In
/// llama-kv-cache-dsa.cpp (the constructor) a window has its own width of keys. In llama-kv-cache-dsv4.cpp every block
/// has a window, so all keys have one width.
fn of_first_index(kept: &KeptTensor, windowed: &[bool], hparams: &Hyperparameters) -> u32 {
    match (kept.rows, windowed.first()) {
        (Rows::Tokens, Some(true)) => hparams.head_dim_k_swa,
        _ => kept.n,
    }
}

/// The matrix for keys, given the elements of a head in this block and in the first block.
const fn of_keys(head: u32, first: u32, always: bool) -> Rotation {
    // The largest power of two, at least 64, that divides the elements of the head.
    let mut width = LEAST;
    while head > 0 && width <= u32::MAX / 2 && head.is_multiple_of(2 * width) {
        width *= 2;
    }
    match head {
        0 => Rotation::Never,
        _ if always => Rotation::Always(width),
        _ if first.is_multiple_of(LEAST) => Rotation::IfQuantised(width),
        _ => Rotation::Never,
    }
}

/// The matrix for values, given the elements of a head in this block and in the first block.
const fn of_values(head: u32, first: u32) -> Rotation {
    if head > 0 && first.is_multiple_of(LEAST) { Rotation::IfQuantised(LEAST) } else { Rotation::Never }
}

#[cfg(test)]
mod tests {
    use super::{Rotation, of_keys, of_values};
    use Rotation::{Always, IfQuantised, Never};

    #[test]
    fn the_widest_power_of_two_that_divides_a_head_rotates_keys_and_64_rotates_values() {
        for (head, keys, values) in [
            (64, IfQuantised(64), IfQuantised(64)),
            (80, Never, Never),
            (96, Never, Never),
            (128, IfQuantised(128), IfQuantised(64)),
            (192, IfQuantised(64), IfQuantised(64)),
            (256, IfQuantised(256), IfQuantised(64)),
            (512, IfQuantised(512), IfQuantised(64)),
            (576, IfQuantised(64), IfQuantised(64)),
            (0, Never, Never),
        ] {
            assert_eq!((of_keys(head, head, false), of_values(head, head)), (keys, values), "{head}");
        }
        assert_eq!(of_keys(128, 128, true), Always(128));
    }

    #[test]
    fn the_first_block_decides_whether_keys_are_rotated() {
        assert_eq!(of_keys(128, 96, false), Never);
        assert_eq!(of_keys(96, 128, false), IfQuantised(64));
        assert_eq!((of_values(128, 96), of_values(96, 128)), (Never, IfQuantised(64)));
    }
}
