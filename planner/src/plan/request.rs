//! The request for which a plan is made.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::json;
use crate::machine::Gpu;
use crate::memory::{ContextParams, FileFacts, FlashAttention, Headroom, KvType, NotMapped, Pooling, TensorOverride};
use crate::profile::ModelProfile;

use super::{Depth, Error, KvCache, Workload};

/// For how many tokens of context the plan is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Context {
    /// 4096 tokens for each sequence ([`Request::n_seq_max`]), and up to 32,768 for all sequences together, if no layer
    /// has to leave the GPUs because of the additional tokens, and if these take at most half of each device's
    /// remaining budget. No sequence has more than the model's training context.
    ///
    /// llama.cpp's own default is the training context, or as much of it as fits. For an 8B model with 131,072 tokens,
    /// this means a cache of 16 GiB.
    #[default]
    Default,
    /// The model's training context.
    Model,
    /// Exactly this many tokens. A number above the training context is allowed, and a note of the plan mentions it.
    Tokens(u32),
    /// At least this many tokens, and up to the training context if no layer has to leave the GPUs because of the
    /// additional tokens.
    AtLeast(u32),
    /// At least 4096 tokens for each sequence, and up to the training context for each sequence, if no layer has to
    /// leave the GPUs because of the additional tokens.
    Auto,
}

impl Context {
    /// Minimum and maximum tokens of [`Context::Default`].
    const DEFAULT_TOKENS: [u32; 2] = [4096, 32_768];

    /// Whether the planner may add tokens.
    pub const fn may_grow(self) -> bool {
        matches!(self, Self::Default | Self::AtLeast(_) | Self::Auto)
    }

    /// The number of tokens for this model and one sequence; the minimum if the context [may grow](Self::may_grow).
    pub fn tokens(self, profile: &ModelProfile) -> u32 {
        let trained = profile.hparams.n_ctx_train;
        match self {
            // A training context of 0 means that the header does not state one.
            Self::Default | Self::Auto if trained == 0 => Self::DEFAULT_TOKENS[0],
            Self::Default | Self::Auto => trained.min(Self::DEFAULT_TOKENS[0]),
            Self::Model => trained,
            Self::Tokens(n) | Self::AtLeast(n) => n,
        }
    }
}

/// How far a context may grow beyond its minimum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growth {
    /// The upper limit, in tokens.
    pub(super) most: u32,
    /// The growth may take `1 / share` of each device's remaining budget.
    pub(super) share: u64,
}

/// How many layers to put on GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GpuLayers {
    /// The number of layers of the fastest plan that fits and keeps the headroom free.
    #[default]
    Auto,
    /// Like `Auto`, but at most this many layers, counted from the output layer on; 1 means only the output layer. A
    /// plain number converts to this variant.
    AtMost(u32),
    /// Exactly this many layers, counted from the output layer on. A number larger than the number of the model's
    /// layers means all layers. A request that does not fit fails instead of shrinking.
    Exactly(u32),
    /// All layers. A request that does not fit fails.
    All,
}

impl GpuLayers {
    /// The numbers of layers on GPUs that the search may choose, for a model with `layers` layers.
    pub(super) fn range(self, layers: u32) -> RangeInclusive<u32> {
        match self {
            Self::Auto => 0..=layers,
            Self::AtMost(n) => 0..=n.min(layers),
            Self::Exactly(n) => n.min(layers)..=n.min(layers),
            Self::All => layers..=layers,
        }
    }

    /// Whether the request allows only one number of layers.
    pub(super) const fn is_exact(self) -> bool {
        matches!(self, Self::Exactly(_) | Self::All)
    }
}

/// A plain number is an upper limit.
impl From<u32> for GpuLayers {
    fn from(layers: u32) -> Self {
        Self::AtMost(layers)
    }
}

/// The criterion by which the planner ranks placements that fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Policy {
    /// The placement in which the predicted time of the [`Workload`] is shortest. Layers go to the GPU that reads
    /// fastest, and experts that do not fit stay on the host.
    #[default]
    Fastest,
    /// The placement with the most layers on GPUs: the largest `n_gpu_layers` that fits, with whole layers, on as few
    /// GPUs as possible.
    MostLayers,
}

