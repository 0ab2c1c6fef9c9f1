//! Translates a plan into flags, settings or code with which another tool places the model in the same way.
//!
//! If a tool lacks a setting, the setting is never dropped silently. If the placement would change without the setting,
//! the result is an error. Otherwise a comment in the output names the setting.

mod koboldcpp;
mod llama_cpp;
mod llama_cpp_2;
mod lm_studio;
mod ollama;
#[cfg(test)]
mod tests;

use std::fmt;

use autoplace::memory::backend::Family;
use autoplace::memory::{KvType, Place, TensorOverride};
use autoplace::plan::Plan;
use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::settings::{DENSE, EXPERTS};

/// A tool that runs models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    // A command line of `llama-server`.
    #[value(name = "llama.cpp")]
    LlamaCpp,
    // A Modelfile.
    Ollama,
    // The load configuration of the SDKs and the REST interface, as JSON.
    LmStudio,
    // A command line.
    #[value(name = "koboldcpp")]
    KoboldCpp,
    // Rust that builds the parameters of this crate.
    #[value(name = "llama-cpp-2")]
    LlamaCpp2,
    // Refused, with the reason.
    #[value(name = "vllm", hide = true)]
    Vllm,
}

impl Tool {
    /// Whether the tool allocates logits for every token of a batch, as llama.cpp does by default. A plan for such a
    /// tool has `n_outputs_max` 0. The other tools allocate logits for one token of each sequence.
    pub(crate) const fn keeps_all_logits(self) -> bool {
        // llama-server requests logits for only one token of each sequence (server_output_limits). Ollama runs
        // llama-server.
        !matches!(self, Self::LlamaCpp | Self::Ollama)
    }

    /// Whether the tool has a setting for a cache of experts on the GPU. For a tool without this setting, the plan has
    /// no such cache, unless the user asks for one.
    pub(crate) const fn has_moe_cache(self) -> bool {
        matches!(self, Self::LlamaCpp)
    }
}

/// Why a plan cannot be translated for vLLM.
const VLLM: &str = "takes no placement: it has no number of layers for a GPU or the host, divides the memory itself \
    (--gpu-memory-utilization, --cpu-offload-gb), and reads GGUF files only experimentally. `--emit llama.cpp` is a \
    command line of llama-server";

/// Writes the tool's name as it is written on the command line.
impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("", PossibleValue::get_name))
    }
}

/// Translates a plan for a tool. The result consists of whole lines. The error is one line, and names the tool and the
/// obstacle: a model without a file, a path that is not valid text, or a setting without which the placement would
/// change.
pub(crate) fn emit(plan: &Plan, tool: Tool) -> Result<String, String> {
    in_words(plan, tool).map_err(|why| format!("{tool} {why}"))
}

fn in_words(plan: &Plan, tool: Tool) -> Result<String, String> {
    if tool == Tool::Vllm {
        return Err(VLLM.to_owned());
    }
    if tool != Tool::LlamaCpp {
        if plan.context.embeddings.is_some() {
            return cannot("a context for embeddings");
        }
        if plan.context.mtp {
            return cannot("predicting further tokens");
        }
        if plan.context.moe_cache_size > 0 {
            return cannot("a cache of experts on the GPU: plan with --moe-cache off");
        }
    }
    let Some(path) = &plan.model.path else {
        return Err(format!("loads a file, but the plan's model `{}` has no file", plan.model.name));
    };
    let refused = |reason| Err(format!("cannot be given the path {path:?}: {reason}"));
    match path.to_str() {
        None => refused("it is not UTF-8"),
        Some(path) if path.contains('\0') => refused("it contains a NUL"),
        Some(path) => match tool {
            Tool::LlamaCpp => llama_cpp::emit(plan, path),
            Tool::Ollama => ollama::emit(plan, path),
            Tool::LmStudio => lm_studio::emit(plan),
            Tool::KoboldCpp => koboldcpp::emit(plan, path),
            Tool::LlamaCpp2 => llama_cpp_2::emit(plan, path),
            Tool::Vllm => Err(VLLM.to_owned()),
        },
    }
}

/// The error for a setting that the tool lacks.
fn cannot<T>(what: impl fmt::Display) -> Result<T, String> {
    Err(format!("has no setting for {what}"))
}

/// The texts of those rows whose condition is true.
fn applying<'a>(rows: &[(bool, &'a str)]) -> impl Iterator<Item = &'a str> {
    rows.iter().filter(|(applies, _)| *applies).map(|&(_, text)| text)
}

/// The value as text if `applies` is true; otherwise `None`.
fn said(applies: bool, value: impl ToString) -> Option<String> {
    applies.then(|| value.to_string())
}

/// The names that ggml gives to the plan's GPUs, in the plan's order; `None` if a GPU does not exist in this machine.
fn devices(plan: &Plan) -> Option<Vec<&str>> {
    plan.gpus().map(|gpu| gpu.device.as_deref()).collect()
}

/// A note for a tool that uses all visible GPUs. It is needed if the plan has only one GPU. `how` gets ggml's name of
/// this GPU, and describes how to hide the other GPUs.
fn alone(plan: &Plan, tool: &str, how: impl Fn(&str) -> String) -> Option<String> {
    let mut gpus = plan.gpus();
    let (Some(gpu), None) = (gpus.next(), gpus.next()) else { return None };
    let how = how(gpu.device.as_deref().unwrap_or("its name"));
    Some(format!(
        "{tool} puts layers on every GPU that it sees, but the plan uses only one: if the machine has others, {how}"
    ))
}

