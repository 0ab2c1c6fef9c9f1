//! The command line. Text flows in; its meaning flows out, or a line that names the wrong argument.

use std::path::PathBuf;
use std::time::Duration;

use autoplace::machine::{Bandwidth, Gpu, Host, ParseError};
use autoplace::memory::companion::CompanionRole;
use autoplace::memory::{FlashAttention, Headroom, KvType, Pooling};
use autoplace::plan::{Context, GpuLayers, HostParts, KvCache, KvPlace, Policy, Request, Workload};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, Subcommand, value_parser};
use serde_json::Value;

use crate::adapters::AdapterArgs;
use crate::doctor::DoctorArgs;
use crate::drafts::DraftOptionArgs;
use crate::emit::Tool;
use crate::gpu;
use crate::llama_cpp::{is_no, is_yes};
use crate::measure::MeasureArgs;
use crate::picture;
use crate::runtime::RuntimeVerb;
use crate::settings::{DeviceArgs, SettingArgs};
use crate::sizes;
use crate::talk::{RunArgs, ServeArgs, TalkArgs};

/// The maximum of llama_sys: llama.cpp pads a context to 256 tokens (llama-context.cpp, the constructor) and counts
/// tokens with 32 signed bits.
const MAX_TOKENS: u32 = i32::MAX as u32 / 256 * 256;

/// Places a local model: the fastest safe placement, with every byte accounted for.
#[derive(Debug, Parser)]
#[command(name = "autoplace", version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Answers a prompt, or begins a chat without one
    Run(Box<RunArgs>),
    /// Begins a chat, or answers every line from a pipe
    Chat(Box<TalkArgs>),
    /// Serves a model by OpenAI's and Anthropic's APIs
    Serve(Box<ServeArgs>),
    /// Shows a model's placement on this machine, or on simulated GPUs, without loading it
    Plan(Box<PlanArgs>),
    /// Lists the devices of this machine and the programs that hold their memory
    Devices(DevicesArgs),
    /// Lists the models on this machine with their placements
    List(ListArgs),
    /// Measures tokens per second by the layers on the GPU, or compares two placements
    Measure(Box<MeasureArgs>),
    /// Finds reasons why a model is slower than it could be on this machine, and their remedies
    Doctor(Box<DoctorArgs>),
    /// Manages the libraries that programs open if they were built without a compiler for llama.cpp
    Runtime {
        /// The operation
        #[command(subcommand)]
        verb: RuntimeVerb,
    },
    /// Extracts the model from a file that also holds its projector, such as Ollama's files
    Extract(ExtractArgs),
    /// Prints a conversation as a model sees it: the prompt from its chat template
    Template(TemplateArgs),
    /// Prints a shell script that completes these arguments
    Completions {
        /// The shell: bash, elvish, fish, powershell, zsh
        #[arg(value_name = "SHELL", hide_possible_values = true)]
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages, one for each verb
    #[cfg(feature = "man")]
    Man {
        /// An existing folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// The arguments of `devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct DevicesArgs {
    /// Prints JSON, all sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
    /// Also writes the machine to a file, for `plan --machine` on another computer
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Measures each device's speed with common types of weights and caches (some ten seconds per device, or work that
    /// begins within SECONDS) and the host's memory bandwidth, and stores the figures for plans
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, value_parser = seconds, conflicts_with = "machine")]
    pub(crate) measure: Option<Option<Duration>>,
    /// Describes the machine in a file instead of this one
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
}

/// The arguments of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Folders to search with their subfolders [default: the stores of Hugging Face, llama.cpp, Ollama and LM Studio]
    pub(crate) folders: Vec<PathBuf>,
    /// Prints JSON, all sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `extract`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExtractArgs {
    /// GGUF file, or a blob of Ollama
    pub(crate) model: PathBuf,
    /// The file to write, which must not exist
    pub(crate) to: PathBuf,
}

/// The arguments of `template`.
#[derive(Debug, clap::Args)]
pub(crate) struct TemplateArgs {
    /// GGUF file, or a text file with a template's source
    pub(crate) model: PathBuf,
    /// Messages as JSON, in the form of OpenAI's and Hugging Face's interfaces [default: a short conversation]
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: Option<PathBuf>,
    /// Tools as JSON, in the same form
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// The variant of the template, if the model ships several [default: tool_use with tools, else default]
    #[arg(long, value_name = "VARIANT")]
    pub(crate) name: Option<String>,
    /// Sets a variable of the template, as JSON or otherwise text: `enable_thinking=false`; repeat for several
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) set: Vec<(String, Value)>,
    /// Leaves out the beginning of the answer
    #[arg(long)]
    pub(crate) no_generation_prompt: bool,
    /// Refuses tools that the template does not show, instead of describing them in the system message
    #[arg(long)]
    pub(crate) no_tool_descriptions: bool,
}

