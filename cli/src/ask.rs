//! The request for a plan: the arguments that all verbs have which plan or load a model.

use autoplace::machine::ParseError;
use autoplace::memory::{FlashAttention, Headroom, KvType};
use autoplace::plan::{Context, Depth, GpuLayers, HostParts, KvCache, KvPlace, MoeCache, Policy, Request, Workload};

use crate::llama_cpp::{is_no, is_yes};
use crate::sizes;
use crate::values::{MAX_TOKENS, gpu_layers, one_of};

/// The request for a plan.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// Tokens of context. `8192+` is at least 8192, and more if that moves no layer to the host; `auto` is `4096+`; 0
    /// is the model's training context [default: at least 4096, and up to 32768 if that moves no layer to the host and
    /// leaves half of the remaining memory free]
    #[arg(short, long, aliases = ["ctx-size", "context", "context-length"], value_name = "N|N+|auto", value_parser = context)]
    pub(crate) ctx: Option<Context>,
    /// Type of the keys and values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl; `auto` is f16, or q8_0 if the
    /// gain in speed is worth the quality; `auto:q4_0` may also choose q4_0 [default: f16]
    #[arg(long, value_name = "TYPE|auto", value_parser = kv)]
    pub(crate) kv: Option<Kv>,
    /// Type of the keys alone
    #[arg(long, value_name = "TYPE", conflicts_with = "kv")]
    pub(crate) cache_type_k: Option<KvType>,
    /// Type of the values alone
    #[arg(long, value_name = "TYPE", conflicts_with = "kv")]
    pub(crate) cache_type_v: Option<KvType>,
    /// Keeps keys and values with their layers (`on`), on the host (`off`), or on the host if that is faster (`auto`)
    /// [default: on]
    #[arg(long, value_name = "on|off|auto", value_parser = one_of(KV_OFFLOAD), hide_possible_values = true)]
    pub(crate) kv_offload: Option<KvOffload>,
    /// Keeps the whole context in the cache of layers with a sliding window too
    #[arg(long)]
    pub(crate) swa_full: bool,
    /// Tokens computed at once. `auto` chooses 64 to 2048: fewer than 512 if the freed memory makes the plan faster, or
    /// lets the model fit [default: 512, or up to 2048 if that is faster]
    #[arg(long, alias = "ubatch-size", value_name = "N|auto", value_parser = ubatch)]
    pub(crate) ubatch: Option<Ubatch>,
    /// Maximum number of tokens in one call of llama.cpp [default: 2048]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TOKENS)))]
    pub(crate) batch_size: Option<u32>,
    /// The aim of the plan: more tokens per second, or more whole layers on GPUs
    #[arg(long, value_name = "fastest|most-layers", value_parser = one_of(POLICY), default_value = "fastest", hide_possible_values = true)]
    pub(crate) policy: Policy,
    /// The parts of a GPU's block that may stay on the host: none, experts, or experts and feed-forward matrices;
    /// `auto` is experts, or feed-forward matrices for a model without experts
    #[arg(long, value_name = "auto|none|experts|ffn", value_parser = one_of(HOST_PARTS), default_value = "auto", hide_possible_values = true)]
    pub(crate) host_parts: HostParts,
    /// Size, over all GPUs, of a cache for recently used experts that stay on the host (`4GiB`). `auto` chooses the
    /// best size, or no cache unless one makes the workload a tenth faster [default: auto]
    #[arg(long, value_name = "auto|off|SIZE", value_parser = moe_cache)]
    pub(crate) moe_cache: Option<MoeCache>,
    /// The workload that should take the least time: tokens of a prompt, and tokens of its reply [default: 1024+256 in
    /// a conversation that grows to the whole context]
    #[arg(long, value_name = "PROMPT+REPLY", value_parser = workload)]
    pub(crate) workload: Option<Workload>,
    /// Number of live tokens for which the placement is made. `follow`: if one placement is faster for short texts and
    /// another for long ones, and a move pays, the model moves between them; `all`: one placement for the whole
    /// conversation [default: follow]
    #[arg(long, value_name = "follow|all|TOKENS", value_parser = depth)]
    pub(crate) depth: Option<Depth>,
    /// Flash attention; `auto` uses it if every device with a layer supports it [default: auto]
    #[arg(long, value_name = "auto|on|off", value_parser = flash_attn)]
    pub(crate) flash_attn: Option<FlashAttention>,
    /// Layers on the GPU, the output layer included; an error if they do not fit [default: as many as fit safely]
    #[arg(long, aliases = ["n-gpu-layers", "gpu-layers"], value_name = "N|all|auto", value_parser = gpu_layers, allow_hyphen_values = true)]
    pub(crate) ngl: Option<GpuLayers>,
    /// Memory to leave free on a GPU: `tight`, `default`, `cautious` (15 % of the GPU's memory), a size (`600MiB`) or a
    /// share of the GPU's memory (`15%`)
    #[arg(long, value_name = "tight|default|cautious|SIZE|PERCENT", allow_hyphen_values = true, value_parser = sizes::headroom)]
    pub(crate) headroom: Option<Headroom>,
    /// Host memory for earlier prompts and answers, so that a conversation need not compute them again after other
    /// texts took its place. `auto` is half of the memory that the plan leaves free, and at most 8 GiB. The plan keeps
    /// a given size free [default: auto for `serve` of one model, otherwise off]
    #[arg(long, value_name = "SIZE|auto|off", value_parser = cache_ram)]
    pub(crate) cache_ram: Option<CacheRam>,
    /// Also accepts a model larger than all memory: weights that do not fit are read from disk again for every token
    #[arg(long)]
    pub(crate) allow_paging: bool,
}

