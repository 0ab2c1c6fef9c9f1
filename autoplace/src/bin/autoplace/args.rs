//! What may be said on the command line. Text flows in; what it means flows out, or a line that names the argument.

use std::path::PathBuf;

use autoplace::llama_sys::sim::MAX_CARDS;
use autoplace::memory::{FlashAttention, Headroom, KvType};
use autoplace::plan::{Context, GpuLayers, Request};
use clap::{Parser, Subcommand, ValueEnum, value_parser};

use crate::gpu::SimulatedGpu;
use crate::sizes;

/// What llama_sys takes: llama.cpp pads a context to 256 tokens (llama-context.cpp:292) and counts with 32 signed bits.
const MAX_TOKENS: u32 = i32::MAX as u32 / 256 * 256;

/// Says where a local model goes: the largest safe number of layers on the GPU, and every byte of it.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = false)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Shows where a model would go on this machine, or on GPUs that it does not have, without loading it
    Plan(PlanArgs),
    /// Lists what this machine has to place a model on, and who holds its memory
    Devices(DevicesArgs),
}

/// The arguments of `devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct DevicesArgs {
    /// Prints JSON, all sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
    /// Writes the machine to a file too, for `plan --machine` on another computer
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Measures how fast the host's memory is read, though it was measured before
    #[arg(long, conflicts_with = "machine")]
    pub(crate) measure: bool,
    /// Describes the machine in a file instead of this one
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
}

/// The arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct PlanArgs {
    /// GGUF file; of a split model, the first part
    pub(crate) model: PathBuf,
    /// Tokens of context; `auto` is 4096, or what the model was trained on if that is less
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = context)]
    pub(crate) ctx: Context,
    /// Type of the keys and values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = str::parse::<KvType>)]
    pub(crate) kv: KvType,
    /// Tokens computed at once
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = value_parser!(u32).range(1..=i64::from(MAX_TOKENS)))]
    pub(crate) ubatch: u32,
    /// Sequences held at once, which share the context out
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) seqs: u32,
    /// Fused attention; `auto` is where every device that holds a layer can
    #[arg(long, value_name = "auto|on|off", value_enum, default_value_t = FlashAttn::Auto, hide_possible_values = true)]
    pub(crate) flash_attn: FlashAttn,
    /// Layers on the GPU, the output layer counted first; an error if they do not fit [default: as many as are safe]
    #[arg(long, value_name = "N")]
    pub(crate) ngl: Option<u32>,
    /// A simulated GPU instead of the machine's own: `RTX 4090`, `RTX 4090=24GiB,free=22.6GiB`; several times for several
    #[arg(
        long,
        value_name = "NAME[=TOTAL][,free=SIZE]",
        allow_hyphen_values = true
    )]
    pub(crate) gpu: Vec<SimulatedGpu>,
    /// The machine in a file that `devices --write` wrote, instead of this one
    #[arg(long, value_name = "FILE", conflicts_with = "gpu")]
    pub(crate) machine: Option<PathBuf>,
    /// What stays free on a GPU: `tight`, `default`, `cautious` (15 % of its total), `600MiB`, or a share of its total, `5%`
    #[arg(long, value_name = "tight|default|cautious|SIZE|PERCENT", allow_hyphen_values = true, value_parser = sizes::headroom)]
    pub(crate) headroom: Option<Headroom>,
    /// Answers by arithmetic alone, without asking llama.cpp
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// Prints JSON, all sizes in bytes
    #[arg(long)]
    pub(crate) json: bool,
}

/// [`FlashAttention`] by the names that llama.cpp's programs use.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum FlashAttn {
    Auto,
    On,
    Off,
}

impl PlanArgs {
    /// Refuses what only all arguments together show.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.gpu.len() > MAX_CARDS {
            return Err(format!(
                "--gpu is given {} times: llama.cpp takes at most {MAX_CARDS} GPUs",
                self.gpu.len()
            ));
        }
        Ok(())
    }

    /// What is asked of the planner.
    pub(crate) fn request(&self) -> Request {
        let request = Request::new();
        // A computation is a part of a batch: a larger one needs a larger batch.
        let n_batch = request.params.n_batch.max(self.ubatch);
        request
            .context(self.ctx)
            .kv_types(self.kv, self.kv)
            .n_ubatch(self.ubatch)
            .n_batch(n_batch)
            .n_seq_max(self.seqs)
            .flash_attention(match self.flash_attn {
                FlashAttn::Auto => FlashAttention::Auto,
                FlashAttn::On => FlashAttention::On,
                FlashAttn::Off => FlashAttention::Off,
            })
            .gpu_layers(self.ngl.map_or(GpuLayers::Auto, GpuLayers::Exactly))
            .headroom(self.headroom.unwrap_or_default())
    }
}

/// `auto`, or so many tokens.
fn context(text: &str) -> Result<Context, String> {
    if text == "auto" {
        return Ok(Context::Default);
    }
    match text.parse::<u32>() {
        Ok(tokens) if (1..=MAX_TOKENS).contains(&tokens) => Ok(Context::Tokens(tokens)),
        _ => Err(format!("tokens are 1 to {MAX_TOKENS}, or `auto`")),
    }
}

/// What clap says is wrong, without its advice on how to go on.
pub(crate) fn without_advice(error: &clap::Error) -> String {
    let message = error.to_string();
    let ends = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:"];
    let end = ends.iter().filter_map(|end| message.find(end)).min();
    message[..end.unwrap_or(message.len())].to_owned()
}

/// A message in one line without control characters: clap says on further lines what is missing or possible, and a model's name
/// may hold anything.
pub(crate) fn in_one_line(message: &str) -> String {
    let plain = message.replace(char::is_control, " ");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{Args, Context, context, in_one_line, without_advice};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_arguments_contradict_nothing() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_context_is_a_positive_number_of_tokens_or_auto() {
        assert_eq!(context("auto"), Ok(Context::Default));
        assert_eq!(context("8192"), Ok(Context::Tokens(8192)));
        for wrong in ["0", "-1", "", "4k", "1.5", "4294967295"] {
            assert!(context(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_message_of_several_lines_becomes_one() {
        let message = "these are missing:\n  <MODEL>\n\n\u{1b}[31mred";
        assert_eq!(in_one_line(message), "these are missing: <MODEL> [31mred");
    }

    #[test]
    fn advice_is_left_out_and_what_was_given_is_not() {
        let error = |args: &[&str]| {
            let error = Args::try_parse_from(args).unwrap_err();
            in_one_line(&without_advice(&error))
        };
        assert_eq!(
            error(&["autoplace", "plan"]),
            "error: the following required arguments were not provided: <MODEL>"
        );
        let odd = error(&["autoplace", "plan", "m", "--seqs", "a\n\nb"]);
        assert!(odd.contains("'a b'") && odd.contains("--seqs"), "{odd}");
        let close = error(&["autoplace", "plan", "m", "--head", "1"]);
        assert_eq!(close, "error: unexpected argument '--head' found");
    }
}
