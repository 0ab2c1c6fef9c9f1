//! Typed access to the metadata. A getter returns a key's value, `None` if there is no such key, and an error if the
//! value has another type. Types must match exactly, as in llama.cpp (`src/llama-model-loader.cpp`,
//! `GGUFMeta::GKV::get_kv`).

use std::fmt;

use crate::error::Error;
use crate::header::Header;
use crate::value::{Array, Number, Value};
use crate::value_type::ValueType;

/// For each type, defines a method that returns a key's value. `$from_bits` converts the value from its bits.
macro_rules! numbers {
    ($($ty:ident, $value:ident, $from_bits:expr;)*) => {$(
        #[doc = concat!("The value of a key of type `", stringify!($ty), "`, or `None` if there is no such key.")]
        ///
        /// # Errors
        ///
        /// [`Error::WrongType`] if the value has any other type, including another number type.
        pub fn $ty(&self, key: &str) -> Result<Option<$ty>, Error> {
            let value = self.inner.metadata.typed(key, ValueType::$value)?;
            Ok(value.as_ref().map(Value::bits).map($from_bits))
        }
    )*};
}

impl Header {
    /// `general.architecture`, which is also the prefix of the architecture's keys: `llama`, `qwen3moe`, `gemma3`.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`], [`Error::Malformed`] for a name with a control character, and the errors of
    /// [`str`](Self::str).
    #[doc(alias = "general.architecture")]
    pub fn architecture(&self) -> Result<&str, Error> {
        let key = "general.architecture";
        match self.str(key)? {
            Some(architecture) if architecture.contains(char::is_control) => {
                Err(self.malformed(key, format_args!("key '{key}' contains a control character")))
            }
            Some(architecture) => Ok(architecture),
            None => Err(self.inner.metadata.missing(key)),
        }
    }

    /// A name for people: `general.name`, or the file name without its extension. Control characters are replaced by
    /// spaces. `None` for a header in memory without `general.name`.
    #[doc(alias = "general.name")]
    pub fn title(&self) -> Option<String> {
        let stem = || self.path().file_stem().filter(|_| !self.is_in_memory());
        let name = self.get("general.name").and_then(|name| name.as_str()).map(str::to_owned);
        let title = name.or_else(|| Some(stem()?.to_string_lossy().into_owned()))?;
        Some(title.replace(char::is_control, " "))
    }

    numbers! {
        u32, U32, |bits| bits as u32;
        f32, F32, |bits| f32::from_bits(bits as u32);
        bool, Bool, |bits| bits != 0;
    }

    /// The value of a string key up to its first NUL byte, or `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`]; [`Error::Malformed`] if the string is not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        let metadata = &self.inner.metadata;
        match metadata.typed(key, ValueType::Str)? {
            Some(Value::Bytes(bytes)) => {
                let what = format_args!("the value of key '{key}'");
                Err(metadata.source.not_utf8(metadata.offset_of(key), what, bytes))
            }
            value => Ok(value.and_then(|value| value.as_str())),
        }
    }

    /// The array of a key, or `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if the value is not an array.
    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>, Error> {
        let value = self.inner.metadata.typed(key, ValueType::Array)?;
        Ok(value.and_then(|value| value.as_array()))
    }

    /// The value of a key of any integer type, or `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if the value is not an integer, [`Error::Malformed`] if it is negative.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || self.inner.metadata.wrong_type(key, ValueType::U64, value.ty());
        let integer = value.as_number().and_then(Number::as_integer).ok_or_else(wrong)?;
        u64::try_from(integer).map(Some).map_err(|_| {
            let problem = format_args!("key '{key}' is {integer}, which is not a number >= 0");
            self.malformed(key, problem)
        })
    }

    /// The full key for a suffix, with the architecture as prefix: `llama.block_count` for `block_count`.
    ///
    /// # Errors
    ///
    /// Those of [`architecture`](Self::architecture).
    pub fn arch_key(&self, suffix: &str) -> Result<String, Error> {
        Ok(format!("{}.{suffix}", self.architecture()?))
    }

    /// One number per layer: an array of exactly `n` numbers (`u32`, `i32` or `bool`), or one `u32` for all layers, as
    /// `get_key_or_arr` reads it (`src/llama-model-loader.cpp`).
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] for an array of another length or type, or with a negative number; [`Error::WrongType`];
    /// and the errors of reading the array.
    #[doc(alias = "get_key_or_arr")]
    pub fn u32_per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>, Error> {
        match self.get(key) {
            Some(Value::Array(array)) if array.len() == n as u64 => match array.element_type() {
                ValueType::Bool => Ok(Some(array.raw_bytes()?.iter().map(|&b| (b != 0).into()).collect())),
                _ => array.to_u32s().map(Some),
            },
            Some(Value::Array(array)) => {
                let problem = format_args!("key '{key}' has {} elements, not {n}", array.len());
                Err(self.malformed(key, problem))
            }
            _ => Ok(self.u32(key)?.map(|value| vec![value; n])),
        }
    }

    fn malformed(&self, key: &str, problem: fmt::Arguments<'_>) -> Error {
        let metadata = &self.inner.metadata;
        metadata.source.malformed(metadata.offset_of(key), problem)
    }
}
