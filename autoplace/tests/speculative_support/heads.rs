//! Models with a block that predicts the token after the next: one whose weights are random, so that its guesses are as good as none, and one
//! whose guesses all come true, but only where each is made from the right hidden state.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use autoplace::gguf::{Header, TensorType as T};

use crate::random_weights;
use crate::synthetic::block::{Block, Feed};
use crate::synthetic::{Dims, Sketch};

/// As many tokens as elements of a hidden state.
const DIMS: Dims = Dims {
    n_layer: 3,
    n_embd: 512,
    n_ff: 128,
    n_head: 4,
    n_head_kv: 2,
    head_dim: 64,
    n_vocab: 512,
};

/// A dense block, one with experts, and one with experts that predicts.
fn glm4moe(name: &'static str) -> Sketch {
    let mut sketch = Sketch::new("glm4moe", name, DIMS);
    sketch.u32("nextn_predict_layers", 1);
    sketch.u32("leading_dense_block_count", 1);
    sketch.u32("expert_shared_count", 1);
    sketch.mixture(4, 2, 64);
    sketch.ends(T::F32, Some(T::F32));
    let dense = Block {
        norms: &["attn_norm.weight", "post_attention_norm.weight"],
        ..Block::new(T::F32, T::F32)
    };
    let mixture = Block {
        feed: Feed::Shared {
            n: 4,
            ff: 64,
            ty: T::F32,
            shared: (64, T::F32),
        },
        ..dense
    };
    sketch.put(0, &dense);
    for il in [1, 2] {
        sketch.put(il, &mixture);
        sketch.vector(il, "exp_probs_b.bias", 4);
    }
    let n_embd = DIMS.n_embd;
    sketch.block(2, "nextn.eh_proj.weight", T::F32, &[2 * n_embd, n_embd]);
    sketch.vector(2, "nextn.enorm.weight", n_embd);
    sketch.vector(2, "nextn.hnorm.weight", n_embd);
    sketch.vector(2, "nextn.shared_head_norm.weight", n_embd);
    sketch.vocabulary();
    sketch.u32("context_length", 2048);
    sketch
}

/// Its guesses are as good as none.
pub(crate) fn random(folder: &Path) -> PathBuf {
    random_weights::write(&glm4moe("32 bits"), folder)
}

/// A model whose blocks add nothing: each token decides by itself which one comes after it, and the hidden state says which token it is of. The
/// block that predicts looks at nothing but the hidden state of the token before, takes the step from there to the token that it is given,
/// and leaves the next step to the output.
pub(crate) fn steps(folder: &Path) -> PathBuf {
    let path = random_weights::write(&glm4moe("steps"), folder);
    let n = usize::try_from(DIMS.n_embd).unwrap();
    // Of matrices with a row of `n` or more numbers for each output.
    let matrix = |width: usize, begin: usize, to: &dyn Fn(usize) -> usize| {
        let mut numbers = vec![0.0; width * n];
        for from in 0..n {
            numbers[to(from) * width + begin + from] = 1.0;
        }
        numbers
    };
    let nothing = |elements: u64| vec![0.0; usize::try_from(elements).unwrap()];
    let header = Header::open(&path).unwrap();
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    for tensor in header.tensors() {
        let numbers: Vec<f32> = match tensor.name() {
            "token_embd.weight" => matrix(n, 0, &|token| token),
            "output.weight" => matrix(n, 0, &next),
            "blk.2.nextn.eh_proj.weight" => matrix(2 * n, n, &next),
            name if name.ends_with("norm.weight") => {
                vec![1.0; usize::try_from(tensor.elements()).unwrap()]
            }
            name if name.contains("attn_output") || name.contains("ffn_down") => {
                nothing(tensor.elements())
            }
            _ => continue,
        };
        let data: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
        file.seek(SeekFrom::Start(tensor.offset())).unwrap();
        file.write_all(&data).unwrap();
    }
    path
}

/// The token after one: a word, and after words in a long circle.
pub(crate) fn next(token: usize) -> usize {
    const FIRST_WORD: usize = 259;
    const WORDS: usize = 512 - FIRST_WORD;
    match token.checked_sub(FIRST_WORD) {
        Some(word) => FIRST_WORD + (5 * word + 3) % WORDS,
        None => FIRST_WORD + token % WORDS,
    }
}
