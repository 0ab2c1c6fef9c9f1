//! Writes GGUF files: metadata and tensors flow in, and a file flows out. The tensor data of the file is zeros or a
//! hole. Such files stand for models of which only the header is needed: in tests, and in probes of llama.cpp
//! (skeletons).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::error::Error;
use crate::header::{DEFAULT_ALIGNMENT, Header};
use crate::shards::check_one;
use crate::source::Source;
use crate::tensor::data_bytes;
use crate::tensor_type::TensorType;
use crate::value::Value;
use crate::value_type::ValueType;

/// Builds a GGUF file of version 3 from metadata and tensors. The tensor data is zeros.
///
/// Setting a key again replaces its value. `general.alignment` also sets the alignment of the tensor data. Every built
/// header is read back, so a shape or name that [`Header`] would reject gives the same error here, with the path
/// `<builder>`.
///
/// ```
/// use autoplace_gguf::{Builder, TensorType};
///
/// let builder = Builder::new("llama").u32("llama.block_count", 6);
/// let header = builder.tensor("token_embd.weight", TensorType::Q4_K, &[256, 2]).header()?;
/// assert_eq!(header.tensor("token_embd.weight").unwrap().bytes(), 288);
/// # Ok::<(), autoplace_gguf::Error>(())
/// ```
#[doc(alias = "gguf_writer")]
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    /// Keys with their encoded values. Each encoded value is the type followed by the value.
    metadata: Vec<(String, Vec<u8>)>,
    tensors: Vec<NewTensor>,
}

#[derive(Clone, Debug)]
struct NewTensor {
    name: String,
    ty: TensorType,
    shape: Vec<u64>,
}

