//! Files and folders that a search of this machine skips, each with the reason.

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

/// The reason why a file or folder cannot be loaded as a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// A projector for images or sound, which is loaded together with a model. The file's name contains `mmproj`.
    Projector,
    /// A draft model, which is loaded together with another model. The file's name begins with `mtp-`, `eagle3-`,
    /// `dflash-` or `dspark-`.
    Draft,
    /// An importance matrix. The file's name contains `imatrix` and no quantisation.
    Imatrix,
    /// Some shards of a split model are missing. These are their names.
    ShardsMissing(Vec<String>),
    /// A download that is not finished.
    PartialDownload,
    /// A part file whose download was finished.
    Leftover,
    /// The first bytes are not `GGUF`. These are at most four of them.
    NotGguf(Vec<u8>),
    /// A link to a file that does not exist.
    BrokenLink,
    /// The file cannot be read. The text is the system's message.
    Unreadable(String),
    /// A manifest of Ollama that does not lead to a file. The text says what is wrong with it.
    Manifest(String),
    /// The search has stopped, because there are more levels of folders or more entries than this number.
    TooManyEntries(usize),
}

impl SkipReason {
    /// Whether the reason is one about which a user may want to do something. The other reasons are harmless.
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