/// Where the caches of layers on GPUs are placed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KvPlace {
    /// The place that [`ContextParams::offload_kqv`] states: by default with the layer.
    #[default]
    Given,
    /// With the layer, or all caches on the host if this is faster because the GPUs then have room for more layers.
    /// With the caches on the host, each token waits for the keys and values of its whole context, so this is
    /// worthwhile only in short contexts. The times of the whole [`Workload`] are compared, prompt included.
    Auto,
}

/// Whether GPUs cache recently used experts whose weights stay on the host.
///
/// With a cache, llama.cpp computes with these experts on the GPU, in batches of up to 32 tokens, and uploads the
/// experts that are not in the cache. The cache takes memory that whole blocks could use, and every expert that is not
/// in the cache is sent over the link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MoeCache {
    /// A cache of the best size, if it makes the workload at least 1.1 times as fast.
    #[default]
    Auto,
    /// No cache: the host computes with the experts that stay there.
    Off,
    /// A cache of this many bytes over all GPUs together, if experts stay on the host.
    Bytes(u64),
}

/// Which parts of a block may stay on the host while the block is on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostParts {
    /// Experts or, in a model without experts, the feed-forward matrices. Attention, keys and values then go to the GPU
    /// first. A dense model that is partly on GPUs gains more from this in a longer context.
    ///
    /// llama.cpp's first computation can then need slightly more memory than it has reserved. The headroom covers the
    /// difference. Without headroom the load's warm-up may fail and trigger a new plan.
    #[default]
    Auto,
    /// No parts: layers stay whole.
    None,
    /// Experts. A token reads only a few of them, so if they move to the host, many bytes become free at a low cost.
    Experts,
    /// Experts and dense feed-forward matrices; attention goes to the GPU first.
    FeedForward,
}

/// The requirements of a plan. The default asks for the fastest placement that fits, with at least 4096 tokens of
/// context for each sequence and up to 32,768 if no layer has to leave the GPUs because of the additional tokens
/// ([`Context::Default`]).
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
    /// The criterion by which placements that fit are ranked.
    pub policy: Policy,
    /// Memory to leave free on GPUs.
    pub headroom: Headroom,
    /// Allowed types for the keys and values.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub kv_cache: KvCache,
    /// Where caches may lie: with the layer or on the host.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub kv_place: KvPlace,
    /// Which parts of a block may stay on the host.
    pub host_parts: HostParts,
    /// Whether GPUs cache experts whose weights stay on the host.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub moe_cache: MoeCache,
    /// The largest ubatch, in tokens, that the planner may choose to make the plan faster. The planner doubles
    /// `params.n_ubatch` up to this value and `params.n_batch`. `None` keeps `params.n_ubatch`.
    #[serde(default)]
    pub max_ubatch: Option<u32>,
    /// The smallest ubatch, in tokens, that the planner may choose. The planner halves `params.n_ubatch` down to this
    /// value if that makes the plan faster or lets the model fit. `None` keeps `params.n_ubatch`.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub min_ubatch: Option<u32>,
    /// The prompt and reply whose time the plan minimises. `None` means [`Workload::typical`], a conversation that
    /// grows to the whole context.
    #[serde(default)]
    pub workload: Option<Workload>,
    /// The depths for which the plan is made, in live tokens. With [`Depth::Fixed`], the workload's reply is moved to
    /// this depth.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub depth: Depth,
    /// Context depths, in tokens, at which the plan predicts its speed. If this is empty, the depths are near the
    /// beginning, in the middle, and at the end of the context.
    #[serde(default)]
    pub at: Vec<u32>,
    /// How many tokens each sequence may draft for speculative decoding. They are computed together with the sequence's
    /// last token. The context reserves an output for each of these tokens, and the logits of an output take memory. 0
    /// means no drafts; for a model [with a block that predicts further tokens](ModelProfile::with_mtp), 0 means 3
    /// drafts.
    #[serde(default)]
    pub draft_max: u32,
    /// Whether weights that do not fit in the host's memory may be read from disk again for every token.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub allow_paging: bool,
    /// Bytes of host memory to keep free for the prompt store, which keeps computed prompts for later requests.
    #[serde(default, skip_serializing_if = "json::is_default")]
    pub prompt_store: u64,
    /// Weights to place apart from their layer, as llama.cpp's `--override-tensor` and `--n-cpu-moe` do. The first
    /// pattern that matches a weight's name decides. GPUs are numbered in the machine's order.
    ///
    /// Overrides or a [`tensor_split`](Self::tensor_split) fix the placement: the planner then chooses only the number
    /// of layers, and only if [`gpu_layers`](Self::gpu_layers) does not fix it. If this list is empty, the planner
    /// chooses the placement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<TensorOverride>,
    /// Proportions in which the machine's GPUs share the layers, in the machine's order; missing entries are 0. If this
    /// list is empty, the planner chooses; but if there are overrides, the layers are split by the free bytes, as in
    /// llama.cpp.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensor_split: Vec<f32>,
    /// All other parameters, with llama.cpp's names and defaults. An `n_ctx` of 0 defers to `context`. Any other
    /// `n_ctx` counts as [`Context::Tokens`], and is an error if `context` is set to anything else.
    pub params: ContextParams,
}