const KV_OFFLOAD: &[(&str, KvOffload)] = &[("on", KvOffload::On), ("off", KvOffload::Off), ("auto", KvOffload::Auto)];
const POLICY: &[(&str, Policy)] = &[("fastest", Policy::Fastest), ("most-layers", Policy::MostLayers)];
const HOST_PARTS: &[(&str, HostParts)] = &[
    ("auto", HostParts::Auto),
    ("none", HostParts::None),
    ("experts", HostParts::Experts),
    ("ffn", HostParts::FeedForward),
];

impl AskArgs {
    pub(crate) fn request(&self) -> Request {
        self.over(Request::new())
    }

    /// Applies these settings to a request.
    pub(crate) fn over(&self, mut request: Request) -> Request {
        if let Some(n_batch) = self.batch_size {
            request = request.n_batch(n_batch);
        }
        match self.ubatch {
            None => {}
            Some(Ubatch::Tokens(ubatch)) => {
                // A ubatch is a part of a batch. So a larger ubatch needs a larger batch.
                let n_batch = self.batch_size.unwrap_or(Request::new().params.n_batch.max(ubatch));
                request = request.n_ubatch(ubatch).n_batch(n_batch);
            }
            Some(Ubatch::Auto) => {
                let usual = Request::new();
                request.params.n_ubatch = usual.params.n_ubatch;
                (request.max_ubatch, request.min_ubatch) = (usual.max_ubatch, Some(MIN_UBATCH));
            }
        }
        let params = &mut request.params;
        if let Some(Kv { ty, choice }) = self.kv {
            (params.type_k, params.type_v) = (ty, ty);
            request.kv_cache = choice;
        }
        params.type_k = self.cache_type_k.unwrap_or(params.type_k);
        params.type_v = self.cache_type_v.unwrap_or(params.type_v);
        if let Some(kv_offload) = self.kv_offload {
            params.offload_kqv = kv_offload != KvOffload::Off;
            request.kv_place = if kv_offload == KvOffload::Auto { KvPlace::Auto } else { KvPlace::Given };
        }
        params.flash_attn = self.flash_attn.unwrap_or(params.flash_attn);
        params.swa_full |= self.swa_full;
        request.context = self.ctx.unwrap_or(request.context);
        request.workload = self.workload;
        request.depth = self.depth.unwrap_or_default();
        request.policy = self.policy;
        request.host_parts = self.host_parts;
        request.moe_cache = self.moe_cache.unwrap_or(request.moe_cache);
        request.gpu_layers = self.ngl.unwrap_or(GpuLayers::Auto);
        request.headroom = self.headroom.unwrap_or_default();
        request.allow_paging = self.allow_paging;
        if let Some(CacheRam::Bytes(bytes)) = self.cache_ram {
            request.prompt_store = bytes;
        }
        request
    }
}

/// The value of `--kv`: a type for keys and values. For `auto`, the type with the most bits, and the types that may
/// replace it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kv {
    ty: KvType,
    choice: KvCache,
}

/// The value of `--kv-offload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvOffload {
    On,
    Off,
    Auto,
}

/// The value of `--cache-ram`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheRam {
    Off,
    Auto,
    Bytes(u64),
}

/// The value of `--ubatch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ubatch {
    Tokens(u32),
    Auto,
}

/// Minimum number of tokens that `--ubatch auto` computes at once. From 32 tokens on, a GPU computes with weights that
/// lie on the host (ggml-cuda.cu, `min_batch_size`).
const MIN_UBATCH: u32 = 64;

