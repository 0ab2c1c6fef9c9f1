//! Models with a block that predicts the token after the next: one whose weights are random, so that its guesses are as
//! good as none, and one whose guesses all come true, but only where each is made from the right hidden state.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use autoplace::gguf::{Header, TensorType as T};

use crate::random_weights;
use crate::synthetic::block::{Block, Feed};
use crate::synthetic::{Dims, Sketch};

/// As many tokens as elements of a hidden state.
const DIMS: Dims = Dims { n_layer: 3, n_embd: 512, n_ff: 128, n_head: 4, n_head_kv: 2, head_dim: 64, n_vocab: 512 };

/// A dense block, one with experts, and one with experts that predicts.
fn glm4moe(name: &'static str) -> Sketch {
    let mut sketch = Sketch::new("glm4moe", name, DIMS);
    sketch.u32("nextn_predict_layers", 1);
    sketch.u32("leading_dense_block_count", 1);
    sketch.u32("expert_shared_count", 1);
    sketch.mixture(4, 2, 64);
    sketch.ends(T::F32, Some(T::F32));
    let dense = Block { norms: &["attn_norm.weight", "post_attention_norm.weight"], ..Block::new(T::F32, T::F32) };
    let mixture = Block { feed: Feed::Shared { n: 4, ff: 64, ty: T::F32, shared: (64, T::F32) }, ..dense };
    sketch.put(0, &dense);
    for il in [1, 2] {
        sketch.put(il, &mixture);
        sketch.vector(il, "exp_probs_b.bias", 4);
    }
    predict(&mut sketch, 2);
    sketch
}

/// Three blocks of a recurrent state, one that attends, and one that attends and predicts.
fn qwen35(name: &'static str) -> Sketch {
    const HEAD: u64 = 32;
    const HEADS: u64 = 2;
    let dims = Dims { n_layer: 5, n_ff: 64, ..DIMS };
    let mut sketch = Sketch::new("qwen35", name, dims);
    sketch.u32("nextn_predict_layers", 1);
    sketch.u32s("rope.dimension_sections", &[11, 11, 10, 0]);
    sketch.u32("ssm.conv_kernel", 4);
    sketch.u32("ssm.inner_size", HEADS * HEAD);
    sketch.u32("ssm.state_size", HEAD);
    sketch.u32("ssm.time_step_rank", HEADS);
    sketch.u32("ssm.group_count", HEADS);
    sketch.ends(T::F32, Some(T::F32));
    let (n_embd, inner) = (dims.n_embd, HEADS * HEAD);
    for il in 0..dims.n_layer {
        sketch.vector(il, "attn_norm.weight", n_embd);
        sketch.vector(il, "post_attention_norm.weight", n_embd);
        if il < 3 {
            let mixed = 3 * inner;
            for (name, shape) in [
                ("attn_qkv.weight", [n_embd, mixed]),
                ("attn_gate.weight", [n_embd, inner]),
                ("ssm_conv1d.weight", [4, mixed]),
                ("ssm_beta.weight", [n_embd, HEADS]),
                ("ssm_alpha.weight", [n_embd, HEADS]),
                ("ssm_out.weight", [inner, n_embd]),
            ] {
                sketch.block(il, name, T::F32, &shape);
            }
            sketch.vector(il, "ssm_dt.bias", HEADS);
            sketch.vector(il, "ssm_a", HEADS);
            sketch.vector(il, "ssm_norm.weight", HEAD);
        } else {
            for (name, shape) in [
                ("attn_q.weight", [n_embd, 2 * dims.q()]),
                ("attn_k.weight", [n_embd, dims.kv()]),
                ("attn_v.weight", [n_embd, dims.kv()]),
                ("attn_output.weight", [dims.q(), n_embd]),
            ] {
                sketch.block(il, name, T::F32, &shape);
            }
            sketch.qk_norms(il);
        }
        sketch.feed_forward(il, T::F32, T::F32);
    }
    predict(&mut sketch, 4);
    sketch
}

/// What makes a block one that predicts, and a model one that generates.
fn predict(sketch: &mut Sketch, il: u64) {
    let n_embd = DIMS.n_embd;
    sketch.block(il, "nextn.eh_proj.weight", T::F32, &[2 * n_embd, n_embd]);
    sketch.vector(il, "nextn.enorm.weight", n_embd);
    sketch.vector(il, "nextn.hnorm.weight", n_embd);
    sketch.vector(il, "nextn.shared_head_norm.weight", n_embd);
    sketch.vocabulary();
    sketch.u32("context_length", 2048);
}

/// Its guesses are as good as none.
pub(crate) fn random(folder: &Path) -> PathBuf {
    random_weights::write(&glm4moe("32 bits"), folder)
}

/// The same with a recurrent state.
pub(crate) fn random_states(folder: &Path) -> PathBuf {
    random_weights::write(&qwen35("32 bits"), folder)
}

/// A model whose blocks add nothing: each token decides by itself which one comes after it, and the hidden state says
/// which token it is of. The block that predicts looks at nothing but the hidden state of the token before, takes the
/// step from there to the token that it is given, and leaves the next step to the output.
pub(crate) fn steps(folder: &Path) -> PathBuf {
    let path = random_weights::write(&glm4moe("steps"), folder);
    take_steps(&path);
    path
}

/// The same with a recurrent state.
pub(crate) fn steps_with_states(folder: &Path) -> PathBuf {
    let path = random_weights::write(&qwen35("steps"), folder);
    take_steps(&path);
    path
}

/// Gives a model the weights of [`steps`].
fn take_steps(path: &Path) {
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
    let header = Header::open(path).unwrap();
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    for tensor in header.tensors() {
        let numbers: Vec<f32> = match tensor.name() {
            "token_embd.weight" => matrix(n, 0, &|token| token),
            "output.weight" => matrix(n, 0, &next),
            name if name.ends_with("nextn.eh_proj.weight") => matrix(2 * n, n, &next),
            name if name.ends_with("norm.weight") => {
                vec![1.0; usize::try_from(tensor.elements()).unwrap()]
            }
            name if ["attn_output", "ssm_out", "ffn_down"].iter().any(|it| name.contains(it)) => {
                nothing(tensor.elements())
            }
            _ => continue,
        };
        let data: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
        file.seek(SeekFrom::Start(tensor.offset())).unwrap();
        file.write_all(&data).unwrap();
    }
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
