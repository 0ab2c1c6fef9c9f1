//! The file of a text that a worker has computed: written and read there.

use std::path::{self, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Request;
use crate::generate::error::Error;
use crate::generate::saved::SavedCache;
use crate::load::{LentWorker, Model};
use crate::worker::crossing::Outcome;

/// What a worker is asked for while it generates nothing.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheCall {
    Save(PathBuf),
    Restore(PathBuf),
}

/// Asks the model's worker, which may be in another folder than the application is by now.
pub(in crate::generate) fn ask(
    model: &Model,
    call: fn(PathBuf) -> CacheCall,
    path: &Path,
) -> Result<SavedCache, Error> {
    let path = path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut worker = LentWorker::take(model)?;
    let outcome: Outcome<SavedCache, Error> =
        worker.ask_any(&Request::Cache(call(path)), "saving or restoring a cache")?;
    outcome.into_result()
}

impl CacheCall {
    pub(crate) fn carry_out(self, model: &Model) -> Result<SavedCache, Error> {
        match self {
            Self::Save(path) => model.save_cache(path),
            Self::Restore(path) => model.restore_cache(path),
        }
    }
}
