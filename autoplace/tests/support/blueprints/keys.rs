//! The metadata of a model in the making.

use autoplace::gguf::Builder;

/// The sizes that most architectures share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dims {
    /// Blocks, prediction blocks included.
    pub(super) n_layer: u32,
    pub(super) n_nextn: u32,
    pub(super) n_embd: u32,
    pub(super) n_head: u32,
    pub(super) n_head_kv: u32,
    pub(super) n_ff: u32,
    pub(super) n_vocab: u32,
}

/// `<architecture>.*` keys, one after the other.
pub(super) struct Keys {
    arch: String,
    builder: Builder,
    /// Keys that are left out, whoever sets them.
    omitted: &'static [&'static str],
}

impl Keys {
    pub(super) fn new(arch: &str, omitted: &'static [&'static str]) -> Self {
        Self {
            omitted,
            arch: arch.to_owned(),
            builder: Builder::new(arch).str("tokenizer.ggml.model", "no_vocab"),
        }
    }

    fn edit(&mut self, with: impl FnOnce(Builder) -> Builder) -> &mut Self {
        self.builder = with(std::mem::replace(&mut self.builder, Builder::empty()));
        self
    }

    /// Sets the architecture's key of this name.
    fn set(&mut self, suffix: &str, with: impl FnOnce(Builder, &str) -> Builder) -> &mut Self {
        if self.omitted.contains(&suffix) {
            return self;
        }
        let key = format!("{}.{suffix}", self.arch);
        self.edit(|keys| with(keys, &key))
    }

    pub(super) fn u32(&mut self, suffix: &str, value: u32) -> &mut Self {
        self.set(suffix, |keys, key| keys.u32(key, value))
    }

    pub(super) fn u32s(&mut self, suffix: &str, values: &[u32]) -> &mut Self {
        self.set(suffix, |keys, key| keys.array_u32(key, values))
    }

    pub(super) fn i32s(&mut self, suffix: &str, values: &[i32]) -> &mut Self {
        self.set(suffix, |keys, key| keys.array_i32(key, values))
    }

    pub(super) fn f32(&mut self, suffix: &str, value: f32) -> &mut Self {
        self.set(suffix, |keys, key| keys.f32(key, value))
    }

    pub(super) fn f32s(&mut self, suffix: &str, values: &[f32]) -> &mut Self {
        self.set(suffix, |keys, key| keys.array_f32(key, values))
    }

    pub(super) fn bool(&mut self, suffix: &str, value: bool) -> &mut Self {
        self.set(suffix, |keys, key| keys.bool(key, value))
    }

    /// A key without the architecture's name.
    pub(super) fn plain_f32(&mut self, key: &str, value: f32) -> &mut Self {
        self.edit(|keys| keys.f32(key, value))
    }

    /// How many kinds of token there are.
    pub(super) fn token_types(&mut self, count: u32) -> &mut Self {
        self.edit(|keys| keys.u32("tokenizer.ggml.token_type_count", count))
    }

    pub(super) fn build(self) -> Builder {
        self.builder
    }
}