/// Parses `auto`, or a number of tokens.
fn ubatch(text: &str) -> Result<Ubatch, String> {
    match text.parse() {
        _ if text == "auto" => Ok(Ubatch::Auto),
        Ok(tokens) if (1..=MAX_TOKENS).contains(&tokens) => Ok(Ubatch::Tokens(tokens)),
        _ => Err(format!("write 1 to {MAX_TOKENS} tokens, or `auto`")),
    }
}

/// Parses a type, or `auto`.
fn kv(text: &str) -> Result<Kv, String> {
    if text.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case("auto")) {
        let choice = text.parse().map_err(|error: ParseError| error.to_string())?;
        return Ok(Kv { ty: KvType::F16, choice });
    }
    let ty = text.parse().map_err(|error: ParseError| format!("{error}, or auto"))?;
    Ok(Kv { ty, choice: KvCache::Given })
}

/// Parses `auto`, `off`, or bytes.
fn cache_ram(text: &str) -> Result<CacheRam, String> {
    match text {
        "auto" => Ok(CacheRam::Auto),
        "off" | "0" => Ok(CacheRam::Off),
        _ => sizes::size(text).map(CacheRam::Bytes).map_err(|error| format!("{error}; or auto, or off")),
    }
}

/// Parses `auto`, `off`, or bytes.
fn moe_cache(text: &str) -> Result<MoeCache, String> {
    match text {
        "auto" => Ok(MoeCache::Auto),
        "off" | "0" => Ok(MoeCache::Off),
        _ => sizes::size(text).map(MoeCache::Bytes).map_err(|error| format!("{error}; or auto, or off")),
    }
}

/// Parses `--flash-attn` like common/arg.cpp.
fn flash_attn(text: &str) -> Result<FlashAttention, String> {
    match text {
        "auto" | "-1" => Ok(FlashAttention::Auto),
        yes if is_yes(yes) => Ok(FlashAttention::On),
        no if is_no(no) => Ok(FlashAttention::Off),
        _ => Err("use auto, on, off, or llama.cpp's -1, 1, 0".to_owned()),
    }
}

/// Parses `auto`, 0 (which means the training context), a number of tokens, or a minimum number such as `8192+`.
fn context(text: &str) -> Result<Context, String> {
    match text {
        "auto" => return Ok(Context::Auto),
        "0" => return Ok(Context::Model),
        _ => {}
    }
    let (number, of): (_, fn(u32) -> Context) = match text.strip_suffix('+') {
        Some(number) => (number, Context::AtLeast),
        None => (text, Context::Tokens),
    };
    // A context of one token would have no room for an answer.
    let tokens = number.parse().ok().filter(|tokens| (2..=MAX_TOKENS).contains(tokens));
    tokens.map(of).ok_or_else(|| format!("write 2 to {MAX_TOKENS} tokens (with a `+`: at least that many), or `auto`"))
}

/// Parses `follow`, `all`, or a number of live tokens.
fn depth(text: &str) -> Result<Depth, String> {
    match text.parse().map_err(|error: ParseError| error.to_string())? {
        Depth::Fixed(tokens) if tokens > MAX_TOKENS => {
            Err(format!("write 0 to {MAX_TOKENS} tokens, `follow` or `all`"))
        }
        depth => Ok(depth),
    }
}

/// Parses `4096+512`: the tokens of a prompt, and those of its reply.
fn workload(text: &str) -> Result<Workload, String> {
    match text.split_once('+').and_then(|(prompt, reply)| Some((prompt.parse().ok()?, reply.parse().ok()?))) {
        Some((prompt, reply)) if prompt <= MAX_TOKENS && (1..=MAX_TOKENS).contains(&reply) => {
            Ok(Workload::new(prompt, reply))
        }
        _ => Err(format!(
            "`{text}` is not a workload: write PROMPT+REPLY in tokens, such as 4096+512, with a reply of at least 1"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{moe_cache, workload};
    use autoplace::plan::{MoeCache, Workload};

    #[test]
    fn a_workload_is_a_prompt_and_its_reply() {
        assert_eq!(workload("4096+512"), Ok(Workload::new(4096, 512)));
        assert_eq!(workload("0+1"), Ok(Workload::new(0, 1)));
        for wrong in ["4096", "4096+0", "+5", "a+b", "9999999999+1"] {
            assert!(workload(wrong).unwrap_err().contains("PROMPT+REPLY"), "{wrong}");
        }
    }

    #[test]
    fn a_cache_of_experts_is_a_number_of_bytes_or_a_word() {
        assert_eq!(["auto", "off", "0"].map(moe_cache), [Ok(MoeCache::Auto), Ok(MoeCache::Off), Ok(MoeCache::Off)]);
        assert_eq!(moe_cache("512MiB"), Ok(MoeCache::Bytes(512 << 20)));
        assert!(moe_cache("much").unwrap_err().ends_with("; or auto, or off"));
    }
}