/// The request for a plan.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// Tokens of context; `8192+` is at least 8192, and as many more as cost no layer; `auto` is `4096+`; 0 is the
    /// model's training context [default: at least 4096, and up to 32768 if that costs no layer and leaves half of the
    /// remaining memory free]
    #[arg(short, long, alias = "ctx-size", value_name = "N|N+|auto", value_parser = context)]
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
    /// Keeps the whole context for layers with a sliding window too
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
    /// The workload that should take the least time: tokens of a prompt and of its reply [default: 1024+256 in the
    /// middle of the context]
    #[arg(long, value_name = "PROMPT+REPLY", value_parser = workload)]
    pub(crate) workload: Option<Workload>,
    /// Flash attention; `auto` uses it if every device with a layer supports it [default: auto]
    #[arg(long, value_name = "auto|on|off", value_parser = flash_attn)]
    pub(crate) flash_attn: Option<FlashAttention>,
    /// Layers on the GPU, the output layer included; an error if they do not fit [default: as many as fit safely]
    #[arg(long, aliases = ["n-gpu-layers", "gpu-layers"], value_name = "N|all|auto", value_parser = gpu_layers, allow_hyphen_values = true)]
    pub(crate) ngl: Option<GpuLayers>,
    /// Memory to leave free on a GPU: `tight`, `default`, `cautious` (15 % of its total in all), a size (`600MiB`) or a
    /// share of its total (`15%`)
    #[arg(long, value_name = "tight|default|cautious|SIZE|PERCENT", allow_hyphen_values = true, value_parser = sizes::headroom)]
    pub(crate) headroom: Option<Headroom>,
    /// Also accepts a model larger than all memory: weights that do not fit are read from disk again for every token
    #[arg(long)]
    pub(crate) allow_paging: bool,
}