json::compiled_here!(Request);

impl Default for Request {
    fn default() -> Self {
        Self::new()
    }
}

impl Request {
    /// Larger ubatches do not speed up prompts (docs/speed-model.md), and compute buffers grow with them.
    const MAX_UBATCH: u32 = 2048;

    /// The default request.
    pub fn new() -> Self {
        Self {
            context: Context::Default,
            gpu_layers: GpuLayers::Auto,
            policy: Policy::Fastest,
            headroom: Headroom::Default,
            kv_cache: KvCache::Given,
            kv_place: KvPlace::Given,
            host_parts: HostParts::Auto,
            moe_cache: MoeCache::Auto,
            max_ubatch: Some(Self::MAX_UBATCH),
            min_ubatch: None,
            workload: None,
            depth: Depth::Follow,
            at: Vec::new(),
            draft_max: 0,
            allow_paging: false,
            prompt_store: 0,
            overrides: Vec::new(),
            tensor_split: Vec::new(),
            params: ContextParams { n_ctx: 0, ..ContextParams::default() },
        }
    }

    /// Sets the tokens of context, or their range.
    pub fn context(mut self, tokens: Context) -> Self {
        self.context = tokens;
        self
    }

    /// Sets the criterion by which placements that fit are ranked.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the allowed types for the keys and values.
    pub fn kv_cache(mut self, types: KvCache) -> Self {
        self.kv_cache = types;
        self
    }

    /// Sets where caches may lie.
    pub fn kv_place(mut self, place: KvPlace) -> Self {
        self.kv_place = place;
        self
    }

    /// Sets which parts of a block may stay on the host.
    pub fn host_parts(mut self, parts: HostParts) -> Self {
        self.host_parts = parts;
        self
    }

    /// Sets whether GPUs cache experts whose weights stay on the host (default: [`MoeCache::Auto`]).
    #[doc(alias = "moe_cache_size")]
    pub fn moe_cache(mut self, cache: MoeCache) -> Self {
        self.moe_cache = cache;
        self
    }

    /// Sets the largest ubatch that the planner may choose, in tokens. The default is 2048;
    /// [`n_ubatch`](Self::n_ubatch) fixes the ubatch instead.
    pub fn max_ubatch(mut self, tokens: u32) -> Self {
        self.max_ubatch = Some(tokens);
        self
    }

    /// Sets the smallest ubatch that the planner may choose, to make the plan faster or to let the model fit.
    pub fn min_ubatch(mut self, tokens: u32) -> Self {
        self.min_ubatch = Some(tokens);
        self
    }

    /// Sets the prompt and reply whose time the plan minimises.
    pub fn workload(mut self, workload: Workload) -> Self {
        self.workload = Some(workload);
        self
    }

    /// Sets the depths for which the plan is made (default: [`Depth::Follow`]).
    pub fn depth(mut self, depth: Depth) -> Self {
        self.depth = depth;
        self
    }

    /// Sets the memory to leave free on GPUs.
    pub fn headroom(mut self, headroom: Headroom) -> Self {
        self.headroom = headroom;
        self
    }

