//! The skeleton of a model: the same hyper-parameters and tensors, without the vocabulary and without the data.
//!
//! llama.cpp allocates the same bytes for it as for the model, and reads it in a fraction of the time, nearly all of
//! which goes into the vocabulary of the real one.

use super::builder::Builder;
use super::error::Error;
use super::header::Header;

/// What llama.cpp reads of a tokenizer before it looks at the vocabulary (llama-vocab.cpp, `llama_vocab::impl::load`).
const TOKEN_TYPE_COUNT: &str = "tokenizer.ggml.token_type_count";

impl Header {
    /// The skeleton of this model, as one file whatever the number of shards.
    ///
    /// Keys of the tokenizer are left out but for the size of the vocabulary, which `<architecture>.vocab_size` then
    /// tells (llama-vocab.cpp, `llama_vocab::impl::load`: a tokenizer model `no_vocab` reads nothing else).
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] or [`Error::Read`] when an array of the metadata cannot be read again; a
    /// missing architecture.
    pub fn skeleton(&self) -> Result<Builder, Error> {
        let mut skeleton = Builder::empty();
        for (key, value) in self.metadata() {
            let left_out = (key.starts_with("tokenizer.") && key != TOKEN_TYPE_COUNT)
                // Of several shards one is made.
                || key.starts_with("split.");
            if !left_out {
                skeleton = skeleton.value(key, value)?;
            }
        }
        if let Some(tokens) = self.array("tokenizer.ggml.tokens")? {
            let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
            skeleton = skeleton.u32(&self.arch_key("vocab_size")?, count);
        }
        skeleton = skeleton.str("tokenizer.ggml.model", "no_vocab");
        for tensor in self.tensors() {
            let shape = tensor.shape();
            skeleton = skeleton.tensor(tensor.name(), tensor.ty(), &shape[..tensor.n_dims()]);
        }
        Ok(skeleton)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Builder, Header, TensorType};

    fn skeleton(model: &Builder) -> Header {
        model
            .header()
            .unwrap()
            .skeleton()
            .unwrap()
            .header()
            .unwrap()
    }

    #[test]
    fn a_skeleton_has_every_tensor_and_no_vocabulary() {
        let model = Builder::new("llama")
            .u32("llama.block_count", 2)
            .u16("split.no", 0)
            .u16("split.count", 1)
            .str("tokenizer.ggml.model", "gpt2")
            .array_str("tokenizer.ggml.tokens", ["a", "b", "c"])
            .array_str("tokenizer.ggml.merges", ["a b"])
            .u32("tokenizer.ggml.bos_token_id", 1)
            .array_i32("llama.rope.dimension_sections", &[1, 2, 3, 4])
            .tensor("token_embd.weight", TensorType::Q8_0, &[64, 3])
            .tensor("output_norm.weight", TensorType::F32, &[64]);
        let skeleton = skeleton(&model);
        let keys: Vec<_> = skeleton.metadata().map(|(key, _)| key).collect();
        let kept = "general.architecture llama.block_count llama.rope.dimension_sections \
            llama.vocab_size tokenizer.ggml.model";
        assert_eq!(keys.join(" "), kept);
        assert_eq!(skeleton.arch_u32("vocab_size").unwrap(), Some(3));
        assert_eq!(skeleton.arch_u32("block_count").unwrap(), Some(2));
        let tokenizer = skeleton.str("tokenizer.ggml.model").unwrap();
        assert_eq!(tokenizer, Some("no_vocab"));
        let shape = |name: &str| skeleton.tensor(name).map(|t| (t.ty(), t.shape()));
        let embedding = (TensorType::Q8_0, [64, 3, 1, 1]);
        assert_eq!(shape("token_embd.weight"), Some(embedding));
        let norm = (TensorType::F32, [64, 1, 1, 1]);
        assert_eq!(shape("output_norm.weight"), Some(norm));
    }

    #[test]
    fn a_model_without_a_vocabulary_keeps_the_size_that_it_states() {
        let model = Builder::new("llama")
            .str("tokenizer.ggml.model", "none")
            .u32("llama.vocab_size", 77);
        let size = skeleton(&model).arch_u32("vocab_size").unwrap();
        assert_eq!(size, Some(77));
    }
}