/// The arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct PlanArgs {
    /// GGUF file (for a split model, its first part), or hf:OWNER/NAME[:QUANT][@REVISION] that was fetched
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Context depths in tokens for which to predict the speed [default: 64, half and all of the context]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = value_parser!(u32).range(0..=i64::from(MAX_TOKENS)))]
    pub(crate) at: Vec<u32>,
    /// Number of sequences, which share the context
    #[arg(long, alias = "parallel", value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) seqs: u32,
    /// Plans for embeddings instead of text, with the model's pooling or this one; the context is then the longest text
    #[arg(long, value_name = "none|mean|cls|last|rank", value_parser = one_of(POOLING), num_args = 0..=1, require_equals = true, default_missing_value = "model", hide_possible_values = true)]
    pub(crate) embeddings: Option<Pooling>,
    /// Plans for speculative decoding with the model's own block for predicting further tokens, with up to N tokens at
    /// once [default: 3]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0", value_parser = value_parser!(u32).range(0..=64), conflicts_with = "embeddings")]
    pub(crate) mtp: Option<u32>,
    /// Uses a simulated GPU instead of the machine's own: `RTX 4090`, `RTX 4090=24GiB,free=22.6GiB`; repeat for several
    #[arg(long, value_name = "NAME[=TOTAL][,free=SIZE]", value_parser = gpu::gpu, allow_hyphen_values = true)]
    pub(crate) gpu: Vec<Gpu>,
    /// Uses the machine in a file of `devices --write` instead of this one
    #[arg(long, value_name = "FILE", conflicts_with = "gpu")]
    pub(crate) machine: Option<PathBuf>,
    /// Also uses the devices of another machine, whose rpc-server listens at this address; repeat for several. A
    /// separate process measures them and makes the plan
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["gpu", "machine", "ram", "cpu", "memory", "draft_file", "draft_cache_type_k", "draft_cache_type_v", "draft_ngl", "draft_device", "no_probe", "emit", "save"])]
    pub(crate) rpc: Vec<String>,
    /// Lets --rpc connect to other machines than this one: there is no authentication
    #[arg(long, requires = "rpc")]
    pub(crate) rpc_trusted_network: bool,
    /// Memory of the host instead of this one's, all of it free, with an optional bandwidth: `64GiB`, `64GiB:60GB/s`
    #[arg(long, value_name = "SIZE[:RATE]", value_parser = sizes::ram, allow_hyphen_values = true)]
    pub(crate) ram: Option<(u64, Option<u64>)>,
    /// Read speed of the disk, for a model that does not fit: `3GB/s` [default: measured on the model's file]
    #[arg(long, value_name = "RATE", value_parser = sizes::rate, requires = "allow_paging")]
    pub(crate) disk_rate: Option<u64>,
    /// Processor of the host instead of this one, with its cores and its rated memory: `Ryzen 9 7950X`, `M3 Max`, `EPYC
    /// 9654`, `DGX Spark`, `Strix Halo`
    #[arg(long, value_name = "NAME", value_parser = cpu)]
    pub(crate) cpu: Option<String>,
    /// Memory type of the host instead of this one's, with channels or bus width: `DDR5-5600 x2`, `LPDDR5X-8000
    /// 256-bit`, `DDR4`
    #[arg(long, value_name = "TYPE [xCHANNELS|BITS-bit]", value_parser = memory)]
    pub(crate) memory: Option<Bandwidth>,
    /// Loads a file beside the model: `mmproj=FILE`, `draft=FILE`; repeat for several
    #[arg(long = "with", id = "draft_file", value_name = "mmproj=FILE|draft=FILE", value_parser = beside)]
    pub(crate) with: Vec<(CompanionRole, PathBuf)>,
    #[command(flatten)]
    pub(crate) draft: DraftOptionArgs,
    /// Maximum tokens of an image, if the mmproj accepts images of any size; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) image_max_tokens: u32,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    /// Plans by arithmetic alone, without asking llama.cpp
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// Also prints the predicted speed by layers on the GPU
    #[arg(long)]
    pub(crate) curve: bool,
    /// Draws the plan to a file: the memory of each device, the cliff with the plan's point, speed by depth. `.svg` is
    /// the picture, `.html` a self-contained page with the picture
    #[arg(long, value_name = "FILE.svg|FILE.html", value_parser = picture::file)]
    pub(crate) picture: Option<PathBuf>,
    /// Prints JSON, all sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
    /// Saves the plan to a file, which `run --plan` and `chat --plan` follow exactly
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Prints the equivalent for another tool instead: llama.cpp, ollama, lm-studio
    #[arg(long, value_name = "TOOL", value_enum, hide_possible_values = true, conflicts_with = "json")]
    pub(crate) emit: Option<Tool>,
}

const KV_OFFLOAD: &[(&str, KvOffload)] = &[("on", KvOffload::On), ("off", KvOffload::Off), ("auto", KvOffload::Auto)];
const POLICY: &[(&str, Policy)] = &[("fastest", Policy::Fastest), ("most-layers", Policy::MostLayers)];
const HOST_PARTS: &[(&str, HostParts)] = &[
    ("auto", HostParts::Auto),
    ("none", HostParts::None),
    ("experts", HostParts::Experts),
    ("ffn", HostParts::FeedForward),
];
/// llama.cpp's names, and `model` for the model's own pooling.
const POOLING: &[(&str, Pooling)] = &[
    ("model", Pooling::Model),
    ("none", Pooling::None),
    ("mean", Pooling::Mean),
    ("cls", Pooling::Cls),
    ("last", Pooling::Last),
    ("rank", Pooling::Rank),
];

/// A value by its name, so that shells can complete it.
fn one_of<T: Copy + Send + Sync + 'static>(all: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(all.iter().map(|(name, _)| *name));
    names.try_map(|name| all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or("no such value"))
}

impl PlanArgs {
    /// The planner's request.
    pub(crate) fn request(&self) -> Request {
        let mut request = self.ask.request().at(self.at.as_slice()).draft_max(self.mtp.unwrap_or(0));
        self.settings.set(&mut request.params);
        // Reserves logits for a whole batch, as llama.cpp does by default. llama-server, which Ollama runs too,
        // requests one row for each sequence (server_output_limits).
        if self.emit.is_some_and(Tool::keeps_all_logits) {
            request = request.n_outputs_max(0);
        }
        if let Some(pooling) = self.embeddings {
            request = request.embeddings(pooling);
        }
        // The default is 1.
        if self.seqs > 1 {
            request = request.n_seq_max(self.seqs);
        }
        request
    }
}

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
                // A ubatch is a part of a batch, so a larger ubatch needs a larger batch.
                let n_batch = self.batch_size.unwrap_or(Request::new().params.n_batch.max(ubatch));
                request = request.n_ubatch(ubatch).n_batch(n_batch);
            }
            Some(Ubatch::Auto) => {
                let usual = Request::new();
                request.params.n_ubatch = usual.params.n_ubatch;
                (request.max_ubatch, request.min_ubatch) = (usual.max_ubatch, Some(LEAST_UBATCH));
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
        request.policy = self.policy;
        request.host_parts = self.host_parts;
        request.gpu_layers = self.ngl.unwrap_or(GpuLayers::Auto);
        request.headroom = self.headroom.unwrap_or_default();
        request.allow_paging = self.allow_paging;
        request
    }
}

