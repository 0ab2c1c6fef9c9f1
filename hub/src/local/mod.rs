//! Finds the models on this machine. In: the folders in which other tools keep models. Out: models. Nothing is written.
//! Before [`LocalModel::header`] is called, only a model's first bytes are read. But if a file is named like a shard,
//! its header is read, because only the header says whether it is a shard.

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
    /// The models in the stores of Hugging Face, llama.cpp, Ollama and LM Studio. The stores are found through the
    /// environment variables and the default folders of these tools. If there is no such store, it has no models.
    pub fn local() -> Self {
        Self::in_stores(&Environment::from_process())
    }

    /// Like [`local`](Self::local), but with the variables of another environment.
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

    /// The models in these folders and in their subfolders, at most 16 levels deep. A folder may be one of the stores,
    /// or lie in one.
    ///
    /// # Errors
    ///
    /// [`Skipped`] if there is no such folder, if it is not a folder, or if it cannot be read.
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

    /// Groups of models that are equal but lie in different files. A group consists of the indices of two or more
    /// models, in ascending order. Models are equal if a hash of the header and of the first page (4 KiB) of each
    /// tensor is the same. Only models of the same length are compared. If a model cannot be read, it is in no group;
    /// [`LocalModel::header`] then returns the reason.
    pub fn duplicates(&self) -> Vec<Vec<usize>> {
        duplicates::groups(&self.models)
    }
}
