//! Typed access to the metadata: the value of a key if it is there, an error if it is of another type.
//!
//! The types must match exactly, because llama.cpp's do (`src/llama-model-loader.cpp`, `GGUFMeta::GKV::get_kv`): a file
//! that keeps a block count as `u64` does not load there, so a plan for it would be of no use. [`Header::uint`] is the
//! lenient exception.

use super::array::Array;
use super::error::Error;
use super::header::Header;
use super::value::{Value, ValueType};

impl Header {
    /// `general.architecture`, which is the prefix of the architecture's own keys: `llama`, `qwen3moe`, `gemma3`.
    ///
    /// # Errors
    ///
    /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::NotUtf8`].
    #[doc(alias = "general.architecture")]
    pub fn architecture(&self) -> Result<&str, Error> {
        let key = "general.architecture";
        self.str(key)?.ok_or_else(|| Error::MissingKey {
            path: self.path().to_owned(),
            key: key.to_owned(),
        })
    }

    /// `general.name`, if there is one and it is text.
    #[doc(alias = "general.name")]
    pub fn name(&self) -> Option<&str> {
        self.get("general.name")?.as_str()
    }

    /// The value of a key of type `u32`, or `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is of any other type, also an integer one.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.typed(key, ValueType::U32, |value| match value {
            Value::U32(v) => Some(v),
            _ => None,
        })
    }

    /// The value of a key of type `f32`, or `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, ValueType::F32, |value| match value {
            Value::F32(v) => Some(v),
            _ => None,
        })
    }

    /// The value of a key of type `bool`, or `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, ValueType::Bool, |value| match value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// The value of a key of type string, up to its first NUL byte, or `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`]; [`Error::NotUtf8`]; [`Error::TooLong`] if it was left in the file ([`Value::LongText`]).
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        let (path, what) = (
            || self.path().to_owned(),
            || format!("the value of key '{key}'"),
        );
        let at = || self.inner.metadata.offset_of(key).unwrap_or_default();
        match self.get(key) {
            Some(Value::Bytes(bytes)) => Err(Error::NotUtf8 {
                path: path(),
                at: at(),
                what: what(),
                text: bytes.escape_ascii().to_string(),
            }),
            Some(Value::LongText(text)) => Err(Error::TooLong {
                path: path(),
                at: at(),
                what: what(),
                length: text.len(),
                limit: super::metadata::MAX_KEPT_STRING,
            }),
            _ => self.typed(key, ValueType::Str, |value| value.as_str()),
        }
    }

    /// The array of a key, or `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is no array.
    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>, Error> {
        self.typed(key, ValueType::Array, |value| value.as_array())
    }

    /// The value of a key of any integer type that is not negative, or `None` if there is no such key.
    ///
    /// For showing what a file says; where llama.cpp asks for a `u32`, so should a plan.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if it is no integer, [`Error::OutOfRange`] if it is negative.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, Error> {
        let negative = match self.get(key) {
            Some(Value::I8(v)) => i64::from(v),
            Some(Value::I16(v)) => i64::from(v),
            Some(Value::I32(v)) => i64::from(v),
            Some(Value::I64(v)) => v,
            _ => 0,
        };
        if negative < 0 {
            return Err(Error::OutOfRange {
                path: self.path().to_owned(),
                what: format!("key '{key}'"),
                value: negative.to_string(),
                wanted: "a number >= 0",
            });
        }
        self.typed(key, ValueType::U64, |value| value.as_uint())
    }

    /// The architecture's key with this suffix: `llama.block_count` for `block_count`.
    ///
    /// # Errors
    ///
    /// Those of [`architecture`](Self::architecture).
    pub fn arch_key(&self, suffix: &str) -> Result<String, Error> {
        Ok(format!("{}.{suffix}", self.architecture()?))
    }

    /// [`get`](Self::get) of the architecture's key with this suffix.
    ///
    /// # Errors
    ///
    /// Those of [`architecture`](Self::architecture).
    pub fn arch_get(&self, suffix: &str) -> Result<Option<Value<'_>>, Error> {
        Ok(self.get(&self.arch_key(suffix)?))
    }

    /// [`u32`](Self::u32) of the architecture's key with this suffix: `arch_u32("block_count")`.
    ///
    /// # Errors
    ///
    /// Those of [`architecture`](Self::architecture) and [`u32`](Self::u32).
    pub fn arch_u32(&self, suffix: &str) -> Result<Option<u32>, Error> {
        self.u32(&self.arch_key(suffix)?)
    }

    /// [`f32`](Self::f32) of the architecture's key with this suffix.
    ///
    /// # Errors
    ///
    /// Those of [`architecture`](Self::architecture) and [`f32`](Self::f32).
    pub fn arch_f32(&self, suffix: &str) -> Result<Option<f32>, Error> {
        self.f32(&self.arch_key(suffix)?)
    }

    /// [`bool`](Self::bool) of the architecture's key with this suffix.
    ///
    /// # Errors
    ///
    /// Those of [`architecture`](Self::architecture) and [`bool`](Self::bool).
    pub fn arch_bool(&self, suffix: &str) -> Result<Option<bool>, Error> {
        self.bool(&self.arch_key(suffix)?)
    }

    /// [`str`](Self::str) of the architecture's key with this suffix.
    ///
    /// # Errors
    ///
    /// Those of [`architecture`](Self::architecture) and [`str`](Self::str).
    pub fn arch_str(&self, suffix: &str) -> Result<Option<&str>, Error> {
        self.str(&self.arch_key(suffix)?)
    }

    /// [`array`](Self::array) of the architecture's key with this suffix.
    ///
    /// # Errors
    ///
    /// Those of [`architecture`](Self::architecture) and [`array`](Self::array).
    pub fn arch_array(&self, suffix: &str) -> Result<Option<Array<'_>>, Error> {
        self.array(&self.arch_key(suffix)?)
    }

    /// One number per layer from the architecture's key with this suffix: an array of exactly `n` numbers, or
    /// one number for all.
    ///
    /// The array's elements may be `u32`, `i32` or `bool`, the single number must be a `u32`: `get_key_or_arr` in
    /// `src/llama-model-loader.cpp`. There, too, an array of another length than `n` is an error.
    ///
    /// # Errors
    ///
    /// [`Error::ArrayLength`], [`Error::ElementType`], [`Error::WrongType`], [`Error::OutOfRange`] for a negative
    /// number, those of [`architecture`](Self::architecture), and those of reading the array.
    #[doc(alias = "get_key_or_arr")]
    pub fn arch_u32_per_layer(&self, suffix: &str, n: usize) -> Result<Option<Vec<u32>>, Error> {
        let key = self.arch_key(suffix)?;
        match self.get(&key) {
            Some(Value::Array(array)) => {
                self.check_len(&key, array, n)?;
                array.to_per_layer_u32s().map(Some)
            }
            _ => Ok(self.u32(&key)?.map(|value| vec![value; n])),
        }
    }

    /// Like [`arch_u32_per_layer`](Self::arch_u32_per_layer), for `f32`.
    ///
    /// # Errors
    ///
    /// [`Error::ArrayLength`], [`Error::ElementType`], [`Error::WrongType`], those of
    /// [`architecture`](Self::architecture), and those of reading the array.
    pub fn arch_f32_per_layer(&self, suffix: &str, n: usize) -> Result<Option<Vec<f32>>, Error> {
        let key = self.arch_key(suffix)?;
        match self.get(&key) {
            Some(Value::Array(array)) => {
                self.check_len(&key, array, n)?;
                array.to_f32s().map(Some)
            }
            _ => Ok(self.f32(&key)?.map(|value| vec![value; n])),
        }
    }

    fn check_len(&self, key: &str, array: Array<'_>, n: usize) -> Result<(), Error> {
        if array.len() == n as u64 {
            return Ok(());
        }
        Err(Error::ArrayLength {
            path: self.path().to_owned(),
            key: key.to_owned(),
            wanted: n as u64,
            found: array.len(),
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: ValueType,
        pick: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match pick(value) {
            Some(picked) => Ok(Some(picked)),
            None => Err(Error::WrongType {
                path: self.path().to_owned(),
                key: key.to_owned(),
                wanted,
                found: value.ty(),
            }),
        }
    }
}