/// The value of `--kv`: a type of keys and values, or the widest type and the permitted alternatives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kv {
    ty: KvType,
    choice: KvCache,
}

/// What `--kv-offload` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvOffload {
    On,
    Off,
    Auto,
}

/// What `--ubatch` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ubatch {
    Tokens(u32),
    Auto,
}

/// The fewest tokens that `--ubatch auto` computes at once. From 32 on, a GPU computes with weights that the host keeps
/// (ggml-cuda.cu, `min_batch_size`).
const LEAST_UBATCH: u32 = 64;

/// Parses `auto`, or a number of tokens.
fn ubatch(text: &str) -> Result<Ubatch, String> {
    match text.parse() {
        _ if text == "auto" => Ok(Ubatch::Auto),
        Ok(tokens) if (1..=MAX_TOKENS).contains(&tokens) => Ok(Ubatch::Tokens(tokens)),
        _ => Err(format!("tokens are 1 to {MAX_TOKENS}, or `auto`")),
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

/// Parses `--flash-attn` like common/arg.cpp.
fn flash_attn(text: &str) -> Result<FlashAttention, String> {
    match text {
        "auto" | "-1" => Ok(FlashAttention::Auto),
        yes if is_yes(yes) => Ok(FlashAttention::On),
        no if is_no(no) => Ok(FlashAttention::Off),
        _ => Err("auto, on, off and llama.cpp's -1, 1, 0 can be".to_owned()),
    }
}

/// Parses `--n-gpu-layers` like common/arg.cpp: -1 is `auto`, and a smaller number is `all`.
pub(crate) fn gpu_layers(text: &str) -> Result<GpuLayers, String> {
    match (text, text.parse::<i64>()) {
        ("auto", _) | (_, Ok(-1)) => Ok(GpuLayers::Auto),
        ("all", _) | (_, Ok(..-1)) => Ok(GpuLayers::All),
        (_, Ok(layers)) => {
            u32::try_from(layers).map(GpuLayers::Exactly).map_err(|_| "so many layers has no model".to_owned())
        }
        _ => Err("a number of layers, `all` or `auto` can be".to_owned()),
    }
}

/// Parses `auto`, 0 for the training context, a number of tokens, or a minimum number.
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
    // One token of context has no room for an answer.
    let tokens = number.parse().ok().filter(|tokens| (2..=MAX_TOKENS).contains(tokens));
    tokens.map(of).ok_or_else(|| format!("tokens are 2 to {MAX_TOKENS}, with a `+` at least so many, or `auto`"))
}

/// Parses a companion's role and its file.
fn beside(text: &str) -> Result<(CompanionRole, PathBuf), String> {
    match text.split_once('=') {
        Some(("mmproj" | "draft", "")) => Err("the file is missing behind `=`".to_owned()),
        Some(("mmproj", path)) => Ok((CompanionRole::Mmproj, path.into())),
        Some(("draft", path)) => Ok((CompanionRole::Draft, path.into())),
        _ => Err("beside a model go `mmproj=FILE` and `draft=FILE`".to_owned()),
    }
}

/// The name of a processor in the catalogue.
fn cpu(text: &str) -> Result<String, String> {
    Host::named(text, 1).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The bandwidth of memory in this notation.
fn memory(text: &str) -> Result<Bandwidth, String> {
    Host::memory(text).map_err(|error| error.to_string())
}

/// A name and a value, which is JSON or otherwise text.
fn variable(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = value.parse().unwrap_or_else(|_| value.into());
            Ok((name.to_owned(), value))
        }
        _ => Err("a variable is set by `NAME=VALUE`".to_owned()),
    }
}

/// Parses seconds, with or without a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a time is a number of seconds, such as 2 or 0.5".to_owned())
}

