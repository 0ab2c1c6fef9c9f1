//! The request that a plan is made for.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::json;
use crate::machine::Gpu;
use crate::memory::{ContextParams, FileFacts, FlashAttention, Headroom, KvType, NotMapped, Pooling, TensorOverride};
use crate::profile::ModelProfile;

use super::{Error, KvCache, Workload};

/// How many tokens of context to make room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Context {
    /// 4096 tokens, and more of them, up to 32,768, as far as that costs no layer and takes at most half of what would
    /// be left of each device's budget. Never more than the model was trained on.
    ///
    /// llama.cpp's own default is what the model was trained on, or what fits: 16 GiB of cache for an 8B model and
    /// 131,072 tokens.
    #[default]
    Default,
    /// As many as the model was trained on.
    Model,
    /// So many. More than the model was trained on is allowed, and the plan says so.
    Tokens(u32),
    /// So many, and more of them, up to what the model was trained on, as far as that costs no layer.
    AtLeast(u32),
    /// 4096 tokens, and more in the same way.
    Auto,
}

impl Context {
    /// The least tokens of [`Context::Default`], and the most.
    const DEFAULT_TOKENS: [u32; 2] = [4096, 32_768];

    /// Whether there may be more of them.
    pub const fn may_grow(self) -> bool {
        matches!(self, Self::Default | Self::AtLeast(_) | Self::Auto)
    }

    /// The number of tokens for this model; of what [may grow](Self::may_grow) the least.
    pub fn tokens(self, profile: &ModelProfile) -> u32 {
        let trained = profile.hparams.n_ctx_train;
        match self {
            // A header that says 0 says nothing.
            Self::Default | Self::Auto if trained == 0 => Self::DEFAULT_TOKENS[0],
            Self::Default | Self::Auto => trained.min(Self::DEFAULT_TOKENS[0]),
            Self::Model => trained,
            Self::Tokens(n) | Self::AtLeast(n) => n,
        }
    }
}

/// How much longer a context may become than it has to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growth {
    /// Tokens at most.
    pub(super) most: u32,
    /// The share of what is left of each device that it may take: `1 / share`.
    pub(super) share: u64,
}

/// How many layers to put on GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GpuLayers {
    /// As many as are safe and make it faster.
    #[default]
    Auto,
    /// The same, and so many at most, the output layer counted first: what a number is taken for.
    AtMost(u32),
    /// So many, the output layer counted first. More than there are means all of them. If they do not fit, that is an
    /// error and not a smaller plan.
    Exactly(u32),
    /// All of them. If they do not fit, that is an error.
    All,
}

impl GpuLayers {
    /// The least and the most, of so many.
    pub(super) fn range(self, layers: u32) -> RangeInclusive<u32> {
        match self {
            Self::Auto => 0..=layers,
            Self::AtMost(n) => 0..=n.min(layers),
            Self::Exactly(n) => n.min(layers)..=n.min(layers),
            Self::All => layers..=layers,
        }
    }

    /// Whether no other number will do.
    pub(super) const fn is_exact(self) -> bool {
        matches!(self, Self::Exactly(_) | Self::All)
    }
}

/// At most so many.
impl From<u32> for GpuLayers {
    fn from(layers: u32) -> Self {
        Self::AtMost(layers)
    }
}

/// What makes one safe plan better than another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Policy {
    /// More predicted tokens per second: layers go to the GPU that reads fastest, experts that find no room
    /// stay on the host.
    #[default]
    Fastest,
    /// More layers on GPUs: exactly the largest safe `n_gpu_layers`, whole layers only, on as few GPUs as take so many.
    MostLayers,
}

/// Which parts of a block may stay on the host though the block is on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostParts {
    /// Experts; of a model without experts the feed-forward matrices: attention, keys and values first. Where a dense
    /// model is on a GPU in part, this is faster the more tokens are in the context. llama.cpp's first computation can
    /// then need a little more than it reserves: that comes out of the headroom, and with none a load may find out in
    /// its warm-up and plan again.
    #[default]
    Auto,
    /// None: whole layers.
    None,
    /// Experts, of which a token reads a few: many bytes that cost little there.
    Experts,
    /// Experts, and the dense feed-forward matrices too: attention first.
    FeedForward,
}

