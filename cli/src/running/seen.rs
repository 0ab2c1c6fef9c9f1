//! The known programs that run models, and facts about a program that is running.

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

/// Writes the name by which people know the program.
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

/// The facts about a running program and about its model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Seen {
    /// The name that the program uses for the model, if it does not report the file.
    pub(crate) name: Option<String>,
    /// The program's version, if it reports one.
    pub(crate) version: Option<String>,
    /// The model's file.
    pub(crate) model: Option<PathBuf>,
    /// The flags that affect placement.
    pub(crate) flags: Flags,
    /// The number of sequences, if there is more than one, and whether each of them may use the whole context.
    pub(crate) sequences: Option<(u32, bool)>,
    /// The model's bytes on GPUs, and its bytes in total.
    pub(crate) on_gpus: Option<(u64, u64)>,
    /// Tokens per second, now or during the last answer.
    pub(crate) speed: Option<f64>,
    /// Reasons why the placement cannot be compared with a plan: settings that a plan does not have.
    pub(crate) unlike: Vec<String>,
    /// Facts that could not be found out.
    pub(crate) notes: Vec<String>,
}

/// The file's name in a path, whatever system the path comes from.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}