/// Parses `4096+512`: a prompt and its reply.
fn workload(text: &str) -> Result<Workload, String> {
    match text.split_once('+').and_then(|(prompt, reply)| Some((prompt.parse().ok()?, reply.parse().ok()?))) {
        Some((prompt, reply)) if prompt <= MAX_TOKENS && (1..=MAX_TOKENS).contains(&reply) => {
            Ok(Workload::new(prompt, reply))
        }
        _ => Err(format!(
            "`{text}` is no workload; one is PROMPT+REPLY in tokens, such as 4096+512, the reply at least 1"
        )),
    }
}

/// The shell's completion script, without the last line break like all answers.
pub(crate) fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "autoplace", &mut script);
    String::from_utf8_lossy(&script).trim_end().to_owned()
}

/// A message in one line without control characters: a model's name may contain any.
pub(crate) fn in_one_line(message: &str) -> String {
    let plain = message.replace(char::is_control, " ");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{Args, Verb};
    use autoplace::memory::{FlashAttention, KvType};
    use autoplace::plan::{Context, GpuLayers, KvCache, KvPlace, Request};
    use clap::Parser;

    #[test]
    fn what_is_said_replaces_what_a_program_has_and_the_rest_stays() {
        let over = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).unwrap();
            let Verb::Plan(args) = args.verb else { unreachable!() };
            let program = Request::new().kv_types(KvType::Q8_0, KvType::Q8_0).offload_kqv(false);
            let params = args.ask.over(program.flash_attn(FlashAttention::Off)).params;
            (params.type_k, params.offload_kqv, params.flash_attn)
        };
        assert_eq!(over(&[]), (KvType::Q8_0, false, FlashAttention::Off));
        let values = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).unwrap();
            let Verb::Plan(args) = args.verb else { unreachable!() };
            let request = args.request();
            (request.context, request.gpu_layers, request.params.flash_attn, request.params.n_batch)
        };
        let stated = values(&["--ctx", "0", "--ngl", "all", "--flash-attn", "0", "--batch-size", "64"]);
        assert_eq!(stated, (Context::Model, GpuLayers::All, FlashAttention::Off, 64));
        let open = values(&["--ngl=-1", "--flash-attn", "enabled", "--ubatch", "4096"]);
        assert_eq!(open, (Context::Default, GpuLayers::Auto, FlashAttention::On, 4096));
        let said = over(&["--kv", "f16", "--kv-offload", "on", "--flash-attn", "auto"]);
        assert_eq!(said, (KvType::F16, true, FlashAttention::Auto));
        let settings = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).ok()?;
            let Verb::Plan(args) = args.verb else { unreachable!() };
            let request = args.request();
            let ubatch = (request.min_ubatch, request.params.n_ubatch, request.max_ubatch);
            Some((request.kv_place, request.params.offload_kqv, ubatch))
        };
        let usual = (None, 512, Some(2048));
        assert_eq!(settings(&[]), Some((KvPlace::Given, true, usual)));
        assert_eq!(settings(&["--kv-offload", "auto"]), Some((KvPlace::Auto, true, usual)));
        assert_eq!(settings(&["--kv-offload", "off"]), Some((KvPlace::Given, false, usual)));
        assert_eq!(settings(&["--ubatch", "auto"]), Some((KvPlace::Given, true, (Some(64), 512, Some(2048)))));
        assert_eq!(settings(&["--ubatch", "96"]), Some((KvPlace::Given, true, (None, 96, None))));
        assert_eq!(
            [["--ubatch", "0"], ["--ubatch", "many"], ["--kv-offload", "some"]].map(|said| settings(&said)),
            [None; 3]
        );
        let chosen = |said: &[&str]| {
            let args = Args::try_parse_from([&["autoplace", "plan", "m"], said].concat()).ok()?;
            let Verb::Plan(args) = args.verb else { unreachable!() };
            let request = args.request();
            Some((request.params.type_v, request.kv_cache))
        };
        assert_eq!(chosen(&["--kv", "auto"]), Some((KvType::F16, KvCache::Auto)));
        assert_eq!(chosen(&["--kv", "auto:q4_0"]), Some((KvType::F16, KvCache::DownTo(KvType::Q4_0))));
        assert_eq!(chosen(&["--kv", "q8_0"]), Some((KvType::Q8_0, KvCache::Given)));
        assert_eq!(chosen(&["--kv", "auto:q9"]), None);
    }
}