    /// Sets whether a layer's cache lies on the layer's device (llama.cpp's default: `true`) or on the host.
    pub fn offload_kqv(mut self, offload: bool) -> Self {
        self.params.offload_kqv = offload;
        self
    }

    /// Sets whether layers with a sliding window keep the whole context. The default is `false`, as in llama.cpp's
    /// programs.
    pub fn swa_full(mut self, full: bool) -> Self {
        self.params.swa_full = full;
        self
    }

    /// Sets the number of sequences, and the tokens of context for each.
    pub fn parallel(mut self, sequences: u32, tokens_each: u32) -> Self {
        self.params.n_seq_max = sequences;
        self.context = Context::Tokens(sequences.saturating_mul(tokens_each));
        self
    }

    /// Sets whether all sequences share one cache (`true`) or each sequence has a part of it (`false`).
    pub fn kv_unified(mut self, unified: bool) -> Self {
        self.params.kv_unified = unified;
        self
    }

    /// Sets whether a GPU computes long prompts with weights that lie on the host (llama.cpp: `true`).
    pub fn op_offload(mut self, offload: bool) -> Self {
        self.params.op_offload = offload;
        self
    }

    /// Sets whether the file is mapped (`true`, llama.cpp's default) or read. It is mapped only if every device can use
    /// a mapped file.
    pub fn mmap(mut self, map: bool) -> Self {
        self.params.mmap = map;
        self
    }

    /// Sets whether the CPU may rearrange weights for its instruction set (llama.cpp: `true`).
    pub fn repack(mut self, repack: bool) -> Self {
        self.params.repack = repack;
        self
    }

    /// Sets the tokens that one call may submit (llama.cpp's default: 2048).
    pub fn n_batch(mut self, tokens: u32) -> Self {
        self.params.n_batch = tokens;
        self
    }

    /// Sets the number of sequences that the context holds at once (default: 1). By default each of them has at least
    /// 4096 tokens of context. A stated number of tokens ([`n_ctx`](Self::n_ctx)) is shared by all sequences.
    pub fn n_seq_max(mut self, sequences: u32) -> Self {
        self.params.n_seq_max = sequences;
        self
    }

    /// Sets how many tokens of a batch may request logits. The default is 1, which is enough to generate; 0 means all
    /// tokens, llama.cpp's default.
    pub fn n_outputs_max(mut self, rows: u32) -> Self {
        self.params.n_outputs_max = rows;
        self
    }

    /// Sets how many tokens each sequence may draft at once (default: 0).
    pub fn draft_max(mut self, tokens: u32) -> Self {
        self.draft_max = tokens;
        self
    }

    /// Sets whether a model that does not fit in the GPUs and the host together may be planned with paging. The default
    /// is `false`: such a model is an error.
    ///
    /// A model that fits is planned as usual. For a larger model, the plan maps the file and does not rearrange the
    /// host's weights (`mmap` on, `repack` off). The system then drops pages that do not fit and reads them from disk
    /// again; [`Plan::paging`](super::Plan::paging) predicts the cost. Cache, compute buffers and adapters must fit in
    /// memory. Such a plan leaves out GPUs whose backend cannot use a mapped file
    /// ([`NotMapped`](crate::memory::NotMapped)).
    pub fn allow_paging(mut self, allow: bool) -> Self {
        self.allow_paging = allow;
        self
    }

    /// Sets whether attention is fused. `Auto` fuses it on devices that can.
    pub fn flash_attn(mut self, flash_attn: FlashAttention) -> Self {
        self.params.flash_attn = flash_attn;
        self
    }

    /// Sets the tokens of context to exactly `tokens`: [`Context::Tokens`].
    #[doc(alias = "ctx_size")]
    #[doc(alias = "num_ctx")]
    pub fn n_ctx(mut self, tokens: u32) -> Self {
        self.context = Context::Tokens(tokens);
        self
    }

    /// Sets the layers on GPUs. A plain number is an [upper limit](GpuLayers::AtMost).
    pub fn n_gpu_layers(mut self, layers: impl Into<GpuLayers>) -> Self {
        self.gpu_layers = layers.into();
        self
    }

