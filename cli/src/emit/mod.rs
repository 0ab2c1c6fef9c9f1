//! A plan in the words of another tool: flags, settings or code that place the model as the plan does.
//!
//! What a tool cannot be told is never left out in silence. Where the result would be another placement it is an
//! [`EmitError`]; where it is a detail, a comment in the output says so.

mod command;
#[cfg(test)]
mod flags;
mod koboldcpp;
mod llama_cpp;
mod llama_cpp_2;
mod lm_studio;
mod ollama;

use std::fmt;
use std::str::FromStr;

use autoplace::memory::backend::Family;
use autoplace::memory::{KvType, Place, TensorOverride};

use autoplace::plan::Plan;

/// A tool that runs models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Tool {
    /// llama.cpp's own server: a command line of `llama-server`.
    LlamaCpp,
    /// Ollama: a Modelfile.
    Ollama,
    /// LM Studio: the load configuration of its SDKs and REST interface, as JSON.
    LmStudio,
    /// `KoboldCpp`: a command line.
    KoboldCpp,
    /// The crate llama-cpp-2: Rust that builds its parameters.
    LlamaCpp2,
}

impl Tool {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [Self::LlamaCpp, Self::Ollama, Self::LmStudio, Self::KoboldCpp, Self::LlamaCpp2];

    /// Its name, as [`FromStr`] takes it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::Ollama => "ollama",
            Self::LmStudio => "lm-studio",
            Self::KoboldCpp => "koboldcpp",
            Self::LlamaCpp2 => "llama-cpp-2",
        }
    }

    /// Whether it makes room for the logits of every token of a batch, as llama.cpp does unless told otherwise, and not
    /// of one per sequence. A plan for it is best made with `n_outputs_max` 0.
    pub(crate) const fn keeps_all_logits(self) -> bool {
        // llama-server, which Ollama runs too, asks for one per sequence (server_output_limits).
        !matches!(self, Self::LlamaCpp | Self::Ollama)
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no tool that a plan can be told to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no known tool: there are llama.cpp, ollama, lm-studio, koboldcpp and llama-cpp-2")]
pub(crate) struct ToolError {
    text: String,
}

impl FromStr for Tool {
    type Err = ToolError;

    fn from_str(text: &str) -> Result<Self, ToolError> {
        let mut all = Self::ALL.into_iter();
        all.find(|tool| tool.name().eq_ignore_ascii_case(text)).ok_or_else(|| ToolError { text: text.to_owned() })
    }
}

/// A plan that a tool cannot be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EmitError {
    /// The model is of no file, and every tool loads one.
    #[error("{tool} loads a file, and the plan's model `{model}` is of none")]
    NoFile {
        /// The tool.
        tool: Tool,
        /// The model's name.
        model: String,
    },
    /// The path of the model cannot be written in the tool's language.
    #[error("{tool} cannot be given the path {path}: {reason}")]
    Path {
        /// The tool.
        tool: Tool,
        /// The path, escaped.
        path: String,
        /// Why not.
        reason: &'static str,
    },
    /// The tool has no setting for a part of the plan, and without it the model would be placed otherwise.
    #[error("{tool} cannot be told {what}")]
    Inexpressible {
        /// The tool.
        tool: Tool,
        /// The part of the plan.
        what: String,
    },
}

/// The plan in the words of another tool, as a text of whole lines. The same plan always gives the same text.
///
/// # Errors
///
/// [`EmitError`] where the tool cannot be told the plan: the model is of no file, or the tool has no setting for a part
/// of the plan that decides where the model goes.
pub(crate) fn emit(plan: &Plan, tool: Tool) -> Result<String, EmitError> {
    let cannot = |what: &str| EmitError::Inexpressible { tool, what: what.to_owned() };
    if plan.context.embeddings.is_some() && tool != Tool::LlamaCpp {
        return Err(cannot("a context for embeddings"));
    }
    if plan.context.mtp && tool != Tool::LlamaCpp {
        return Err(cannot("to predict further tokens"));
    }
    match tool {
        Tool::LlamaCpp => llama_cpp::emit(plan),
        Tool::Ollama => ollama::emit(plan),
        Tool::LmStudio => lm_studio::emit(plan),
        Tool::KoboldCpp => koboldcpp::emit(plan),
        Tool::LlamaCpp2 => llama_cpp_2::emit(plan),
    }
}

/// The path of the model's file, which every tool takes as text.
fn model_path(plan: &Plan, tool: Tool) -> Result<&str, EmitError> {
    let Some(path) = &plan.model.path else {
        return Err(EmitError::NoFile { tool, model: plan.model.name.clone() });
    };
    let refused = |reason| EmitError::Path { tool, path: format!("{path:?}"), reason };
    match path.to_str() {
        None => Err(refused("it is not UTF-8")),
        Some(path) if path.contains('\0') => Err(refused("it holds a NUL")),
        Some(path) => Ok(path),
    }
}

/// The names of the plan's GPUs in ggml, in the plan's order; `None` where one is hypothetical.
fn devices(plan: &Plan) -> Option<Vec<&str>> {
    plan.gpus().map(|gpu| gpu.device.as_deref()).collect()
}

/// Whether the file is mapped: as the load does it, never for Metal (`ContextParams::load_mode`).
fn mapped(plan: &Plan) -> bool {
    let metal = plan.gpus().any(|gpu| Family::of(&gpu.backend) == Family::Metal);
    plan.context.mmap && !metal
}

