//! Finds the models on this machine: the folders of other tools flow in, models flow out. Nothing is written. Only a
//! model's first bytes are read before [`LocalModel::header`] is called. A file named as a shard is an exception: only
//! its header says whether it is a shard.

mod duplicates;
pub(crate) mod files;
mod ollama;
mod places;
mod walk;

use std::fmt;
use std::path::{Path, PathBuf};

use autoplace_planner::gguf::{self, Header};
use serde::{Serialize, Serializer};

use crate::choice::PlannedFile;
pub use places::Environment;
use places::System;
use walk::Finder;

/// The models on this machine, and the files that look like models but are not.
///
/// ```no_run
/// let models = autoplace_hub::Models::local();
/// for model in &models.models {
///     println!("{} {} bytes in {}", model.name, model.bytes, model.files[0].display());
/// }
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Models {
    /// Sorted by name. A file with several paths (links, snapshots) is one model.
    pub models: Vec<LocalModel>,
    /// Files and folders that were skipped, with the reasons.
    pub skipped: Vec<Skipped>,
}

/// A model in one or more files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LocalModel {
    /// The store's name for the model: `owner/name` in Hugging Face's cache and LM Studio, `name:tag` in Ollama,
    /// otherwise the file name without shard number and `.gguf`.
    pub name: String,
    /// The quantisation in the file's name, in capitals; `None` if only the header tells.
    pub quant: Option<String>,
    /// The total length of the files in bytes.
    pub bytes: u64,
    /// The files in shard order; at least one. Loading takes the first.
    #[serde(serialize_with = "texts")]
    pub files: Vec<PathBuf>,
    /// The store that holds the model.
    pub store: Store,
    /// Other paths of the same file: links, or other names in a store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Place>,
}

fn text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

/// Serializes paths as text; invalid Unicode is replaced.
fn texts<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// Another path of a model's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// The model's name there.
    pub name: String,
    /// The store that holds it.
    pub store: Store,
    /// The first file.
    #[serde(serialize_with = "text")]
    pub path: PathBuf,
}

/// The tool that owns a model's folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Store {
    /// Hugging Face's cache, which llama.cpp uses too.
    HuggingFace,
    /// llama.cpp's own cache.
    LlamaCpp,
    /// Ollama's manifests and blobs.
    Ollama,
    /// LM Studio's folder of models.
    LmStudio,
    /// A folder that the caller named.
    Folder,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::HuggingFace => "Hugging Face",
            Self::LlamaCpp => "llama.cpp",
            Self::Ollama => "Ollama",
            Self::LmStudio => "LM Studio",
            Self::Folder => "folder",
        })
    }
}

/// A file or folder that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", path.display())]
#[non_exhaustive]
pub struct Skipped {
    /// The file or folder.
    pub path: PathBuf,
    /// The reason.
    pub why: Why,
}

/// Why a file or folder is not a loadable model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// A projector for images or sound, used beside a model: its name contains `mmproj`.
    Projector,
    /// A draft, used beside a model: its name begins with `mtp-`, `eagle3-`, `dflash-` or `dspark-`.
    Draft,
    /// An importance matrix: its name contains `imatrix` and no quantisation.
    Imatrix,
    /// Missing shards of a split model, by name.
    ShardsMissing(Vec<String>),
    /// An unfinished download.
    HalfDownload,
    /// A part file of a finished download.
    Leftover,
    /// The first bytes, at most four, are not `GGUF`.
    NotGguf(Vec<u8>),
    /// The target of a link is missing.
    BrokenLink,
    /// The system refuses to read the file; the system's message.
    Unreadable(String),
    /// An Ollama manifest that names no file; its fault.
    Manifest(String),
    /// The search stopped at this many folder levels or this many entries.
    TooMuch(usize),
}

impl Why {
    /// Whether somebody may want to act on it. The other reasons are harmless.
    pub const fn is_problem(&self) -> bool {
        !matches!(self, Self::Projector | Self::Draft | Self::Imatrix)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Projector => f.write_str("a projector (mmproj), which goes beside a model"),
            Self::Draft => f.write_str("a draft, which goes beside a model"),
            Self::Imatrix => f.write_str("an importance matrix, no model"),
            Self::ShardsMissing(names) => match &names[..] {
                [first, .., last] => write!(f, "{} shards are missing, {first} to {last}", names.len()),
                names => write!(f, "the shard {} is missing", names.concat()),
            },
            Self::HalfDownload => f.write_str("a download that has not ended"),
            Self::Leftover => f.write_str("left over from a download whose whole file is there: it can be removed"),
            Self::NotGguf(begins) if begins.is_empty() => f.write_str("not a GGUF file: it is empty"),
            Self::NotGguf(begins) => {
                write!(f, "not a GGUF file: it begins with \"{}\", not \"GGUF\"", begins.escape_ascii())
            }
            Self::BrokenLink => f.write_str("a link to a file that is gone"),
            Self::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Self::Manifest(problem) => write!(f, "no manifest of a model: {problem}"),
            Self::TooMuch(most) => write!(f, "more than {most} entries or folders deep: the rest was not looked at"),
        }
    }
}

impl Models {
    /// The models in the stores of Hugging Face, llama.cpp, Ollama and LM Studio, found by these tools' variables and
    /// default folders. A missing store has no models.
    pub fn local() -> Self {
        Self::in_stores(&Environment::of_process())
    }

    /// Like [`local`](Self::local), for another environment.
    pub fn in_stores(environment: &Environment) -> Self {
        let mut finder = Finder::default();
        for (store, folder) in environment.places(System::HERE) {
            match store {
                Store::Ollama => ollama::find(&mut finder, &folder),
                store => finder.walk(&folder, store, None),
            }
        }
        finder.finish()
    }

    /// The models in these folders and their subfolders, to a depth of 16. A folder may be one of the stores or inside
    /// one.
    ///
    /// # Errors
    ///
    /// [`Skipped`] if a folder is missing, is not a folder, or cannot be read.
    pub fn in_folders(folders: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self, Skipped> {
        let mut finder = Finder::default();
        for folder in folders {
            let folder = folder.as_ref();
            std::fs::read_dir(folder)
                .map_err(|error| Skipped { path: folder.to_owned(), why: Why::Unreadable(error.to_string()) })?;
            if ollama::is_store(folder) {
                ollama::find(&mut finder, folder);
            } else {
                finder.walk(folder, Store::Folder, None);
            }
        }
        Ok(finder.finish())
    }

    /// Groups of equal models in different files: their indices, two or more, in order. Models are equal if the hashes
    /// of their headers and of a page (4 KiB) of each tensor are equal. Only models of the same length are compared. An
    /// unreadable model is in no group; [`LocalModel::header`] says why.
    pub fn duplicates(&self) -> Vec<Vec<usize>> {
        duplicates::groups(&self.models)
    }
}

impl LocalModel {
    /// Reads the header from all shards.
    ///
    /// # Errors
    ///
    /// Any [`gguf::Error`], for example [`gguf::Error::TensorOutside`] for an incomplete download.
    pub fn header(&self) -> Result<Header, gguf::Error> {
        Header::open(&self.files[0])
    }

    /// Reads the header and makes a file of the model.
    ///
    /// # Errors
    ///
    /// Those of [`header`](Self::header).
    pub fn planned_file(&self) -> Result<PlannedFile, gguf::Error> {
        Ok(PlannedFile::new(self.name.clone(), self.quant.clone(), self.header()?))
    }
}
