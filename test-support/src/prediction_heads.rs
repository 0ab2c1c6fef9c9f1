//! Models with a block for multi-token prediction. One model has random weights, and its drafts are useless. The drafts
//! of the other model are all accepted, but only if each draft is computed from the right hidden state.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use autoplace_gguf::Header;

use crate::random_weights;
use crate::synthetic::{Sketch, in_32_bits};

/// A model with random weights, whose drafts are useless.
pub fn random(folder: &Path) -> PathBuf {
    random_weights::write(&in_32_bits("glm4moe"), folder)
}

/// A model whose blocks add nothing. Each token determines the next one, and the hidden state identifies its token. The
/// prediction block uses only the hidden state of the previous token. The block goes from the previous token to its own
/// token, and the output goes to the next token.
pub fn steps(folder: &Path) -> PathBuf {
    take_steps(in_32_bits("glm4moe"), folder)
}

/// A model like that of [`steps`], but of an architecture with a recurrent state.
pub fn steps_with_states(folder: &Path) -> PathBuf {
    take_steps(in_32_bits("qwen35"), folder)
}

/// Writes a model with the weights of [`steps`].
fn take_steps(mut sketch: Sketch, folder: &Path) -> PathBuf {
    sketch.name = "steps";
    let path = random_weights::write(&sketch, folder);
    // The vocabulary has one token for each element of a hidden state.
    let n = usize::try_from(sketch.dims.n_embd).unwrap();
    // Makes a matrix with one row for each output. A row has at least `n` numbers.
    let matrix = |width: usize, begin: usize, to: &dyn Fn(usize) -> usize| {
        let mut numbers = vec![0.0; width * n];
        (0..n).for_each(|from| numbers[to(from) * width + begin + from] = 1.0);
        numbers
    };
    let header = Header::open(&path).unwrap();
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    for tensor in header.tensors() {
        let all = |number: f32| vec![number; usize::try_from(tensor.elements()).unwrap()];
        let numbers = match tensor.name() {
            "token_embd.weight" => matrix(n, 0, &|token| token),
            "output.weight" => matrix(n, 0, &next),
            name if name.ends_with("nextn.eh_proj.weight") => matrix(2 * n, n, &next),
            name if name.ends_with("norm.weight") => all(1.0),
            name if ["attn_output", "ssm_out", "ffn_down"].iter().any(|part| name.contains(part)) => all(0.0),
            _ => continue,
        };
        let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        file.seek(SeekFrom::Start(tensor.offset())).unwrap();
        file.write_all(&data).unwrap();
    }
    path
}

/// The token after `token`, which is always a word. After a word, it is the next word in a long cycle.
fn next(token: usize) -> usize {
    const FIRST_WORD: usize = 259;
    const WORDS: usize = 512 - FIRST_WORD;
    match token.checked_sub(FIRST_WORD) {
        Some(word) => FIRST_WORD + (5 * word + 3) % WORDS,
        None => FIRST_WORD + token % WORDS,
    }
}