/// `-ot` of llama.cpp's programs: `pattern=buffer type`, several with commas between. `None` where the plan has none.
fn override_tensor(plan: &Plan, tool: Tool) -> Result<Option<String>, EmitError> {
    let one = |rule: &TensorOverride| {
        let cannot = |reason: &str| EmitError::Inexpressible {
            tool,
            what: format!("the tensor override `{}`: {reason}", rule.pattern),
        };
        // The value is cut at commas and then at its first equals sign (common/arg.cpp, parse_tensor_buffer_overrides).
        if rule.pattern.contains([',', '=']) {
            return Err(cannot("its flag ends a pattern at `,` and `=`"));
        }
        let buffer_type = match rule.place {
            Place::Host => "CPU",
            Place::Gpu(index) => {
                let gpu = plan.gpus().nth(index);
                let gpu = gpu.ok_or_else(|| cannot("the plan has no such GPU"))?;
                // Metal's is not named after its device alone (ggml-metal.cpp, "_Private" and "_Mapped").
                match &gpu.device {
                    Some(device) if Family::of(&gpu.backend) != Family::Metal => device,
                    _ => return Err(cannot("the buffer type of its GPU is not known")),
                }
            }
        };
        Ok(format!("{}={buffer_type}", rule.pattern))
    };
    if plan.overrides.is_empty() {
        return Ok(None);
    }
    let all: Vec<String> = plan.overrides.iter().map(one).collect::<Result<_, _>>()?;
    Ok(Some(all.join(",")))
}

/// The proportions of layers per GPU.
fn tensor_split(plan: &Plan, separator: &str) -> Option<String> {
    let all: Vec<String> = plan.tensor_split.iter().map(f32::to_string).collect();
    (!all.is_empty()).then(|| all.join(separator))
}

/// The tokens that are computed at once, where 0 stands for a whole batch (llama-context.cpp, `n_ubatch`).
fn n_ubatch(plan: &Plan) -> u32 {
    match plan.context.n_ubatch {
        0 => plan.context.n_batch,
        tokens => tokens,
    }
}

/// llama.cpp's name of a cache type.
fn kv_type(ty: KvType) -> String {
    ty.to_string().to_ascii_lowercase()
}

/// What is told before the settings, a line each: the model, the GPUs and what was planned, then the notes.
fn comment(prefix: &str, plan: &Plan, notes: &[String]) -> String {
    let gpus: Vec<&str> = plan.gpus().map(|gpu| gpu.name.as_str()).collect();
    let place = if gpus.is_empty() {
        "on the host".to_owned()
    } else {
        let layers = plan.layers();
        let on = gpus.join(", ");
        format!("{} of {layers} layers on {on}", plan.n_gpu_layers)
    };
    let first = format!("{}: {place}, as autoplace planned it", plan.model.name);
    let lines = [&first].into_iter().chain(notes);
    // Names come from files and drivers: one with a line break must not become a setting.
    lines.map(|line| format!("{prefix} {}\n", line.replace(char::is_control, " "))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{EmitError, Tool, comment, emit};
    use crate::test_plan::plan;
    use autoplace::memory::{Place, TensorOverride};

    #[test]
    fn every_tool_is_found_by_its_name_and_no_other_is() {
        for tool in Tool::ALL {
            assert_eq!(tool.to_string().parse(), Ok(tool));
        }
        let error = "vllm".parse::<Tool>().unwrap_err();
        assert!(error.to_string().starts_with("`vllm` is no known tool"));
    }

    #[test]
    fn a_model_of_no_file_and_a_path_that_is_no_text_are_refused_by_all() {
        for tool in Tool::ALL {
            let mut plan = plan();
            plan.model.path = Some(PathBuf::from("a\0b"));
            assert!(matches!(emit(&plan, tool), Err(EmitError::Path { .. })));
            plan.model.path = None;
            assert!(matches!(emit(&plan, tool), Err(EmitError::NoFile { .. })));
        }
    }

    #[test]
    fn the_same_plan_gives_the_same_text_in_whole_lines() {
        for tool in Tool::ALL {
            let text = emit(&plan(), tool).unwrap();
            assert!(text.ends_with('\n'), "{tool}: {text}");
            assert_eq!(emit(&plan(), tool), Ok(text));
        }
    }

    #[test]
    fn a_name_cannot_end_its_comment() {
        let mut plan = plan();
        plan.model.name = "a\nrm -rf /".to_owned();
        plan.placements[0].name = "b\r\nc".to_owned();
        assert_eq!(comment("#", &plan, &[]).lines().count(), 1);
        for tool in Tool::ALL {
            let text = emit(&plan, tool).unwrap();
            assert!(!text.contains("\nrm"), "{tool}: {text}");
        }
    }

    #[test]
    fn an_override_that_the_flag_would_cut_is_refused() {
        let mut plan = plan();
        for pattern in ["a{1,2}", "a=b"] {
            plan.overrides = vec![TensorOverride::new(pattern, Place::Host)];
            for tool in [Tool::LlamaCpp, Tool::KoboldCpp, Tool::Ollama] {
                let error = emit(&plan, tool).unwrap_err();
                assert!(error.to_string().contains(pattern), "{tool}: {error}");
            }
        }
    }
}
