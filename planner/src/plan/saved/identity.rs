//! Which model a plan is of.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::gguf::{self, Header, Value};
use crate::machine::Bytes;

/// A model, told apart from every other: the lengths of its files and a hash of its header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelIdentity {
    /// Its name for people, which does not tell it apart: `general.name`, else its file's.
    pub name: String,
    /// The lengths of its files in bytes, in order.
    pub file_bytes: Vec<u64>,
    /// XXH3 (128 bits) over all keys and values of its metadata, and the names, types, shapes and offsets of its
    /// tensors, in hexadecimal.
    pub header: String,
}

impl ModelIdentity {
    /// The model whose header this is. Reads its arrays, which hold the vocabulary: some megabytes.
    ///
    /// # Errors
    ///
    /// [`gguf::Error::Changed`] and [`gguf::Error::Read`].
    pub fn of(header: &Header) -> Result<Self, gguf::Error> {
        let name = header.get("general.name").and_then(|name| name.as_str());
        let file = || {
            header
                .path()
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
        };
        Ok(Self {
            name: name.map_or_else(|| file().into_owned(), str::to_owned),
            file_bytes: header
                .shards()
                .iter()
                .map(gguf::Shard::file_bytes)
                .collect(),
            header: hash(header)?,
        })
    }

    /// Whether they are the same model, whatever it is called.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.file_bytes == other.file_bytes && self.header.eq_ignore_ascii_case(&other.header)
    }
}

impl fmt::Display for ModelIdentity {
    /// `Llama 3 8B (4.6 GiB, header 1a2b3c4d)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self
            .file_bytes
            .iter()
            .fold(0, |sum: u64, &one| sum.saturating_add(one));
        let header = self.header.get(..8).unwrap_or(&self.header);
        write!(f, "{} ({}, header {header})", self.name, Bytes(bytes))
    }
}

/// Everything of variable length goes in with its length, so that no two headers are one text.
fn hash(header: &Header) -> Result<String, gguf::Error> {
    let mut hash = Xxh3::new();
    let mut put = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for (key, value) in header.metadata() {
        put(key.as_bytes());
        put(&value.ty().id().to_le_bytes());
        match value {
            Value::U8(v) => put(&v.to_le_bytes()),
            Value::I8(v) => put(&v.to_le_bytes()),
            Value::U16(v) => put(&v.to_le_bytes()),
            Value::I16(v) => put(&v.to_le_bytes()),
            Value::U32(v) => put(&v.to_le_bytes()),
            Value::I32(v) => put(&v.to_le_bytes()),
            Value::F32(v) => put(&v.to_le_bytes()),
            Value::Bool(v) => put(&[v.into()]),
            Value::Str(v) => put(v.as_bytes()),
            Value::Bytes(v) => put(v),
            Value::LongText(v) => put(&v.raw_bytes()?),
            Value::Array(v) => {
                put(&v.element_type().id().to_le_bytes());
                put(&v.raw_bytes()?);
            }
            Value::U64(v) => put(&v.to_le_bytes()),
            Value::I64(v) => put(&v.to_le_bytes()),
            Value::F64(v) => put(&v.to_le_bytes()),
        }
    }
    for tensor in header.tensors() {
        put(tensor.name().as_bytes());
        put(tensor.ty().name().as_bytes());
        for number in tensor.shape() {
            put(&number.to_le_bytes());
        }
        put(&tensor.offset().to_le_bytes());
        put(&(tensor.shard() as u64).to_le_bytes());
    }
    Ok(format!("{:032x}", hash.digest128()))
}

#[cfg(test)]
mod tests {
    use super::ModelIdentity;
    use crate::gguf::{Builder, Header, TensorType};

    fn builder() -> Builder {
        Builder::new("llama")
            .str("general.name", "A model")
            .array_str("tokenizer.ggml.tokens", ["a", "bc"])
            .tensor("output.weight", TensorType::F32, &[4, 2])
    }

    fn identity(builder: &Builder) -> ModelIdentity {
        let header: Header = builder.header().unwrap();
        ModelIdentity::of(&header).unwrap()
    }

    #[test]
    fn the_same_header_is_the_same_model() {
        let identity = identity(&builder());
        assert!(identity.is(&super::tests::identity(&builder())));
        assert_eq!(identity.header.len(), 64);
        assert!(identity.to_string().starts_with("A model ("), "{identity}");
    }

    #[test]
    fn any_difference_of_the_header_makes_another_model() {
        let one = identity(&builder());
        for other in [
            builder().u32("x", 1),
            Builder::new("llama")
                .str("general.name", "A model")
                .array_str("tokenizer.ggml.tokens", ["ab", "c"])
                .tensor("output.weight", TensorType::F32, &[4, 2]),
            Builder::new("llama")
                .str("general.name", "A model")
                .array_str("tokenizer.ggml.tokens", ["a", "bc"])
                .tensor("output.weight", TensorType::F32, &[2, 4]),
            Builder::new("llama")
                .str("general.name", "A model")
                .array_str("tokenizer.ggml.tokens", ["a", "bc"])
                .tensor("output.bias", TensorType::F32, &[4, 2]),
        ] {
            assert!(!one.is(&identity(&other)));
        }
    }

    #[test]
    fn files_of_other_lengths_are_another_model() {
        let one = identity(&builder());
        let mut other = one.clone();
        other.file_bytes.push(1);
        assert!(!one.is(&other));
        let mut renamed = one.clone();
        renamed.name = "Another name".to_owned();
        assert!(one.is(&renamed));
    }
}