/// Defines, for each number type, a method that sets a single value and, for some types, a method that sets an array.
macro_rules! numbers {
    ($($ty:ident, $value:ident $(, $array:ident)?;)*) => {$(
        #[doc = concat!("Sets a key to a value of type `", stringify!($ty), "`.")]
        pub fn $ty(self, key: &str, value: $ty) -> Self {
            self.set(key, ValueType::$value, &value.to_le_bytes())
        }

        $(#[doc = concat!("Sets a key to an array of `", stringify!($ty), "`.")]
        pub fn $array(self, key: &str, values: &[$ty]) -> Self {
            let mut bytes = Vec::new();
            for value in values {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
            self.set_array(key, ValueType::$value, values.len() as u64, &bytes)
        })?
    )*};
}

impl Builder {
    /// A file that contains only the key `general.architecture`.
    pub fn new(architecture: &str) -> Builder {
        Builder::empty().str("general.architecture", architecture)
    }

    /// An empty file, for later shards, which have no architecture.
    pub fn empty() -> Builder {
        Builder { metadata: Vec::new(), tensors: Vec::new() }
    }

    numbers! {
        u8, U8;
        i8, I8;
        u16, U16;
        i16, I16;
        u32, U32, array_u32;
        i32, I32, array_i32;
        f32, F32, array_f32;
        u64, U64, array_u64;
        i64, I64, array_i64;
        f64, F64;
    }

    /// Sets a key to a boolean.
    pub fn bool(self, key: &str, value: bool) -> Self {
        self.set(key, ValueType::Bool, &[value.into()])
    }

    /// Sets a key to an array of booleans.
    pub fn array_bool(self, key: &str, values: &[bool]) -> Self {
        let bytes: Vec<u8> = values.iter().map(|&v| v.into()).collect();
        self.set_array(key, ValueType::Bool, values.len() as u64, &bytes)
    }

    /// Sets a key to a string, or to bytes that are not UTF-8. Readers stop at the first NUL byte.
    pub fn str(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        let mut bytes = Vec::new();
        push_string(&mut bytes, value.as_ref());
        self.set(key, ValueType::Str, &bytes)
    }

    /// Sets a key to an array of strings, or of bytes that are not UTF-8.
    pub fn array_str(self, key: &str, values: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let mut bytes = Vec::new();
        let mut count = 0;
        for value in values {
            push_string(&mut bytes, value.as_ref());
            count += 1;
        }
        self.set_array(key, ValueType::Str, count, &bytes)
    }

    /// Removes a key if it exists.
    pub fn without(mut self, key: &str) -> Self {
        self.metadata.retain(|(known, _)| known != key);
        self
    }

    /// Appends a tensor: its name, type, and elements per dimension, the innermost first.
    pub fn tensor(mut self, name: &str, ty: TensorType, shape: &[u64]) -> Self {
        self.tensors.push(NewTensor { name: name.to_owned(), ty, shape: shape.to_owned() });
        self
    }

    /// The header, as [`Header::open`] would read it from the file.
    ///
    /// # Errors
    ///
    /// The [`Error`] with which the reader rejects the content.
    pub fn header(&self) -> Result<Header, Error> {
        let (bytes, file_bytes) = self.encode();
        Header::in_memory("<builder>", &[(bytes.into(), file_bytes)])
    }

    /// The header's bytes, without the padding and tensor data after it, and the length of the whole file. The file may
    /// be one shard of several.
    pub fn encoded(&self) -> Result<(Vec<u8>, u64), Error> {
        let (bytes, file_bytes) = self.encode();
        check_one(&Source::memory("<builder>", bytes.as_slice().into(), file_bytes))?;
        Ok((bytes, file_bytes))
    }

    /// The whole file, with zeros as tensor data. It is meant for small models, because the data takes memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let (mut bytes, file_bytes) = self.encoded()?;
        bytes.resize(file_bytes as usize, 0);
        Ok(bytes)
    }

    /// Writes the file with a hole for the tensor data. An existing file is replaced.
    pub fn write_sparse(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let file = File::create(path).map_err(|source| unwritten(path, source))?;
        self.write_sparse_into(&file, path)
    }

    /// Like [`write_sparse`](Self::write_sparse), but writes into an empty open file. Errors name this file `path`.
    pub fn write_sparse_into(&self, mut file: &File, path: &Path) -> Result<(), Error> {
        let (bytes, file_bytes) = self.encoded()?;
        file.write_all(&bytes).and_then(|()| file.set_len(file_bytes)).map_err(|source| unwritten(path, source))
    }

    /// The header's bytes, and the length of the whole file.
    fn encode(&self) -> (Vec<u8>, u64) {
        let alignment = self.data_alignment();
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            push_string(&mut out, key.as_bytes());
            out.extend(value);
        }
        let mut offset: u64 = 0;
        let mut end = 0;
        for tensor in &self.tensors {
            push_string(&mut out, tensor.name.as_bytes());
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for n in &tensor.shape {
                out.extend_from_slice(&n.to_le_bytes());
            }
            out.extend(tensor.ty.id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            // The reader will reject a tensor with an invalid shape, so its bytes do not matter here.
            let bytes = data_bytes(tensor.ty, &tensor.shape).unwrap_or(0);
            end = offset.saturating_add(bytes);
            offset = end.checked_next_multiple_of(alignment).unwrap_or(end);
        }
        let mut begin = out.len() as u64;
        if !self.tensors.is_empty() {
            begin = begin.next_multiple_of(alignment);
        }
        (out, end.saturating_add(begin))
    }

    /// The value of `general.alignment`. For 0, which the reader will reject, 1 is returned.
    fn data_alignment(&self) -> u64 {
        let set = self.metadata.iter().find(|(key, _)| key == "general.alignment");
        let value = set.and_then(|(_, value)| value.get(4..8)?.try_into().ok());
        value.map_or(DEFAULT_ALIGNMENT, u32::from_le_bytes).max(1).into()
    }

    fn set(mut self, key: &str, ty: ValueType, value: &[u8]) -> Self {
        let encoded = [&ty.id().to_le_bytes()[..], value].concat();
        match self.metadata.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = encoded,
            None => self.metadata.push((key.to_owned(), encoded)),
        }
        self
    }

    /// Appends a new key with its encoded value: the type followed by the value.
    pub(crate) fn push(&mut self, key: &str, encoded: Vec<u8>) {
        self.metadata.push((key.to_owned(), encoded));
    }

    fn set_array(self, key: &str, ty: ValueType, count: u64, elements: &[u8]) -> Self {
        let mut encoded = ty.id().to_le_bytes().to_vec();
        encoded.extend(count.to_le_bytes());
        encoded.extend(elements);
        self.set(key, ValueType::Array, &encoded)
    }
}

/// Encodes a value as in a file: the type followed by the value.
pub(crate) fn bytes_of(value: Value<'_>) -> Result<Vec<u8>, Error> {
    let bytes = value.bytes()?;
    let mut out = value.ty().id().to_le_bytes().to_vec();
    match value {
        Value::Array(array) => {
            out.extend(array.element_type().id().to_le_bytes());
            out.extend(array.len().to_le_bytes());
        }
        Value::Str(_) | Value::Bytes(_) => out.extend((bytes.len() as u64).to_le_bytes()),
        Value::Number(_) => {}
    }
    out.extend_from_slice(&bytes);
    Ok(out)
}

fn unwritten(path: &Path, source: io::Error) -> Error {
    Error::Write { path: path.to_owned(), source }
}

fn push_string(out: &mut Vec<u8>, value: &[u8]) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value);
}

/// Architectures for which llama.cpp reads `vocab_size` even if there is a vocabulary (src/models/llama.cpp and
/// deepseek2.cpp, `load_arch_hparams`).
const READING_VOCAB_SIZE: [&str; 4] = ["llama", "llama-embed", "deepseek2", "mistral4"];

