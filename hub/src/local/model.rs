//! The results of a search of this machine: models, and the stores that hold them.

use std::fmt;
use std::path::{Path, PathBuf};

use autoplace_planner::gguf::{self, Header};
use serde::{Serialize, Serializer};

use crate::choice::PlannedFile;

use super::skipped::Skipped;

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
    /// The quantisation in the file's name, in capitals; `None` if the name has none.
    pub quant: Option<String>,
    /// The total length of the files in bytes.
    pub bytes: u64,
    /// The files in shard order; at least one. A load takes the first one.
    #[serde(serialize_with = "texts")]
    pub files: Vec<PathBuf>,
    /// The store that holds the model.
    pub store: Store,
    /// Other paths of the same file: links, or other names in a store.
    #[serde(rename = "also", skip_serializing_if = "Vec::is_empty")]
    pub other_places: Vec<Place>,
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
    /// The store that holds the file.
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

impl LocalModel {
    /// Reads the header from all shards.
    ///
    /// # Errors
    ///
    /// Any [`gguf::Error`], for example [`gguf::Error::TensorOutside`] for an incomplete download.
    pub fn header(&self) -> Result<Header, gguf::Error> {
        Header::open(&self.files[0])
    }

    /// Reads the header, and returns the model as a file to choose.
    ///
    /// # Errors
    ///
    /// The errors of [`header`](Self::header).
    pub fn planned_file(&self) -> Result<PlannedFile, gguf::Error> {
        Ok(PlannedFile::new(self.name.clone(), self.quant.clone(), self.header()?))
    }
}
