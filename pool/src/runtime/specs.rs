//! The specifications of a running pool are replaced. A model that is loaded stays loaded if one of the new
//! specifications describes the same load, so no model is loaded twice because its specification went and came back.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use autoplace::machine::folder;
use autoplace::store::PromptStore;

use super::state::{Entry, Shared, Source, State, Work};
use crate::error::Error;
use crate::spec::ModelSpec;
use crate::state::Limits;

/// A specification to set, with what was read for it without the lock.
struct New {
    spec: Arc<ModelSpec>,
    store: Option<PromptStore>,
    /// Its file without symbolic links.
    file: PathBuf,
}

/// A specification that the pool has, or that was removed and whose model is still loaded.
struct Known {
    spec: Arc<ModelSpec>,
    store: Option<PromptStore>,
    is_removed: bool,
}

impl Known {
    fn new(entry: &Entry) -> Self {
        let Source { spec, store } = entry.source();
        Self { spec, store, is_removed: entry.is_removed }
    }
}

impl Shared {
    pub(super) fn set_models(&self, models: Vec<ModelSpec>, limits: Limits) -> Result<(), Error> {
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let known: Vec<Known> = self.lock().entries.iter().map(Known::new).collect();
        let new = |spec: ModelSpec| -> Result<New, Error> {
            let is_present = known.iter().any(|known| !known.is_removed && *known.spec == spec);
            // The disk is asked only for what is new, because a folder on the network may take long.
            let file = if is_present { spec.model.clone() } else { without_links(&spec.model) };
            Ok(New { store: store(&spec, &known)?, file, spec: Arc::new(spec) })
        };
        let models = models.into_iter().map(new).collect::<Result<Vec<New>, Error>>()?;
        let now = self.now();
        self.change(|state| {
            state.limits = limits;
            state.replace_models(models, now);
            state.move_waiters(now);
        });
        Ok(())
    }
}

/// The path without symbolic links; the path itself if it cannot be read, if its folder does not answer, or if it is
/// the name of a model on a hub.
pub(super) fn without_links(path: &Path) -> PathBuf {
    let of = path.to_owned();
    folder::ask(folder_of(path), move || of.canonicalize()).unwrap_or_else(|_| path.to_owned())
}

/// The folder of a model's file.
pub(super) fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or(file)
}

/// The prompt store of a specification. A model whose other settings have changed keeps its store.
fn store(spec: &ModelSpec, known: &[Known]) -> Result<Option<PromptStore>, Error> {
    let Some(options) = &spec.prompt_store else { return Ok(None) };
    let is_same = |known: &&Known| known.spec.name == spec.name && known.spec.prompt_store == spec.prompt_store;
    if let Some(known) = known.iter().find(is_same) {
        return Ok(known.store.clone());
    }
    let store = PromptStore::open(options.clone()).map_err(|error| Error::Specification {
        name: spec.name.clone(),
        problem: format!("the folder of its prompt store cannot be used: {error}"),
    })?;
    Ok(Some(store))
}

impl State {
    /// Replaces the entries by those of the new models. Entries that no new model takes stay until they are unloaded.
    fn replace_models(&mut self, models: Vec<New>, now: Duration) {
        let mut before = std::mem::take(&mut self.entries);
        let mut taken: Vec<Option<Entry>> = models.iter().map(|_| None).collect();
        // All models choose by one rule before any model chooses by the next one. So none takes an entry that another
        // one has a better right to.
        let rules: [fn(&Entry, &New) -> bool; 4] = [
            |entry, new| !entry.is_removed && entry.spec == new.spec,
            |entry, new| !entry.is_removed && entry.spec.name == new.spec.name && entry.is_loaded_as(new),
            |entry, new| entry.spec.name == new.spec.name && entry.is_loaded_as(new),
            |entry, new| entry.is_loaded_as(new),
        ];
        for rule in rules {
            for (new, taken) in models.iter().zip(&mut taken).filter(|(_, taken)| taken.is_none()) {
                *taken = before.iter().position(|entry| rule(entry, new)).map(|at| before.remove(at));
            }
        }
        for (new, taken) in models.into_iter().zip(taken) {
            let entry = match taken {
                Some(entry) if !entry.is_removed && entry.spec == new.spec => entry,
                Some(entry) => entry.with_spec(new.spec),
                None => {
                    self.next_id += 1;
                    Entry::new(self.next_id, new.spec, new.store, now)
                }
            };
            self.entries.push(entry);
        }
        for mut entry in before {
            if !entry.is_removed {
                entry.is_removed = true;
                // Plans identify models by their names, and from now on another specification may have this name.
                entry.label = format!("{} (replaced, {})", entry.spec.name, entry.id);
            }
            // A removed model that is not loaded has nothing to wait for.
            if entry.loaded.is_some() || entry.work != Work::None {
                self.entries.push(entry);
            }
        }
    }

    /// Requests wait for the model that has their name now.
    fn move_waiters(&mut self, now: Duration) {
        let Self { entries, waiters, .. } = self;
        for waiter in waiters {
            let mut staying = entries.iter().filter(|entry| !entry.is_removed);
            if let Some(entry) = staying.find(|entry| entry.spec.is_named(&waiter.name)) {
                waiter.id = entry.id;
            }
            // What was decided about the request was decided with the former models and limits.
            waiter.not_before = now;
        }
    }
}

impl Entry {
    /// Whether the model is loaded, or being loaded, as the new specification describes. This holds for a model whose
    /// worker has died, too: its next text may start another worker.
    fn is_loaded_as(&self, new: &New) -> bool {
        let is_there = self.loaded.is_some() || self.work == Work::Loading;
        is_there && self.file.as_ref() == Some(&new.file) && self.spec.is_loaded_as(&new.spec)
    }

    /// The entry with another specification that describes the same load.
    fn with_spec(mut self, spec: Arc<ModelSpec>) -> Self {
        self.is_removed = false;
        self.label.clone_from(&spec.name);
        self.spec = spec;
        self
    }
}
