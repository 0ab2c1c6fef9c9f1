//! The identity of a plan's model.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::gguf::{self, Header, Value};
use crate::machine::Bytes;

/// The identity of a model: the lengths of its files and a hash of its header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelIdentity {
    /// The model's name for people: `general.name`, or else the file's name. It is not part of the identity.
    pub name: String,
    /// The lengths of the model's files in bytes, in order.
    pub file_bytes: Vec<u64>,
    /// XXH3 (128 bits, in hexadecimal) of all metadata keys and values and of the tensors' names, types, shapes and
    /// offsets.
    pub header: String,
}

impl ModelIdentity {
    /// The identity of the model with this header. For this, the header's arrays are read, including the vocabulary,
    /// which has some megabytes.
    ///
    /// # Errors
    ///
    /// [`gguf::Error::Changed`] and [`gguf::Error::Read`].
    pub fn from_header(header: &Header) -> Result<Self, gguf::Error> {
        let files = header.shards().iter().map(gguf::Shard::file_bytes);
        Ok(Self { name: header.title().unwrap_or_default(), file_bytes: files.collect(), header: hash(header)? })
    }

    /// Whether both identities are of the same model; names are ignored.
    pub fn is(&self, other: &Self) -> bool {
        self.file_bytes == other.file_bytes && self.header.eq_ignore_ascii_case(&other.header)
    }
}

impl fmt::Display for ModelIdentity {
    /// Writes `Llama 3 8B (4.6 GiB, header 1a2b3c4d)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.file_bytes.iter().copied().fold(0, u64::saturating_add);
        let header = self.header.get(..8).unwrap_or(&self.header);
        write!(f, "{} ({}, header {header})", self.name, Bytes(bytes))
    }
}

/// Hashes the length of each field of variable length before the field, so that different headers never yield the same
/// bytes.
fn hash(header: &Header) -> Result<String, gguf::Error> {
    let mut hash = Xxh3::new();
    let mut put = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for (key, value) in header.metadata() {
        put(key.as_bytes());
        put(&value.ty().id().to_le_bytes());
        if let Value::Array(array) = value {
            put(&array.element_type().id().to_le_bytes());
        }
        put(&value.bytes()?);
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
    use crate::gguf::{Builder, TensorType};

    #[test]
    fn the_header_and_the_file_lengths_identify_a_model_under_any_name() {
        let identity = |builder: &Builder| ModelIdentity::from_header(&builder.header().unwrap()).unwrap();
        let model = |tokens: [&str; 2], tensor: &str, shape: [u64; 2]| {
            let named = Builder::new("llama").str("general.name", "A model");
            named.array_str("tokenizer.ggml.tokens", tokens).tensor(tensor, TensorType::F32, &shape)
        };
        let same = || model(["a", "bc"], "output.weight", [4, 2]);
        let one = identity(&same());
        assert_eq!(one.header.len(), 32);
        assert!(one.to_string().starts_with("A model ("), "{one}");
        let mut renamed = identity(&same());
        renamed.name = "Another name".to_owned();
        assert!(one.is(&renamed));
        for other in [
            same().u32("x", 1),
            model(["ab", "c"], "output.weight", [4, 2]),
            model(["a", "bc"], "output.weight", [2, 4]),
            model(["a", "bc"], "output.bias", [4, 2]),
        ] {
            assert!(!one.is(&identity(&other)));
        }
        renamed.file_bytes.push(1);
        assert!(!one.is(&renamed));
    }
}