/// The request that a plan is made for. The default asks for the fastest safe plan with room for 4096 tokens, and for
/// up to 32,768 where they cost no layer ([`Context::Default`]).
///
/// ```
/// use autoplace_planner::plan::{Context, Request};
/// let request = Request::new().context(Context::Tokens(8192)).n_ubatch(1024);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
#[must_use]
pub struct Request {
    /// Tokens of context.
    pub context: Context,
    /// Layers on GPUs.
    pub gpu_layers: GpuLayers,
    /// What makes a plan better.
    pub policy: Policy,
    /// What to leave free on GPUs.
    pub headroom: Headroom,
    /// Types of the keys and values.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub kv_cache: KvCache,
    /// Which parts of a block may stay on the host.
    pub host_parts: HostParts,
    /// The most tokens to compute at once, where more than `params.n_ubatch` make the plan faster: doubled up to this,
    /// and to `params.n_batch`. `None` leaves it as it is.
    #[serde(default)]
    pub max_ubatch: Option<u32>,
    /// What is to take the least time. `None` is [`Workload::typical`].
    #[serde(default)]
    pub workload: Option<Workload>,
    /// Depths that the plan's speed is predicted for, in tokens. Empty: a beginning, half and all of the context.
    #[serde(default)]
    pub at: Vec<u32>,
    /// Tokens of each sequence that may be drafted and computed together with its last one: speculative decoding. The
    /// context has an output for each, whose logits take memory. 0 is none, or 3 for a model [with a block that
    /// predicts](ModelProfile::with_mtp).
    #[serde(default)]
    pub draft_max: u32,
    /// Whether weights that the host's memory has no room for may be read from disk again for every token.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub allow_paging: bool,
    /// Weights that lie elsewhere than their layer, as `--override-tensor` and `--n-cpu-moe` say it: the first pattern
    /// found in a weight's name decides. GPUs count in the machine's order.
    ///
    /// Overrides, or a [`tensor_split`](Self::tensor_split), state a placement: then nothing is searched but the number
    /// of layers, where [`gpu_layers`](Self::gpu_layers) leaves it open. Empty: the plan chooses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<TensorOverride>,
    /// The proportions in which the machine's GPUs share the layers, in its order; missing ones are 0. Empty: the plan
    /// chooses, or beside `overrides` the free bytes decide, as in llama.cpp.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensor_split: Vec<f32>,
    /// Everything else, under llama.cpp's names and with its defaults. Its `n_ctx` is 0: as `context` says. Another
    /// number counts as [`Context::Tokens`], and is refused beside another context.
    pub params: ContextParams,
}

json::compiled_here!(Request);

impl Default for Request {
    fn default() -> Self {
        Self::new()
    }
}

impl Request {
    /// Of more tokens at once prompts gain no more (docs/speed-model.md), and compute buffers grow with them.
    const LARGEST_UBATCH: u32 = 2048;

    /// The default request.
    pub fn new() -> Self {
        Self {
            context: Context::Default,
            gpu_layers: GpuLayers::Auto,
            policy: Policy::Fastest,
            headroom: Headroom::Default,
            kv_cache: KvCache::Given,
            host_parts: HostParts::Auto,
            max_ubatch: Some(Self::LARGEST_UBATCH),
            workload: None,
            at: Vec::new(),
            draft_max: 0,
            allow_paging: false,
            overrides: Vec::new(),
            tensor_split: Vec::new(),
            params: ContextParams { n_ctx: 0, ..ContextParams::default() },
        }
    }

