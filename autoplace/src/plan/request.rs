//! What is asked of a plan.

use serde::{Deserialize, Serialize};

use crate::memory::{ContextParams, FlashAttention, Headroom, KvType};
use crate::profile::ModelProfile;

/// How many tokens of context to make room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Context {
    /// 4096 tokens, or as many as the model was trained on if those are fewer.
    ///
    /// llama.cpp's own default is the latter, which is 128k and more for today's models: 16 GiB of cache for an 8B model that
    /// nobody asked for, taken from the layers.
    #[default]
    Default,
    /// As many as the model was trained on.
    Model,
    /// So many. More than the model was trained on is allowed, and the plan says so.
    Tokens(u32),
}

impl Context {
    /// The tokens of [`Context::Default`].
    pub const DEFAULT_TOKENS: u32 = 4096;

    /// The number of tokens for this model.
    #[must_use]
    pub fn tokens(self, profile: &ModelProfile) -> u32 {
        let trained = profile.hparams.n_ctx_train;
        match self {
            // A header that says 0 says nothing.
            Self::Default if trained == 0 => Self::DEFAULT_TOKENS,
            Self::Default => trained.min(Self::DEFAULT_TOKENS),
            Self::Model => trained,
            Self::Tokens(n) => n,
        }
    }
}

/// How many layers to put on GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GpuLayers {
    /// As many as are safe.
    #[default]
    Auto,
    /// So many, the output layer counted first. More than there are means all of them. If they do not fit, that is an error
    /// and not a smaller plan: whoever names a number wants that number.
    Exactly(u32),
}

/// What is asked of a plan. The default asks for as many layers on the GPU as are safe, with room for 4096 tokens.
///
/// ```
/// use autoplace::plan::{Context, Request};
/// let request = Request::new().context(Context::Tokens(8192)).n_ubatch(1024);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// Tokens of context.
    pub context: Context,
    /// Layers on GPUs.
    pub gpu_layers: GpuLayers,
    /// What to leave free on GPUs.
    pub headroom: Headroom,
    /// Everything else, under llama.cpp's names and with its defaults. Its `n_ctx` is set by `context`.
    pub params: ContextParams,
}

impl Default for Request {
    fn default() -> Self {
        Self::new()
    }
}

impl Request {
    /// The default request.
    #[must_use]
    pub fn new() -> Self {
        Self {
            context: Context::Default,
            gpu_layers: GpuLayers::Auto,
            headroom: Headroom::Default,
            params: ContextParams::default(),
        }
    }

    /// Sets the tokens of context.
    #[must_use]
    pub const fn context(mut self, context: Context) -> Self {
        self.context = context;
        self
    }

    /// Sets the layers on GPUs.
    #[must_use]
    pub const fn gpu_layers(mut self, layers: GpuLayers) -> Self {
        self.gpu_layers = layers;
        self
    }

    /// Sets what to leave free on GPUs.
    #[must_use]
    pub const fn headroom(mut self, headroom: Headroom) -> Self {
        self.headroom = headroom;
        self
    }

    /// Sets the types of keys and values (llama.cpp: `F16` and `F16`).
    #[must_use]
    pub const fn kv_types(mut self, keys: KvType, values: KvType) -> Self {
        self.params.type_k = keys;
        self.params.type_v = values;
        self
    }

    /// Sets the tokens that one call may submit (llama.cpp: 2048).
    #[must_use]
    pub const fn n_batch(mut self, tokens: u32) -> Self {
        self.params.n_batch = tokens;
        self
    }

    /// Sets the tokens that are computed at once (llama.cpp: 512).
    #[must_use]
    pub const fn n_ubatch(mut self, tokens: u32) -> Self {
        self.params.n_ubatch = tokens;
        self
    }

    /// Sets the sequences held at once (1).
    #[must_use]
    pub const fn n_seq_max(mut self, sequences: u32) -> Self {
        self.params.n_seq_max = sequences;
        self
    }

    /// Sets the tokens of a batch whose logits may be asked for: 1, which is enough to generate; 0 is all of them, llama.cpp's
    /// default.
    #[must_use]
    pub const fn n_outputs_max(mut self, rows: u32) -> Self {
        self.params.n_outputs_max = rows;
        self
    }

    /// Sets whether attention is fused (where it can be).
    #[must_use]
    pub const fn flash_attention(mut self, flash_attn: FlashAttention) -> Self {
        self.params.flash_attn = flash_attn;
        self
    }
}