/// Whether the load maps the file. Plans of earlier versions said so for Metal too.
fn mapped(plan: &Plan) -> bool {
    plan.context.mmap && !plan.gpus().any(|gpu| Family::from_backend(&gpu.backend) == Family::Metal)
}

/// The value for llama.cpp's `-ot`: a list of `pattern=buffer type`, separated by commas. `None` if the plan has no
/// overrides.
fn override_tensor(plan: &Plan) -> Result<Option<String>, String> {
    let one = |rule: &TensorOverride| {
        let refused = |reason: &str| cannot(format_args!("the tensor override `{}`: {reason}", rule.pattern));
        // llama.cpp splits the value at commas, and then splits each part at its first equals sign (common/arg.cpp,
        // parse_tensor_buffer_overrides).
        if rule.pattern.contains([',', '=']) {
            return refused("its flag ends a pattern at `,` and `=`");
        }
        let buffer_type = match rule.place {
            Place::Host => "CPU",
            Place::Gpu(index) => match plan.gpus().nth(index) {
                None => return refused("the plan has no such GPU"),
                // Metal's buffer type has a suffix after the device name (ggml-metal.cpp, "_Private" and "_Mapped").
                Some(gpu) => match &gpu.device {
                    Some(device) if Family::from_backend(&gpu.backend) != Family::Metal => device,
                    _ => return refused("the buffer type of its GPU is not known"),
                },
            },
        };
        Ok(format!("{}={buffer_type}", rule.pattern))
    };
    let all: Vec<String> = plan.overrides.iter().map(one).collect::<Result<_, _>>()?;
    Ok((!all.is_empty()).then(|| all.join(",")))
}

/// Weights of the first blocks that stay on the host, in the form of llama.cpp's flags.
#[derive(Debug, Default, PartialEq)]
struct HostParts {
    /// The flag `--cpu-moe`.
    experts: bool,
    /// The number for `--n-cpu-moe`.
    experts_of: u32,
    /// The number for `--n-cpu-ffn`.
    dense_of: u32,
}

/// A plan's overrides as the flags of [`HostParts`], which people can read more easily than patterns. `None` if one of
/// the overrides can only be expressed with `-ot`.
fn host_parts(plan: &Plan) -> Option<HostParts> {
    /// The planner's own pattern for all dense parts of a block.
    const DENSE_STEMS: &str = r"\.(ffn_down|ffn_gate|ffn_up)\.";
    let mut parts = HostParts::default();
    for rule in &plan.overrides {
        if rule.place != Place::Host {
            return None;
        }
        if rule.pattern == EXPERTS {
            parts.experts = true;
            continue;
        }
        match first_blocks(&rule.pattern)? {
            (blocks, EXPERTS) => parts.experts_of = parts.experts_of.max(blocks),
            (blocks, DENSE | DENSE_STEMS) => parts.dense_of = parts.dense_of.max(blocks),
            _ => return None,
        }
    }
    Some(parts)
}

/// How many blocks are in a pattern such as `blk\.(0|1|2)\.ffn_up\.`, and the text that follows them. `None` unless
/// they are the first blocks of the model.
fn first_blocks(pattern: &str) -> Option<(u32, &str)> {
    let list = pattern.strip_prefix('^').unwrap_or(pattern).strip_prefix(r"blk\.")?;
    let (blocks, weights) = match list.strip_prefix('(') {
        Some(list) => list.split_once(')')?,
        None => list.split_at(list.find('\\')?),
    };
    let blocks: Vec<u32> = blocks.split('|').map(|block| block.parse().ok()).collect::<Option<_>>()?;
    let n = u32::try_from(blocks.len()).ok()?;
    blocks.into_iter().eq(0..n).then_some((n, weights))
}

/// The value for llama.cpp's `-ts`; `None` if the plan has no proportions.
fn tensor_split(plan: &Plan) -> Option<String> {
    let all: Vec<String> = plan.tensor_split.iter().map(f32::to_string).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// The number of tokens in one ubatch. In a plan, 0 means a whole batch (llama-context.cpp, `n_ubatch`).
fn n_ubatch(plan: &Plan) -> u32 {
    match plan.context.n_ubatch {
        0 => plan.context.n_batch,
        tokens => tokens,
    }
}

/// The name of a cache type in llama.cpp.
pub(crate) fn kv_type(ty: KvType) -> String {
    ty.to_string().to_ascii_lowercase()
}

/// The comment lines that come before the settings: the model, the GPUs, the plan, and the notes. Each line begins with
/// `mark`.
fn comment(mark: &str, plan: &Plan, notes: &[String]) -> String {
    let gpus: Vec<&str> = plan.gpus().map(|gpu| gpu.name.as_str()).collect();
    let place = match gpus.as_slice() {
        [] => "on the host".to_owned(),
        gpus => format!("{} of {} layers on {}", plan.n_gpu_layers, plan.layers(), gpus.join(", ")),
    };
    let first = format!("{}: {place}, as autoplace planned it", plan.model.name);
    let lines = [&first].into_iter().chain(notes);
    // Names come from files and drivers. If a name contains a line break, the text after the line break must not become
    // a setting.
    lines.map(|line| format!("{mark} {}\n", line.replace(char::is_control, " "))).collect()
}
