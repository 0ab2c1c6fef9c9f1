//! The arguments of `plan`, and the request for a plan that they express.

use std::path::PathBuf;

use autoplace::machine::{Bandwidth, Gpu, Host};
use autoplace::memory::companion::CompanionRole;
use autoplace::plan::{MoeCache, Request};
use clap::value_parser;

use crate::adapters::AdapterArgs;
use crate::ask::AskArgs;
use crate::drafts::DraftOptionArgs;
use crate::emit::Tool;
use crate::pooling::PoolingArgs;
use crate::settings::{DeviceArgs, SettingArgs};
use crate::values::MAX_TOKENS;
use crate::{gpu, picture, sizes};

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
    #[command(flatten)]
    pub(crate) embeddings: PoolingArgs,
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
    /// Lets --rpc connect to machines other than this one: there is no authentication
    #[arg(long, requires = "rpc")]
    pub(crate) rpc_trusted_network: bool,
    /// Memory of the host instead of this machine's, with an optional bandwidth: `64GiB`, `64GiB:60GB/s`; all of it
    /// counts as free
    #[arg(long, value_name = "SIZE[:RATE]", value_parser = sizes::ram, allow_hyphen_values = true)]
    pub(crate) ram: Option<(u64, Option<u64>)>,
    /// Read speed of the disk, for a model that does not fit: `3GB/s` [default: measured on the model's file]
    #[arg(long, value_name = "RATE", value_parser = sizes::rate, requires = "allow_paging")]
    pub(crate) disk_rate: Option<u64>,
    /// Processor of the host instead of this machine's, with its cores and its rated memory: `Ryzen 9 7950X`, `M3 Max`,
    /// `EPYC 9654`, `DGX Spark`, `Strix Halo`
    #[arg(long, value_name = "NAME", value_parser = cpu)]
    pub(crate) cpu: Option<String>,
    /// Memory type of the host instead of this machine's, with channels or bus width: `DDR5-5600 x2`, `LPDDR5X-8000
    /// 256-bit`, `DDR4`
    #[arg(long, value_name = "TYPE [xCHANNELS|BITS-bit]", value_parser = memory)]
    pub(crate) memory: Option<Bandwidth>,
    /// Loads a file beside the model: `mmproj=FILE`, `draft=FILE`; repeat for several
    #[arg(long = "with", id = "draft_file", value_name = "mmproj=FILE|draft=FILE", value_parser = beside)]
    pub(crate) with: Vec<(CompanionRole, PathBuf)>,
    #[command(flatten)]
    pub(crate) draft: DraftOptionArgs,
    /// Maximum tokens of an image, if the projector (mmproj) accepts images of any size; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) image_max_tokens: u32,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    /// Plans by arithmetic alone, without asking llama.cpp
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// Also prints the predicted speed for each number of layers on the GPU
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
    /// Prints the equivalent for another tool instead: llama.cpp, ollama, lm-studio, koboldcpp, llama-cpp-2
    #[arg(long, value_name = "TOOL", value_enum, hide_possible_values = true, conflicts_with = "json")]
    pub(crate) emit: Option<Tool>,
}

impl PlanArgs {
    /// The planner's request.
    pub(crate) fn request(&self) -> Request {
        let mut request = self.ask.request().at(self.at.as_slice()).draft_max(self.mtp.unwrap_or(0));
        self.settings.set(&mut request.params);
        // For such a tool, the plan reserves logits for a whole batch, as llama.cpp does by default. llama-server
        // requests one row for each sequence (server_output_limits), and Ollama runs llama-server.
        if self.emit.is_some_and(Tool::keeps_all_logits) {
            request = request.n_outputs_max(0);
        }
        if self.emit.is_some_and(|tool| !tool.has_moe_cache()) && self.ask.moe_cache.is_none() {
            request = request.moe_cache(MoeCache::Off);
        }
        if let Some(pooling) = self.embeddings.pooling() {
            request = request.embeddings(pooling);
        }
        // 1 is the default, so it is not set.
        if self.seqs > 1 {
            request = request.n_seq_max(self.seqs);
        }
        request
    }
}

/// Parses the role and the file of a companion.
fn beside(text: &str) -> Result<(CompanionRole, PathBuf), String> {
    match text.split_once('=') {
        Some(("mmproj" | "draft", "")) => Err("the file is missing after `=`".to_owned()),
        Some(("mmproj", path)) => Ok((CompanionRole::Mmproj, path.into())),
        Some(("draft", path)) => Ok((CompanionRole::Draft, path.into())),
        _ => Err("use `mmproj=FILE` or `draft=FILE`".to_owned()),
    }
}

/// Checks that a processor with this name is in the catalogue.
fn cpu(text: &str) -> Result<String, String> {
    Host::named(text, 1).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Parses a memory type, and returns its bandwidth.
fn memory(text: &str) -> Result<Bandwidth, String> {
    Host::memory(text).map_err(|error| error.to_string())
}
