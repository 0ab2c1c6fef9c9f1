//! The vocabulary of a model, reduced for a probe of llama.cpp. A header flows in. A file flows out, without tensors
//! and with only the beginning of each token list. [`Header::repeated_token`] looks for equal tokens in
//! the whole list, because a probe cannot find them in the reduced one.

use std::collections::HashMap;

use crate::builder::{Builder, bytes_of};
use crate::error::Error;
use crate::header::Header;
use crate::value::{Array, Value};
use crate::value_type::ValueType;

const TOKENS: &str = "tokenizer.ggml.tokens";

impl Header {
    /// This model's metadata without its tensors, and with at most `at_most` elements of each tokenizer list.
    ///
    /// llama.cpp checks which lists exist, and that no list is shorter than the token list (llama-vocab.cpp,
    /// `llama_vocab::impl::load`). A list that is too short stays too short here. Byte arrays stay complete, because
    /// they do not have one element per token.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] or [`Error::Read`] if an array of the metadata cannot be read again.
    pub fn vocabulary(&self, at_most: u64) -> Result<Builder, Error> {
        let tokens = match self.get(TOKENS) {
            Some(Value::Array(tokens)) => tokens.len(),
            _ => 0,
        };
        let mut builder = Builder::empty();
        for (key, value) in self.metadata() {
            if key.starts_with("split.") {
                continue;
            }
            let bytes = match value {
                Value::Array(list) if key.starts_with("tokenizer.") && is_cut(&list, at_most) => {
                    let count = if list.len() < tokens { list.len().min(at_most.saturating_sub(1)) } else { at_most };
                    beginning(&list, count)?
                }
                value => bytes_of(value)?,
            };
            builder.push(key, bytes);
        }
        Ok(builder)
    }

    /// The indices of the first two equal tokens of the vocabulary; `None` if there are none. llama.cpp aborts on equal
    /// tokens (llama-vocab.cpp, `llama_vocab::impl::load`).
    ///
    /// # Errors
    ///
    /// Those of [`Array::strings`].
    pub fn repeated_token(&self) -> Result<Option<(u64, u64)>, Error> {
        let is_none = matches!(self.get("tokenizer.ggml.model"), Some(Value::Str("no_vocab" | "none")));
        let Some(Value::Array(tokens)) = self.get(TOKENS).filter(|_| !is_none) else { return Ok(None) };
        if tokens.element_type() != ValueType::Str {
            return Ok(None);
        }
        let mut seen = HashMap::new();
        for (index, token) in (0..).zip(tokens.strings()?) {
            let mut token = token?;
            // llama.cpp reads tokens as C strings, and gives empty tokens a name.
            token.truncate(token.iter().position(|&byte| byte == 0).unwrap_or(token.len()));
            if token.is_empty() {
                token = format!("[EMPTY_{index}]").into_bytes();
            }
            if let Some(first) = seen.insert(token, index) {
                return Ok(Some((first, index)));
            }
        }
        Ok(None)
    }
}

fn is_cut(list: &Array<'_>, at_most: u64) -> bool {
    list.len() > at_most && !matches!(list.element_type(), ValueType::I8 | ValueType::U8)
}

/// Encodes an array of the first `count` elements, as stored in a file.
fn beginning(list: &Array<'_>, count: u64) -> Result<Vec<u8>, Error> {
    let ty = list.element_type();
    let mut out = ValueType::Array.id().to_le_bytes().to_vec();
    out.extend(ty.id().to_le_bytes());
    out.extend(count.to_le_bytes());
    if ty == ValueType::Str {
        for text in list.strings()?.take(usize::try_from(count).unwrap_or(usize::MAX)) {
            let text = text?;
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text);
        }
    } else {
        let bytes = list.raw_bytes()?;
        let length = bytes.len() as u64 / list.len().max(1) * count;
        out.extend(bytes.iter().take(usize::try_from(length).unwrap_or(usize::MAX)));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorType;

    #[test]
    fn long_lists_are_cut_and_lists_that_are_too_short_stay_so() {
        let words = |n: usize| (0..n).map(|n| format!("word{n}"));
        let model = Builder::new("llama")
            .str("tokenizer.ggml.model", "llama")
            .array_str(TOKENS, words(10))
            .array_f32("tokenizer.ggml.scores", &[0.5; 10])
            .array_i32("tokenizer.ggml.token_type", &[1; 7])
            .array_str("tokenizer.ggml.merges", words(30))
            .array_i32("llama.rope.dimension_sections", &[1, 2, 3, 4, 5])
            .tensor("token_embd.weight", TensorType::F32, &[8, 10]);
        let cut = model.header().unwrap().vocabulary(4).unwrap().header().unwrap();
        let lengths: Vec<_> = cut.metadata().filter_map(|(_, value)| Some(value.as_array()?.len())).collect();
        assert_eq!(lengths, [4, 4, 3, 4, 5]);
        let tokens: Vec<_> = cut.array(TOKENS).unwrap().unwrap().strings().unwrap().map(Result::unwrap).collect();
        assert_eq!(tokens, ["word0", "word1", "word2", "word3"].map(|word| word.as_bytes().to_vec()));
        assert_eq!(cut.tensors().len(), 0);
        let whole = model.header().unwrap().vocabulary(u64::MAX).unwrap().header().unwrap();
        assert_eq!(whole.metadata().len(), model.header().unwrap().metadata().len());
    }

    #[test]
    fn tokens_are_equal_if_llama_cpp_reads_them_so() {
        let repeated = |tokens: &[&str]| {
            let model = Builder::new("llama").array_str(TOKENS, tokens);
            model.header().unwrap().repeated_token().unwrap()
        };
        assert_eq!(repeated(&["a", "b", "c"]), None);
        assert_eq!(repeated(&["a", "b", "a"]), Some((0, 2)));
        assert_eq!(repeated(&["", "", "b"]), None, "each gets a name of its own");
        assert_eq!(repeated(&["", "[EMPTY_0]"]), Some((0, 1)));
        assert_eq!(repeated(&["a\0b", "a\0c"]), Some((0, 1)));
        let none = Builder::new("llama").str("tokenizer.ggml.model", "no_vocab").array_str(TOKENS, ["a", "a"]);
        assert_eq!(none.header().unwrap().repeated_token().unwrap(), None);
        assert_eq!(Builder::new("llama").header().unwrap().repeated_token().unwrap(), None);
    }
}
