//! Which models this machine has: the folders of other tools flow in, models flow out. Nothing is written, and of a
//! model nothing is read but its first bytes until [`LocalModel::header`] is asked for; of one that is named as a shard
//! the header, which alone says whether it is one.

mod duplicates;
pub(crate) mod files;
mod ollama;
mod places;
mod walk;

use std::fmt;
use std::path::{Path, PathBuf};

use autoplace_planner::gguf::{self, Header};
use serde::{Serialize, Serializer};

use crate::choice::Contender;
pub use places::Environment;
use places::System;
use walk::Finder;

/// The models on this machine, and what looks like one and is none.
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
    /// By name. A file that is found by several paths (links, snapshots) is one model.
    pub models: Vec<LocalModel>,
    /// What was passed over, each with the reason.
    pub skipped: Vec<Skipped>,
}

/// A model in a file or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LocalModel {
    /// What its store calls it: `owner/name` of Hugging Face's cache and LM Studio, `name:tag` of Ollama, else the name
    /// of its file without the number of a shard and `.gguf`.
    pub name: String,
    /// The quantisation that its file's name has, in capitals; `None` where only the header knows.
    pub quant: Option<String>,
    /// The length of its files together, in bytes.
    pub bytes: u64,
    /// Its files in the order of the shards; at least one. The first is what is loaded.
    #[serde(serialize_with = "texts")]
    pub files: Vec<PathBuf>,
    /// Whose it is.
    pub store: Store,
    /// Where the same file is found as well: by links, or by another name of its store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Place>,
}

fn text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

/// A path that is no text is still one in JSON.
fn texts<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// Another way to the file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// Its name there.
    pub name: String,
    /// Whose it is.
    pub store: Store,
    /// Its first file.
    #[serde(serialize_with = "text")]
    pub path: PathBuf,
}

/// Whose folder a model is in.
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
    /// A folder that was named.
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

/// What was passed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", path.display())]
#[non_exhaustive]
pub struct Skipped {
    /// The file or folder.
    pub path: PathBuf,
    /// The reason.
    pub why: Why,
}

/// Why something is no model that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// A projector of images or sound, which goes beside a model: `mmproj` is in its name.
    Projector,
    /// A draft, which goes beside a model: its name begins with `mtp-`, `eagle3-`, `dflash-` or `dspark-`.
    Draft,
    /// An importance matrix: `imatrix` is in its name, and no quantisation.
    Imatrix,
    /// Shards of a split model are not there: their names.
    ShardsMissing(Vec<String>),
    /// A download that has not ended.
    HalfDownload,
    /// A part of a download whose whole file is there.
    Leftover,
    /// The first bytes, at most four, are not `GGUF`.
    NotGguf(Vec<u8>),
    /// The file that a link leads to is gone.
    BrokenLink,
    /// The system does not let this process read it: what it says.
    Unreadable(String),
    /// A manifest of Ollama that names no file: what is wrong with it.
    Manifest(String),
    /// What is deeper than this many folders, or beyond this many entries, is not looked at.
    TooMuch(usize),
}

impl Why {
    /// Whether somebody may want to do something about it; the others are just no models.
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
    /// The models in the stores of Hugging Face, llama.cpp, Ollama and LM Studio, where the variables and defaults of
    /// these tools have them. A store that is not there has no models.
    pub fn local() -> Self {
        Self::in_stores(&Environment::of_process())
    }

    /// As [`local`](Self::local), for another environment.
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

    /// The models in folders and in those below, to a depth of 16. A folder may be one of those stores, or in one.
    ///
    /// # Errors
    ///
    /// [`Skipped`] for a folder that is not there, is none, or cannot be read.
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

    /// Which models are the same in files of their own: their indices, two or more, in order. Equal are the header and
    /// a page (4 KiB) of each tensor, by hash; only models of one length are looked at. One that cannot be read is in
    /// no group: [`LocalModel::header`] says why.
    pub fn duplicates(&self) -> Vec<Vec<usize>> {
        duplicates::groups(&self.models)
    }
}

impl LocalModel {
    /// Reads its header, of all shards.
    ///
    /// # Errors
    ///
    /// Any [`gguf::Error`]: among others, [`gguf::Error::TensorOutside`] where the download is incomplete.
    pub fn header(&self) -> Result<Header, gguf::Error> {
        Header::open(&self.files[0])
    }

    /// It as one that may be chosen: reads its header.
    ///
    /// # Errors
    ///
    /// As [`header`](Self::header).
    pub fn contender(&self) -> Result<Contender, gguf::Error> {
        Ok(Contender::new(self.name.clone(), self.quant.clone(), self.header()?))
    }
}
