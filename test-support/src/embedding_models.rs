//! Small encoders and rerankers that can be loaded and computed, with random weights and a vocabulary of words.

use autoplace_gguf::TensorType as T;

use crate::synthetic::{Dims, Sketch};

/// The sizes are small enough for a computation in milliseconds.
const DIMS: Dims = Dims { n_layer: 3, n_embd: 256, n_ff: 512, n_head: 4, n_head_kv: 4, head_dim: 64, n_vocab: 512 };

/// The training context in tokens, which is also the number of learned positions.
pub const MAX_LENGTH: u64 = 192;

/// Words of the models' vocabulary, which consists of word pieces.
pub const WORDS: [&str; 12] =
    ["the", "moon", "pulls", "sea", "tide", "cat", "sleeps", "on", "a", "warm", "stone", "river"];

/// Values of `llama_pooling_type`.
const MEAN: u64 = 1;
const CLS: u64 = 2;
const RANK: u64 = 4;

/// The encoders, each with the pooling of its header. The matrices of all encoders have this type. With a type of 32
/// bits, rounding hardly matters.
pub fn encoders(ty: T) -> Vec<Sketch> {
    vec![bert(ty), nomic_bert(ty), jina_bert(ty)]
}

fn encoder(arch: &'static str, name: &'static str, pooling: u64, ty: T) -> Sketch {
    let mut sketch = Sketch::new(arch, name, DIMS);
    sketch.u32("context_length", MAX_LENGTH);
    sketch.u32("pooling_type", pooling);
    sketch.bool("attention.causal", false);
    sketch.f32("attention.layer_norm_epsilon", 1e-5);
    sketch.word_pieces(&WORDS);
    let Dims { n_embd, n_vocab, .. } = DIMS;
    sketch.tensor("token_embd.weight", T::F16, &[n_embd, n_vocab]);
    sketch.tensor("token_types.weight", T::F32, &[n_embd, 2]);
    for part in ["weight", "bias"] {
        sketch.tensor(&format!("token_embd_norm.{part}"), T::F32, &[n_embd]);
    }
    for il in 0..DIMS.n_layer {
        sketch.attention(il, ty);
        for name in ["attn_output_norm", "layer_output_norm"] {
            sketch.vector(il, &format!("{name}.weight"), n_embd);
            sketch.vector(il, &format!("{name}.bias"), n_embd);
        }
    }
    sketch
}

/// BERT with learned positions and mean pooling.
pub fn bert(ty: T) -> Sketch {
    bert_of("mean", MEAN, ty)
}

fn bert_of(name: &'static str, pooling: u64, ty: T) -> Sketch {
    let mut sketch = encoder("bert", name, pooling, ty);
    let Dims { n_embd, n_ff, .. } = DIMS;
    sketch.tensor("position_embd.weight", T::F32, &[n_embd, MAX_LENGTH]);
    for il in 0..DIMS.n_layer {
        sketch.block(il, "ffn_up.weight", ty, &[n_embd, n_ff]);
        sketch.block(il, "ffn_down.weight", ty, &[n_ff, n_embd]);
        sketch.vector(il, "ffn_up.bias", n_ff);
        sketch.vector(il, "ffn_down.bias", n_embd);
    }
    sketch
}

/// A BERT with a head that computes one score.
pub fn reranker(ty: T) -> Sketch {
    with_head(bert_of("reranker", RANK, ty), 1)
}

/// A BERT with a head that computes a score for each of these labels.
pub fn classifier(labels: &[&str]) -> Sketch {
    let mut sketch = bert_of("classifier", RANK, T::F32);
    sketch.strings("classifier.output_labels", labels);
    with_head(sketch, labels.len() as u64)
}

fn with_head(mut sketch: Sketch, scores: u64) -> Sketch {
    let n_embd = DIMS.n_embd;
    sketch.tensor("cls.weight", T::F32, &[n_embd, n_embd]);
    sketch.tensor("cls.bias", T::F32, &[n_embd]);
    sketch.tensor("cls.output.weight", T::F32, &[n_embd, scores]);
    sketch.tensor("cls.output.bias", T::F32, &[scores]);
    sketch
}

/// Nomic's BERT with rotary positions and pooling by the first token.
pub fn nomic_bert(ty: T) -> Sketch {
    let mut sketch = encoder("nomic-bert", "cls", CLS, ty);
    sketch.f32("rope.freq_base", 1000.0);
    for il in 0..DIMS.n_layer {
        sketch.feed_forward(il, ty, ty);
    }
    sketch
}

/// Jina's BERT, whose positions are an attention bias, with mean pooling.
pub fn jina_bert(ty: T) -> Sketch {
    let mut sketch = encoder("jina-bert-v2", "mean", MEAN, ty);
    for il in 0..DIMS.n_layer {
        sketch.vector(il, "attn_output.bias", DIMS.n_embd);
        sketch.feed_forward(il, ty, ty);
        sketch.vector(il, "ffn_down.bias", DIMS.n_embd);
    }
    sketch
}

/// A bidirectional llama that still has a cache.
pub fn llama_embed(ty: T) -> Sketch {
    let mut sketch = Sketch::new("llama-embed", "both ways", DIMS);
    sketch.bool("attention.causal", false);
    sketch.u32("pooling_type", MEAN);
    sketch.ends(ty, None);
    for il in 0..DIMS.n_layer {
        sketch.norms(il);
        sketch.attention(il, ty);
        sketch.feed_forward(il, ty, ty);
    }
    sketch.vocabulary();
    sketch
}

/// The encoder of a T5. llama.cpp creates a cache for it, which the encoder does not use.
pub fn t5_encoder(ty: T) -> Sketch {
    const BUCKETS: u64 = 32;
    let mut sketch = Sketch::new("t5encoder", "alone", DIMS);
    sketch.u32("context_length", MAX_LENGTH);
    sketch.u32("pooling_type", MEAN);
    sketch.u32("attention.relative_buckets_count", BUCKETS);
    let Dims { n_embd, n_ff, n_head, n_vocab, .. } = DIMS;
    sketch.tensor("token_embd.weight", ty, &[n_embd, n_vocab]);
    sketch.tensor("enc.output_norm.weight", T::F32, &[n_embd]);
    for il in 0..DIMS.n_layer {
        let mut matrix = |name: &str, ty, shape: &[u64]| {
            sketch.tensor(&format!("enc.blk.{il}.{name}.weight"), ty, shape);
        };
        matrix("attn_norm", T::F32, &[n_embd]);
        matrix("attn_rel_b", T::F32, &[n_head, BUCKETS]);
        for name in ["attn_q", "attn_k", "attn_v", "attn_o"] {
            matrix(name, ty, &[n_embd, n_embd]);
        }
        matrix("ffn_norm", T::F32, &[n_embd]);
        matrix("ffn_gate", ty, &[n_embd, n_ff]);
        matrix("ffn_up", ty, &[n_embd, n_ff]);
        matrix("ffn_down", ty, &[n_ff, n_embd]);
    }
    sketch.vocabulary();
    sketch
}

/// A text of `words` words, different for each number.
pub fn text(number: usize, words: usize) -> String {
    let word = |n: usize| WORDS[(n * n + 5 * number + n * number) % WORDS.len()];
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}
