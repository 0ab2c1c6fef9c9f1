//! The results of a search of this machine: models, and the stores in which they are.

use std::fmt;
use std::path::{Path, PathBuf};

use autoplace_planner::gguf::{self, Header};
use serde::{Serialize, Serializer};

use crate::choice::PlannedFile;

use super::skipped::Skipped;

/// The models on this machine, and files that look like models but are not.
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
    /// The models, sorted by name. If a file has several paths (links, snapshots), it is one model.
    pub models: Vec<LocalModel>,
    /// Files and folders that were skipped, each with the reason.
    pub skipped: Vec<Skipped>,
}

/// A model, which consists of one or more files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LocalModel {
    /// The name that the store gives to the model: `owner/name` in Hugging Face's cache and in LM Studio, `name:tag` in
    /// Ollama. In other places it is the file's name, without the number of the shard and without `.gguf`.
    pub name: String,
    /// The quantisation in the name of the file, in capitals; `None` if there is none.
    pub quant: Option<String>,
    /// The length of all files together, in bytes.
    pub bytes: u64,
    /// The files in the order of the shards. There is at least one. To load the model, pass the first one.
    #[serde(serialize_with = "texts")]
    pub files: Vec<PathBuf>,
    /// The store in which the model is.
    pub store: Store,
    /// Other paths to the same file: links, or other names in a store.
    #[serde(rename = "also", skip_serializing_if = "Vec::is_empty")]
    pub other_places: Vec<Place>,
}

fn text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

/// Serializes paths as texts. Invalid Unicode is replaced.
fn texts<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

/// Another path to a model's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Place {
    /// The name that the model has there.
    pub name: String,
    /// The store in which this path is.
    pub store: Store,
    /// The path of the first file.
    #[serde(serialize_with = "text")]
    pub path: PathBuf,
}

/// The tool to which a model's folder belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Store {
    /// Hugging Face's cache. llama.cpp uses it too.
    HuggingFace,
    /// llama.cpp's own cache.
    LlamaCpp,
    /// Ollama's store of manifests and blobs.
    Ollama,
    /// LM Studio's folder with models.
    LmStudio,
    /// A folder that the caller has named.
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
    /// Reads the header of the model, from all of its shards.
    ///
    /// # Errors
    ///
    /// Any [`gguf::Error`]. For example, [`gguf::Error::TensorOutside`] means that a download is not complete.
    pub fn header(&self) -> Result<Header, gguf::Error> {
        Header::open(&self.files[0])
    }

    /// Reads the header, and returns the model as a file that can be chosen.
    ///
    /// # Errors
    ///
    /// The errors of [`header`](Self::header).
    pub fn planned_file(&self) -> Result<PlannedFile, gguf::Error> {
        Ok(PlannedFile::new(self.name.clone(), self.quant.clone(), self.header()?))
    }
}