    setters! {
        /// Sets how many tokens of context there are, or how many there may be.
        context(tokens: Context) context = tokens;
        /// Sets what makes a plan better.
        policy(policy: Policy) policy = policy;
        /// Sets which types the keys and values may have.
        kv_cache(types: KvCache) kv_cache = types;
        /// Sets which parts of a block may stay on the host.
        host_parts(parts: HostParts) host_parts = parts;
        /// Sets the most tokens that may be computed at once where that makes the plan faster (2048, unless
        /// [`n_ubatch`](Self::n_ubatch) is set).
        max_ubatch(tokens: u32) max_ubatch = Some(tokens);
        /// Sets what is to take the least time: a prompt and its reply.
        workload(workload: Workload) workload = Some(workload);
        /// Sets what to leave free on GPUs.
        headroom(headroom: Headroom) headroom = headroom;
        /// Sets whether the cache of a layer lies where the layer lies, or on the host (llama.cpp: `true`).
        offload_kqv(offload: bool) params.offload_kqv = offload;
        /// Sets whether layers with a sliding window keep the whole context all the same (`false`, as llama.cpp's
        /// programs have it).
        swa_full(full: bool) params.swa_full = full;
        /// Sets the tokens that one call may submit (llama.cpp: 2048).
        n_batch(tokens: u32) params.n_batch = tokens;
        /// Sets the sequences held at once (1).
        n_seq_max(sequences: u32) params.n_seq_max = sequences;
        /// Sets the tokens of a batch whose logits may be asked for: 1, which is enough to generate; 0 is all of them,
        /// llama.cpp's default.
        n_outputs_max(rows: u32) params.n_outputs_max = rows;
        /// Sets the tokens of each sequence that may be drafted at once (0).
        draft_max(tokens: u32) draft_max = tokens;
        /// Sets whether a model may be planned that fits nowhere, GPUs and host together (`false`: that is an error).
        ///
        /// Where it fits nothing changes. Where it does not, its file is mapped and the host's weights are not
        /// rearranged (`mmap` on, `repack` off): the system drops pages that it has no room for, and reads them from
        /// disk again, which [`Plan::paging`](super::Plan::paging) counts. Cache, compute buffers and adapters must
        /// fit. GPUs beside which no file is mapped ([`NotMapped`](crate::memory::NotMapped)) have no part in such a
        /// plan.
        allow_paging(allow: bool) allow_paging = allow;
        /// Sets whether attention is fused (where it can be).
        flash_attention(flash_attn: FlashAttention) params.flash_attn = flash_attn;
        /// Sets the tokens of context: [`Context::Tokens`].
        n_ctx(tokens: u32) context = Context::Tokens(tokens);
        /// Sets the layers on GPUs: a number is [at most](GpuLayers::AtMost) so many.
        n_gpu_layers(layers: impl Into<GpuLayers>) gpu_layers = layers.into();
        /// Sets the depths that the plan's speed is predicted for, in tokens.
        at(depths: impl Into<Vec<u32>>) at = depths.into();
        /// States which weights lie elsewhere than their layer.
        overrides(overrides: impl Into<Vec<TensorOverride>>) overrides = overrides.into();
        /// States the proportions in which GPUs share the layers.
        tensor_split(proportions: impl Into<Vec<f32>>) tensor_split = proportions.into();
        /// Sets the types of keys and values (llama.cpp: `F16` and `F16`).
        kv_types(keys: KvType, values: KvType) params.type_k = keys, params.type_v = values;
        /// Sets the tokens that are computed at once (llama.cpp: 512), and no others.
        n_ubatch(tokens: u32) params.n_ubatch = tokens, max_ubatch = None;
    }

    /// The types that keys or values of this model may get, the widest first.
    pub fn kv_types_of(&self, profile: &ModelProfile) -> Vec<KvType> {
        let choices = self.kv_cache.choices(profile, &self.params);
        let mut all: Vec<KvType> = choices.iter().flat_map(|params| [params.type_k, params.type_v]).collect();
        all.dedup();
        all
    }

    /// Asks for a context that embeds texts instead of generating, their tokens' vectors combined so.
    ///
    /// Each computation is of whole texts. So the context is the longest text that can be embedded: a batch, a
    /// computation and its outputs are of as many tokens (rounded up to as many for each text), and by default 2048, or
    /// what the model was trained on if that is less. Up to 16 texts share one, unless [`n_seq_max`](Self::n_seq_max)
    /// is set to more, or afterwards to less. Only llama.cpp knows what it takes: such a plan is a
    /// [probed](super::Planner::plan_probed) one, of whole layers.
    pub const fn embeddings(mut self, pooling: Pooling) -> Self {
        const TEXTS: u32 = 16;
        self.params.embeddings = Some(pooling);
        if self.params.n_seq_max < TEXTS {
            self.params.n_seq_max = TEXTS;
        }
        self
    }

