//! The smallest models that llama.cpp loads, for tests to modify.

use autoplace_gguf::{Builder, TensorType};

/// Number of tokens of [`tiny_llama`].
pub const TINY_VOCABULARY: u32 = 300;

/// A llama with two blocks of zero weights.
pub fn tiny_llama() -> Builder {
    let [normal, unknown, control, byte] = [1, 2, 3, 6];
    let special = [("<unk>", unknown), ("<s>", control), ("</s>", control)].map(|(text, kind)| (text.to_owned(), kind));
    let bytes = (0..=255u8).map(|text| (format!("<0x{text:02X}>"), byte));
    let words = (0..).map(|n| (format!("word{n}"), normal));
    let (tokens, kinds): (Vec<String>, Vec<i32>) =
        special.into_iter().chain(bytes).chain(words).take(TINY_VOCABULARY as usize).unzip();
    tiny_llama_without_vocabulary()
        .str("tokenizer.ggml.model", "llama")
        .array_str("tokenizer.ggml.tokens", tokens)
        .array_f32("tokenizer.ggml.scores", &[0.0; TINY_VOCABULARY as usize])
        .array_i32("tokenizer.ggml.token_type", &kinds)
}

/// [`tiny_llama`] without its vocabulary.
pub fn tiny_llama_without_vocabulary() -> Builder {
    tiny("llama", 1, 32)
}

/// A model like [`tiny_llama`], with the name of another compatible architecture or with attention heads of another
/// width.
pub fn tiny(architecture: &str, n_head_kv: u32, head: u32) -> Builder {
    let key = |suffix: &str| format!("{architecture}.{suffix}");
    let q_width = 2 * u64::from(head);
    let kv_width = u64::from(n_head_kv * head);
    let mut model = Builder::new(architecture)
        .u32(&key("block_count"), 2)
        .u32(&key("context_length"), 512)
        .u32(&key("embedding_length"), 64)
        .u32(&key("feed_forward_length"), 128)
        .u32(&key("attention.head_count"), 2)
        .u32(&key("attention.head_count_kv"), n_head_kv)
        .u32(&key("attention.key_length"), head)
        .u32(&key("attention.value_length"), head)
        .u32(&key("rope.dimension_count"), head)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .tensor("token_embd.weight", TensorType::F16, &[64, u64::from(TINY_VOCABULARY)])
        .tensor("output_norm.weight", TensorType::F32, &[64])
        .tensor("output.weight", TensorType::F16, &[64, u64::from(TINY_VOCABULARY)]);
    for block in 0..2 {
        let name = |part: &str| format!("blk.{block}.{part}.weight");
        model = model
            .tensor(&name("attn_norm"), TensorType::F32, &[64])
            .tensor(&name("attn_q"), TensorType::F16, &[64, q_width])
            .tensor(&name("attn_k"), TensorType::F16, &[64, kv_width])
            .tensor(&name("attn_v"), TensorType::F16, &[64, kv_width])
            .tensor(&name("attn_output"), TensorType::F16, &[q_width, 64])
            .tensor(&name("ffn_norm"), TensorType::F32, &[64])
            .tensor(&name("ffn_gate"), TensorType::F16, &[64, 128])
            .tensor(&name("ffn_up"), TensorType::F16, &[64, 128])
            .tensor(&name("ffn_down"), TensorType::F16, &[128, 64]);
    }
    model
}
