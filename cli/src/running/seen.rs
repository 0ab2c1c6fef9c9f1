//! The known programs that run models, and the facts about one that runs.

use std::fmt;
use std::path::PathBuf;

use crate::flags::Flags;

/// A known program that runs models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    LlamaServer,
    Ollama,
    LmStudio,
    KoboldCpp,
}

/// Writes the program's common name.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LlamaServer => "llama-server",
            Self::Ollama => "Ollama",
            Self::LmStudio => "LM Studio",
            Self::KoboldCpp => "KoboldCpp",
        })
    }
}

/// The facts about a running program and its model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Seen {
    /// The program's name of the model, if it does not report the file.
    pub(crate) name: Option<String>,
    /// The program's version, if it reports one.
    pub(crate) version: Option<String>,
    /// The model's file.
    pub(crate) model: Option<PathBuf>,
    /// The flags that affect placement.
    pub(crate) flags: Flags,
    /// The number of sequences, if there are several, and whether each may use the whole context.
    pub(crate) sequences: Option<(u32, bool)>,
    /// Bytes of the model on GPUs, and in total.
    pub(crate) on_gpus: Option<(u64, u64)>,
    /// Tokens per second, now or in the last answer.
    pub(crate) speed: Option<f64>,
    /// Reasons not to compare its placement with a plan: settings that no plan has.
    pub(crate) unlike: Vec<String>,
    /// Facts that could not be found out.
    pub(crate) notes: Vec<String>,
}

/// The file name in a path of any system.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}
