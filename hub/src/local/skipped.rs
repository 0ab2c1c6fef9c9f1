//! Files and folders that a search of this machine skips, with the reasons.

use std::fmt;
use std::path::PathBuf;

/// A file or folder that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", path.display())]
#[non_exhaustive]
pub struct Skipped {
    /// The file or folder.
    pub path: PathBuf,
    /// The reason.
    pub why: SkipReason,
}

/// The reason why a file or folder is not a loadable model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// A projector for images or sound, used beside a model: its name contains `mmproj`.
    Projector,
    /// A draft, used beside a model: its name begins with `mtp-`, `eagle3-`, `dflash-` or `dspark-`.
    Draft,
    /// An importance matrix: its name contains `imatrix` and no quantisation.
    Imatrix,
    /// Missing shards of a split model, by name.
    ShardsMissing(Vec<String>),
    /// An unfinished download.
    PartialDownload,
    /// A part file of a finished download.
    Leftover,
    /// The first bytes, at most four, are not `GGUF`.
    NotGguf(Vec<u8>),
    /// The target of a link is missing.
    BrokenLink,
    /// The file cannot be read. The text is the system's message.
    Unreadable(String),
    /// An Ollama manifest that names no file. The text is its fault.
    Manifest(String),
    /// The search stopped at this many folder levels or this many entries.
    TooManyEntries(usize),
}

impl SkipReason {
    /// Whether a user may want to act on the reason. The other reasons are harmless.
    pub const fn is_problem(&self) -> bool {
        !matches!(self, Self::Projector | Self::Draft | Self::Imatrix)
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Projector => f.write_str("a projector (mmproj), which goes beside a model"),
            Self::Draft => f.write_str("a draft, which goes beside a model"),
            Self::Imatrix => f.write_str("an importance matrix, not a model"),
            Self::ShardsMissing(names) => match &names[..] {
                [first, .., last] => write!(f, "{} shards are missing, {first} to {last}", names.len()),
                names => write!(f, "the shard {} is missing", names.concat()),
            },
            Self::PartialDownload => f.write_str("a download that has not ended"),
            Self::Leftover => f.write_str("left over from a download whose whole file is there: it can be removed"),
            Self::NotGguf(begins) if begins.is_empty() => f.write_str("not a GGUF file: it is empty"),
            Self::NotGguf(begins) => {
                write!(f, "not a GGUF file: it begins with \"{}\", not \"GGUF\"", begins.escape_ascii())
            }
            Self::BrokenLink => f.write_str("a link to a file that is gone"),
            Self::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Self::Manifest(problem) => write!(f, "not the manifest of a model: {problem}"),
            Self::TooManyEntries(most) => {
                write!(f, "more than {most} entries or folders deep: the rest was not searched")
            }
        }
    }
}
