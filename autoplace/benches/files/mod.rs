//! Published files without their data: tensors, hyper-parameters, and a vocabulary of real length, which takes most of
//! the reading time. The files are sparse; each takes only the space of its header, 5 to 14 MiB.
#![allow(dead_code, reason = "each user takes its part")]

mod vocabulary;

use std::path::{Path, PathBuf};

use autoplace::gguf::{Builder, TensorType as T};

use test_support::dims::{self, Dims, Experts};
use vocabulary::Vocabulary;

/// A published model in `Q4_K_M`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    arch: &'static str,
    dims: Dims,
    vocabulary: Vocabulary,
    experts: Option<Experts>,
}

pub(crate) const LLAMA_8B: Model = Model {
    name: "Llama-3.1-8B",
    arch: "llama",
    dims: dims::LLAMA_8B,
    vocabulary: Vocabulary::Bpe { pre: "llama-bpe", merges: 280_147 },
    experts: None,
};

/// The reference model of [`planning`](super): 70B, with a vocabulary of 128k.
pub(crate) const LLAMA_70B: Model = Model { name: "Llama-3.3-70B", dims: dims::LLAMA_70B, ..LLAMA_8B };

pub(crate) const QWEN3_30B_A3B: Model = Model {
    name: "Qwen3-30B-A3B",
    arch: "qwen3moe",
    dims: dims::QWEN3_30B_A3B.dims,
    vocabulary: Vocabulary::Bpe { pre: "qwen2", merges: 151_387 },
    experts: Some(dims::QWEN3_30B_A3B.experts),
};

pub(crate) const GEMMA3_27B: Model = Model {
    name: "gemma-3-27b",
    arch: "gemma3",
    dims: dims::GEMMA3_27B,
    vocabulary: Vocabulary::SentencePiece,
    experts: None,
};

/// All models, the smallest vocabulary first.
pub(crate) const ALL: [Model; 4] = [LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, GEMMA3_27B];

impl Model {
    /// Writes the file into this folder.
    pub(crate) fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join(format!("{}-Q4_K_M.gguf", self.name));
        self.builder().write_sparse(&path).expect("a folder that can be written to");
        path
    }

    /// Number of tokens in the vocabulary.
    pub(crate) fn n_vocab(&self) -> u32 {
        small(self.dims.n_vocab)
    }

    /// The file in memory.
    pub(crate) fn builder(&self) -> Builder {
        let builder = self.vocabulary.put(self.keys(Builder::new(self.arch)), self.n_vocab());
        let tensors = self.tensors().into_iter();
        tensors.fold(builder, |builder, (name, ty, shape)| builder.tensor(&name, ty, &shape))
    }

    fn keys(&self, builder: Builder) -> Builder {
        let dims = &self.dims;
        let keys = [
            ("block_count", dims.n_layer),
            ("context_length", 131_072),
            ("embedding_length", dims.n_embd),
            ("feed_forward_length", dims.n_ff),
            ("attention.head_count", dims.n_head),
            ("attention.head_count_kv", dims.n_head_kv),
            ("attention.key_length", dims.head_dim),
            ("attention.value_length", dims.head_dim),
            ("rope.dimension_count", dims.head_dim),
        ];
        let experts = self.experts.iter().flat_map(|experts| {
            [
                ("expert_count", experts.n),
                ("expert_used_count", experts.used),
                ("expert_feed_forward_length", experts.ff),
            ]
        });
        let window = (self.arch == "gemma3").then_some(("attention.sliding_window", 1024));
        let builder = builder
            .str("general.name", self.name)
            .u32("general.file_type", 15)
            .f32(&format!("{}.attention.layer_norm_rms_epsilon", self.arch), 1e-6);
        let all = keys.into_iter().chain(experts).chain(window);
        all.fold(builder, |builder, (key, value)| builder.u32(&format!("{}.{key}", self.arch), small(value)))
    }

    fn tensors(&self) -> Vec<(String, T, Vec<u64>)> {
        let tied = self.arch == "gemma3";
        let Dims { n_layer, n_embd, head_dim, n_vocab, .. } = self.dims;
        let vocabulary = vec![n_embd, n_vocab];
        let embedding = if tied { T::Q6_K } else { T::Q4_K };
        let mut all = vec![("token_embd.weight".to_owned(), embedding, vocabulary.clone())];
        if self.arch == "llama" {
            all.push(("rope_freqs.weight".to_owned(), T::F32, vec![head_dim / 2]));
        }
        for il in 0..n_layer {
            let block = self.block(il).into_iter();
            all.extend(block.map(|(name, ty, shape)| (format!("blk.{il}.{name}.weight"), ty, shape)));
        }
        all.push(("output_norm.weight".to_owned(), T::F32, vec![n_embd]));
        if !tied {
            all.push(("output.weight".to_owned(), T::Q6_K, vocabulary));
        }
        all
    }

    fn block(&self, il: u64) -> Vec<(&'static str, T, Vec<u64>)> {
        let Dims { n_layer, n_embd, n_ff, head_dim, .. } = self.dims;
        let (q, kv) = (self.dims.q(), self.dims.kv());
        // These blocks get more bits: the first and last eighth, and every third block between them (llama-quant.cpp,
        // use_more_bits).
        let eighth = n_layer / 8;
        let more = il < eighth || il >= 7 * eighth || (il - eighth) % 3 == 2;
        let kept = if more { T::Q6_K } else { T::Q4_K };
        let mut block = vec![
            ("attn_norm", T::F32, vec![n_embd]),
            ("attn_q", T::Q4_K, vec![n_embd, q]),
            ("attn_k", T::Q4_K, vec![n_embd, kv]),
            ("attn_v", kept, vec![n_embd, kv]),
            ("attn_output", T::Q4_K, vec![q, n_embd]),
            ("ffn_norm", T::F32, vec![n_embd]),
        ];
        if self.arch != "llama" {
            block.push(("attn_q_norm", T::F32, vec![head_dim]));
            block.push(("attn_k_norm", T::F32, vec![head_dim]));
        }
        if self.arch == "gemma3" {
            block.push(("post_attention_norm", T::F32, vec![n_embd]));
            block.push(("post_ffw_norm", T::F32, vec![n_embd]));
        }
        match self.experts {
            None => block.extend([
                ("ffn_gate", T::Q4_K, vec![n_embd, n_ff]),
                ("ffn_up", T::Q4_K, vec![n_embd, n_ff]),
                ("ffn_down", kept, vec![n_ff, n_embd]),
            ]),
            Some(Experts { n, ff, .. }) => block.extend([
                ("ffn_gate_inp", T::F32, vec![n_embd, n]),
                ("ffn_gate_exps", T::Q4_K, vec![n_embd, ff, n]),
                ("ffn_up_exps", T::Q4_K, vec![n_embd, ff, n]),
                ("ffn_down_exps", kept, vec![ff, n_embd, n]),
            ]),
        }
        block
    }
}

/// A hyper-parameter as the type that a header has.
fn small(value: u64) -> u32 {
    u32::try_from(value).expect("hyper-parameters are small")
}