    /// Sets the context depths at which the plan predicts its speed, in tokens.
    pub fn at(mut self, depths: impl Into<Vec<u32>>) -> Self {
        self.at = depths.into();
        self
    }

    /// Sets the weights to place apart from their layer.
    pub fn overrides(mut self, overrides: impl Into<Vec<TensorOverride>>) -> Self {
        self.overrides = overrides.into();
        self
    }

    /// Sets the proportions in which GPUs share the layers.
    pub fn tensor_split(mut self, proportions: impl Into<Vec<f32>>) -> Self {
        self.tensor_split = proportions.into();
        self
    }

    /// Sets the type of the keys (llama.cpp's default: `F16`).
    pub fn type_k(mut self, keys: KvType) -> Self {
        self.params.type_k = keys;
        self
    }

    /// Sets the type of the values (llama.cpp's default: `F16`).
    pub fn type_v(mut self, values: KvType) -> Self {
        self.params.type_v = values;
        self
    }

    /// Sets the types of keys and values together.
    pub fn kv_types(mut self, keys: KvType, values: KvType) -> Self {
        self.params.type_k = keys;
        self.params.type_v = values;
        self
    }

    /// Sets the ubatch: the tokens of one computation (llama.cpp's default: 512). The planner keeps this value.
    pub fn n_ubatch(mut self, tokens: u32) -> Self {
        self.params.n_ubatch = tokens;
        self.max_ubatch = None;
        self.min_ubatch = None;
        self
    }

    /// The types that the planner may choose for the keys or the values of this model, the widest first.
    pub fn kv_types_of(&self, profile: &ModelProfile) -> Vec<KvType> {
        let choices = self.kv_cache.choices(profile, &self.params);
        let mut all: Vec<KvType> = choices.iter().flat_map(|params| [params.type_k, params.type_v]).collect();
        all.dedup();
        all
    }

    /// Requests a context that embeds texts instead of generating. `pooling` determines how the vectors of a text's
    /// tokens are combined.
    ///
    /// One computation consists of whole texts, so the batch, the ubatch and the outputs are as long as the context,
    /// rounded up to a multiple of the number of texts. The default context is 2048 tokens, or the training context if
    /// that is shorter.
    ///
    /// Up to 16 texts share a computation. If [`n_seq_max`](Self::n_seq_max) is set before, it can raise this number;
    /// if it is set afterwards, it can also lower the number. Only llama.cpp knows the memory of a context for
    /// embeddings, so its plan needs a [probe](super::Planner::plan_probed) and keeps layers whole.
    pub const fn embeddings(mut self, pooling: Pooling) -> Self {
        const TEXTS: u32 = 16;
        self.params.embeddings = Some(pooling);
        if self.params.n_seq_max < TEXTS {
            self.params.n_seq_max = TEXTS;
        }
        self
    }

    /// The workload whose time the plan minimises.
    pub(super) fn work(&self, profile: &ModelProfile) -> Workload {
        let workload = self.workload.unwrap_or_else(|| Workload::typical(self.tokens(profile)));
        match self.depth {
            Depth::Fixed(depth) => workload.at_depth(depth),
            Depth::Follow | Depth::All => workload,
        }
    }

    /// The single depth that the request states, if it does.
    pub(super) const fn fixed_depth(&self) -> Option<u32> {
        match self.depth {
            Depth::Fixed(depth) => Some(depth),
            Depth::Follow | Depth::All => None,
        }
    }

    /// The depths at which the plan predicts its speed in a context of `n_ctx` tokens, ascending.
    pub(super) fn depths(&self, n_ctx: u32) -> Vec<u32> {
        let mut depths = match self.at.as_slice() {
            [] => Self::whole_depths(n_ctx).to_vec(),
            at => at.to_vec(),
        };
        depths.sort_unstable();
        depths.dedup();
        depths
    }

    /// Depths near the beginning, in the middle, and at the end of the context.
    pub(super) fn whole_depths(n_ctx: u32) -> [u32; 3] {
        const BEGINNING: u32 = 64;
        [BEGINNING.min(n_ctx / 4), n_ctx / 2, n_ctx]
    }