impl Header {
    /// The skeleton of this model: a header without vocabulary and tensor data. It is a single file even if the model
    /// has several shards.
    ///
    /// Only the size of the vocabulary is kept of the tokenizer, as `<architecture>.vocab_size` (llama-vocab.cpp,
    /// `llama_vocab::impl::load`: if the tokenizer model is `no_vocab`, llama.cpp reads nothing else).
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] or [`Error::Read`] if an array of the metadata cannot be read again; [`Error::MissingKey`]
    /// without an architecture.
    pub fn skeleton(&self) -> Result<Builder, Error> {
        let mut skeleton = Builder::empty();
        for (key, value) in self.metadata() {
            // `tokenizer.ggml.token_type_count` is kept, because llama.cpp reads it before the vocabulary.
            let left_out = (key.starts_with("tokenizer.") && key != "tokenizer.ggml.token_type_count")
                // The keys of a split are left out, because several shards become one file.
                || key.starts_with("split.");
            if !left_out {
                // All keys are different, and there may be a million of them, so `push` does not search for an existing
                // key.
                skeleton.push(key, bytes_of(value)?);
            }
        }
        // llama.cpp also ignores the tokens of a model with such a tokenizer.
        let is_no_vocab = self.str("tokenizer.ggml.model").is_ok_and(|name| matches!(name, Some("no_vocab" | "none")));
        let keeps_size = is_no_vocab || self.has_refused_vocab_size();
        if let Some(tokens) = self.array("tokenizer.ggml.tokens")?.filter(|_| !keeps_size) {
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

    /// Whether llama.cpp rejects the model because of the type of `<architecture>.vocab_size`. Most architectures
    /// ignore this key if there is a vocabulary.
    fn has_refused_vocab_size(&self) -> bool {
        let is_read = self.architecture().is_ok_and(|name| READING_VOCAB_SIZE.contains(&name));
        let stated = self.arch_key("vocab_size").ok().filter(|_| is_read).and_then(|key| self.get(&key));
        stated.is_some_and(|value| !matches!(value, Value::Number(number) if number.ty == ValueType::U32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skeleton(model: &Builder) -> Header {
        model.header().unwrap().skeleton().unwrap().header().unwrap()
    }

    #[test]
    fn a_skeleton_has_only_the_size_of_the_vocabulary() {
        let model = Builder::new("llama")
            .u32("llama.block_count", 2)
            .u16("split.no", 0)
            .u16("split.count", 1)
            .str("tokenizer.ggml.model", "gpt2")
            .array_str("tokenizer.ggml.tokens", ["a", "b", "c"])
            .array_str("tokenizer.ggml.merges", ["a b"])
            .u32("tokenizer.ggml.bos_token_id", 1)
            .array_i32("llama.rope.dimension_sections", &[1, 2, 3, 4]);
        let skeleton = skeleton(&model);
        let keys: Vec<_> = skeleton.metadata().map(|(key, _)| key).collect();
        let kept = "general.architecture llama.block_count llama.rope.dimension_sections \
            llama.vocab_size tokenizer.ggml.model";
        assert_eq!(keys.join(" "), kept);
        assert_eq!(skeleton.u32("llama.vocab_size").unwrap(), Some(3));
        // Without a vocabulary, the stated size is kept.
        let stated = Builder::new("llama").u32("llama.vocab_size", 77);
        assert_eq!(self::skeleton(&stated).u32("llama.vocab_size").unwrap(), Some(77));
    }

    #[test]
    fn a_skeleton_counts_no_tokens_that_llama_cpp_ignores() {
        for (tokenizer, size) in [("gpt2", Some(3)), ("no_vocab", None), ("none", None)] {
            let model = Builder::new("gemma3").str("tokenizer.ggml.model", tokenizer);
            let model = model.array_str("tokenizer.ggml.tokens", ["a", "b", "c"]);
            assert_eq!(skeleton(&model).u32("gemma3.vocab_size").unwrap(), size, "{tokenizer}");
        }
    }

    #[test]
    fn a_skeleton_keeps_a_vocabulary_size_of_a_type_that_llama_cpp_refuses() {
        let wide = |architecture: &str| {
            let key = format!("{architecture}.vocab_size");
            let model = Builder::new(architecture).u64(&key, 3).array_str("tokenizer.ggml.tokens", ["a", "b", "c"]);
            skeleton(&model).get(&key).and_then(|value| value.as_number().map(|number| number.ty))
        };
        assert_eq!(wide("llama"), Some(ValueType::U64));
        assert_eq!(wide("gemma3"), Some(ValueType::U32), "an architecture that does not read it");
    }

    #[test]
    fn a_skeleton_keeps_all_keys_even_if_there_are_very_many() {
        let mut model = Builder::new("llama");
        let keys = (0..1 << 17).map(|n| (format!("a.key.of.no.use.{n}"), bytes_of(Value::Str("")).unwrap()));
        model.metadata.extend(keys);
        let header = model.header().unwrap();
        // The sum counts the keys, the architecture and the tokenizer. If each key were compared with all others, this
        // test would take minutes.
        assert_eq!(header.skeleton().unwrap().metadata.len(), (1 << 17) + 2);
    }
}