    /// What is to take the least time.
    pub(super) fn work(&self, profile: &ModelProfile) -> Workload {
        let n_ctx = self.tokens(profile);
        self.workload.unwrap_or_else(|| Workload::typical(n_ctx))
    }

    /// The depths that the plan's speed is predicted for in a context of so many tokens, rising.
    pub(super) fn depths(&self, n_ctx: u32) -> Vec<u32> {
        const BEGINNING: u32 = 64;
        let mut depths = match self.at.as_slice() {
            [] => vec![BEGINNING.min(n_ctx / 4), n_ctx / 2, n_ctx],
            at => at.to_vec(),
        };
        depths.sort_unstable();
        depths.dedup();
        depths
    }

    /// Tokens of each sequence that may be drafted at once: as stated; else, with blocks that predict further tokens,
    /// as many as llama.cpp's own programs have them draft (common.h, `common_params_speculative_draft`).
    pub(super) fn drafts(&self, profile: &ModelProfile) -> u32 {
        const BY_HEADS: u32 = 3;
        match self.draft_max {
            0 if profile.predicts() => BY_HEADS,
            stated => stated,
        }
    }

    /// Bytes of the host's weights that are in no mapped file, where the others may be paged beside these GPUs.
    pub(super) fn unmapped_if_paging(&self, profile: &ModelProfile, gpus: &[&Gpu]) -> Option<u64> {
        let may = self.allow_paging && self.params.mmap && NotMapped::of(FileFacts::of(profile), gpus).is_none();
        may.then(|| profile.adapters.bytes())
    }

    /// How many tokens of context are asked for, in whichever way.
    pub(super) fn asked_context(&self) -> Result<Context, Error> {
        match (self.context, self.params.n_ctx) {
            (context, 0) => Ok(context),
            (Context::Default, n_ctx) => Ok(Context::Tokens(n_ctx)),
            (Context::Tokens(tokens), n_ctx) if tokens == n_ctx => Ok(self.context),
            (context, n_ctx) => Err(Error::TwoContexts { context, n_ctx }),
        }
    }

    /// Whether there may be more tokens of context than are asked for: not where it is to embed.
    pub(super) fn may_grow(&self) -> bool {
        !self.embeds() && self.asked_context().is_ok_and(Context::may_grow)
    }

    /// The same with the least context, where it may grow.
    pub fn without_growth(mut self, profile: &ModelProfile) -> Self {
        if self.may_grow() {
            self.context = Context::Tokens(self.tokens(profile));
        }
        self
    }

    /// The same with at least so many tokens of context, where it may grow.
    pub fn with_room_for(mut self, tokens: u32) -> Self {
        if self.may_grow() {
            self.context = Context::AtLeast(tokens);
        }
        self
    }

    /// How the context of this model may grow, if it may.
    pub(super) fn growth(&self, profile: &ModelProfile) -> Option<Growth> {
        let trained = profile.hparams.n_ctx_train;
        self.may_grow().then(|| match self.context {
            Context::Default => Growth { most: trained.min(Context::DEFAULT_TOKENS[1]), share: 2 },
            _ => Growth { most: trained, share: 1 },
        })
    }

    /// Whether the context is to embed.
    pub(crate) const fn embeds(&self) -> bool {
        self.params.embeddings.is_some()
    }

    /// The context's tokens for this model.
    pub(super) fn tokens(&self, profile: &ModelProfile) -> u32 {
        /// llama-embedding's.
        const LONGEST_TEXT: u32 = 2048;
        let context = self.asked_context().unwrap_or(self.context);
        let tokens = context.tokens(profile);
        match context {
            Context::Default | Context::Auto if self.embeds() => tokens.min(LONGEST_TEXT),
            // What is to be done in it is room that is asked for.
            _ if context.may_grow() => {
                let work = self.workload.iter().map(Workload::tokens);
                let asked = work.chain(self.at.iter().copied()).max().unwrap_or(0);
                tokens.max(asked.min(profile.hparams.n_ctx_train))
            }
            _ => tokens,
        }
    }
}
