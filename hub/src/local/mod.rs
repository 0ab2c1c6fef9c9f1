//! Finds the models on this machine. In: the folders of other tools. Out: models. Nothing is written. Only a model's
//! first bytes are read before [`LocalModel::header`] is called, except for a file that is named like a shard: its
//! header is read, because only that says whether it is a shard.

mod duplicates;
pub(crate) mod files;
mod model;
mod ollama;
mod places;
mod skipped;
mod walk;

use std::path::Path;

pub use model::{LocalModel, Models, Place, Store};
pub use places::Environment;
pub use skipped::{SkipReason, Skipped};

use places::System;
use walk::Finder;

impl Models {
    /// The models in the stores of Hugging Face, llama.cpp, Ollama and LM Studio, found by these tools' variables and
    /// default folders. A missing store has no models.
    pub fn local() -> Self {
        Self::in_stores(&Environment::from_process())
    }

    /// Like [`local`](Self::local), but for another environment.
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
                .map_err(|error| Skipped { path: folder.to_owned(), why: SkipReason::Unreadable(error.to_string()) })?;
            if ollama::is_store(folder) {
                ollama::find(&mut finder, folder);
            } else {
                finder.walk(folder, Store::Folder, None);
            }
        }
        Ok(finder.finish())
    }

    /// Groups of equal models in different files. Each group has the indices of two or more models, in order. Models
    /// are equal if the hashes of their headers and of a page (4 KiB) of each tensor are equal. Only models of the same
    /// length are compared. An unreadable model is in no group; [`LocalModel::header`] says why.
    pub fn duplicates(&self) -> Vec<Vec<usize>> {
        duplicates::groups(&self.models)
    }
}