    /// The number of tokens that each sequence may draft at once: the request's number, or llama.cpp's default for a
    /// model with blocks that predict further tokens (common.h, `common_params_speculative_draft`).
    pub(super) fn drafts(&self, profile: &ModelProfile) -> u32 {
        const BY_HEADS: u32 = 3;
        match self.draft_max {
            0 if profile.predicts() => BY_HEADS,
            stated => stated,
        }
    }

    /// If the request allows paging and these GPUs can use a mapped file, the bytes of the host's weights that are not
    /// in a mapped file.
    pub(super) fn unmapped_if_paging(&self, profile: &ModelProfile, gpus: &[&Gpu]) -> Option<u64> {
        let may =
            self.allow_paging && self.params.mmap && NotMapped::check(FileFacts::from_profile(profile), gpus).is_none();
        may.then(|| profile.adapters.bytes())
    }

    /// The requested context, from `context` or `params.n_ctx`.
    pub(super) fn asked_context(&self) -> Result<Context, Error> {
        match (self.context, self.params.n_ctx) {
            (context, 0) => Ok(context),
            (Context::Default, n_ctx) => Ok(Context::Tokens(n_ctx)),
            (Context::Tokens(tokens), n_ctx) if tokens == n_ctx => Ok(self.context),
            (context, n_ctx) => Err(Error::TwoContexts { context, n_ctx }),
        }
    }

    /// The requested cache of experts, from `moe_cache` or `params.moe_cache_size`.
    pub(super) const fn asked_moe_cache(&self) -> MoeCache {
        match (self.moe_cache, self.params.moe_cache_size) {
            (MoeCache::Auto, bytes @ 1..) => MoeCache::Bytes(bytes),
            (asked, _) => asked,
        }
    }

    /// Whether the context may grow beyond the requested tokens. A context that embeds never grows.
    pub(super) fn may_grow(&self) -> bool {
        !self.embeds() && self.asked_context().is_ok_and(Context::may_grow)
    }

    /// The same request, with a context that stays at its minimum.
    pub fn without_growth(mut self, profile: &ModelProfile) -> Self {
        if self.may_grow() {
            self.context = Context::Tokens(self.tokens(profile));
        }
        self
    }

    /// The same request with at least `tokens` tokens of context, if the context may grow.
    pub fn with_room_for(mut self, tokens: u32) -> Self {
        if self.may_grow() {
            self.context = Context::AtLeast(tokens);
        }
        self
    }

    /// How far this model's context may grow; `None` if it may not grow.
    pub(super) fn growth(&self, profile: &ModelProfile) -> Option<Growth> {
        let trained = profile.hparams.n_ctx_train.saturating_mul(self.default_sequences());
        self.may_grow().then(|| match self.context {
            Context::Default => Growth { most: trained.min(Context::DEFAULT_TOKENS[1]), share: 2 },
            _ => Growth { most: trained, share: 1 },
        })
    }

    /// The factor for the default context: the number of sequences, or 1 if a number of tokens was stated, which all
    /// sequences share.
    fn default_sequences(&self) -> u32 {
        match self.asked_context().unwrap_or(self.context) {
            Context::Default | Context::Auto => self.params.n_seq_max.max(1),
            _ => 1,
        }
    }

    /// Whether the context embeds texts.
    pub(crate) const fn embeds(&self) -> bool {
        self.params.embeddings.is_some()
    }

    /// The minimum tokens of context for this model.
    pub(super) fn tokens(&self, profile: &ModelProfile) -> u32 {
        /// The default context of llama-embedding.
        const MAX_TEXT_TOKENS: u32 = 2048;
        let context = self.asked_context().unwrap_or(self.context);
        let tokens = context.tokens(profile);
        match context {
            Context::Default | Context::Auto if self.embeds() => tokens.min(MAX_TEXT_TOKENS),
            // The context must hold the workload and the requested depths.
            _ if context.may_grow() => {
                let work = self.workload.iter().map(Workload::tokens);
                let asked = work.chain(self.at.iter().copied()).chain(self.fixed_depth()).max().unwrap_or(0);
                tokens.max(asked.min(profile.hparams.n_ctx_train)).saturating_mul(self.default_sequences())
            }
            _ => tokens,
        }
    }
}
