//! Finds models in folders. In: a folder with its links and subfolders. Out: models, under the names that their store
//! gives them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use autoplace_planner::gguf::Header;

use crate::group::{Group, group_where};

use super::files::{self, Id};
use super::{LocalModel, Models, Place, SkipReason, Skipped, Store};

/// Maximum depth of folders.
const MAX_DEPTH: usize = 16;

/// Maximum number of folder entries in all.
const MAX_ENTRIES: usize = 1 << 20;

/// Suffixes of unfinished downloads: huggingface_hub's (file_download.py, `_download_to_tmp_and_move`), llama.cpp's
/// (common/download.cpp, `common_download_file_single_online`), ours and browsers'.
const HALF: [&str; 5] = [".incomplete", ".downloadInProgress", ".part", ".partial", ".crdownload"];

/// The search and its results so far.
#[derive(Default)]
pub(super) struct Finder {
    found: Models,
    /// Index of each model, by its first file.
    files: HashMap<Id, usize>,
    folders: HashSet<Id>,
    entries: usize,
}

impl Finder {
    pub(super) fn finish(self) -> Models {
        let mut found = self.found;
        found.models.sort_by(|a, b| (&a.name, &a.quant, &a.files).cmp(&(&b.name, &b.quant, &b.files)));
        found
    }

    pub(super) fn skip(&mut self, path: impl Into<PathBuf>, why: SkipReason) {
        self.found.skipped.push(Skipped { path: path.into(), why });
    }

    /// Adds a model. If its first file is known already, the known model gets another place.
    pub(super) fn add(&mut self, name: String, quant: Option<String>, files: Vec<PathBuf>, store: Store) {
        let Some(first) = files.first() else { return };
        let (mut bytes, mut key) = (0_u64, None);
        for path in &files {
            let checked = files::look(path).and_then(|file| files::check(path, &file).map(|()| file));
            match checked {
                Ok(file) => {
                    bytes = bytes.saturating_add(file.len());
                    key = key.or_else(|| files::id(path, &file));
                }
                Err(why) => return self.skip(path, why),
            }
        }
        match key.map(|key| self.files.entry(key)) {
            Some(Entry::Occupied(known)) => {
                let known = &mut self.found.models[*known.get()];
                let is_known = (&known.name, known.store) == (&name, store)
                    || known.other_places.iter().any(|place| (&place.name, place.store) == (&name, store));
                if !is_known {
                    known.other_places.push(Place { name, store, path: first.clone() });
                }
                return;
            }
            Some(Entry::Vacant(entry)) => {
                entry.insert(self.found.models.len());
            }
            None => {}
        }
        self.found.models.push(LocalModel { name, quant, bytes, files, store, other_places: Vec::new() });
    }

    /// Finds all models in a folder and its subfolders. `repository` names the repository of a snapshot.
    pub(super) fn walk(&mut self, root: &Path, store: Store, repository: Option<&str>) {
        let mut left = vec![(root.to_owned(), 0)];
        while let Some((folder, depth)) = left.pop() {
            if !self.is_new(&folder) {
                continue;
            }
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(repository) = name.strip_prefix("models--")
                && folder.join("snapshots").is_dir()
            {
                self.repository(&folder, store, &repository.replace("--", "/"));
                continue;
            }
            let mut models = Vec::new();
            for (path, is_folder) in self.entries(&folder) {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if is_folder {
                    // A cache in Hugging Face's layout also has data sets, spaces and locks, which are skipped.
                    if file.starts_with("datasets--") || file.starts_with("spaces--") || file == ".locks" {
                        continue;
                    }
                    if depth < MAX_DEPTH {
                        left.push((path, depth + 1));
                    } else {
                        self.skip(path, SkipReason::TooManyEntries(MAX_DEPTH));
                    }
                } else if is_half(&file) {
                    self.half(path);
                } else {
                    models.push((format!("{name}/{file}"), path));
                }
            }
            for model in group_where(models, |path| is_whole(path)) {
                let name = match (repository, store) {
                    (Some(repository), _) => repository.to_owned(),
                    (None, Store::LmStudio) => in_lm_studio(root, &folder).unwrap_or_else(|| own_name(&model)),
                    (None, _) => own_name(&model),
                };
                let files: Vec<PathBuf> = model.files.into_iter().map(|(_, path)| path).collect();
                match model.why {
                    Some(why) => self.skip(files.first().unwrap_or(&folder), why),
                    None => self.add(name, model.quant, files, store),
                }
            }
        }
    }

    /// A repository in Hugging Face's cache (huggingface_hub, docs/source/en/guides/manage-cache.md). The snapshot of
    /// `main` comes first; files that other snapshots share with it count as one model.
    fn repository(&mut self, folder: &Path, store: Store, name: &str) {
        let store = if store == Store::Folder { Store::HuggingFace } else { store };
        let blobs = folder.join("blobs");
        for (path, _) in self.entries(&blobs) {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            // The names are `ETAG.incomplete`, `ETAG.RANDOM.incomplete` and `ETAG.autoplace.part`, and the blob's name
            // is their first part.
            let whole = file.split('.').next().map(|etag| blobs.join(etag)).filter(|_| is_half(&file));
            match whole {
                Some(whole) if whole.is_file() => self.skip(path, SkipReason::Leftover),
                Some(_) => self.half(path),
                None => {}
            }
        }
        let main = fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
        let mut snapshots = self.entries(&folder.join("snapshots"));
        snapshots.sort_by_key(|(path, _)| !path.ends_with(main.trim()));
        for (snapshot, _) in snapshots {
            self.walk(&snapshot, store, Some(name));
        }
    }

    /// Notes an unfinished download of a GGUF file.
    fn half(&mut self, path: PathBuf) {
        let begins = files::look(&path).and_then(|file| files::check(&path, &file));
        if begins.is_ok() {
            self.skip(path, SkipReason::PartialDownload);
        }
    }

    /// Whether a folder exists and has not been visited yet, by any path. Links may lead back to a folder above.
    fn is_new(&mut self, folder: &Path) -> bool {
        let Some(metadata) = self.of_folder(folder, fs::metadata(folder)) else { return false };
        files::id(folder, &metadata).is_some_and(|id| self.folders.insert(id))
    }

    /// The result of reading a folder; `None` after an error. Errors are noted, except for a missing folder.
    fn of_folder<T>(&mut self, folder: &Path, read: io::Result<T>) -> Option<T> {
        let read = read.inspect_err(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                self.skip(folder, files::unreadable(error));
            }
        });
        read.ok()
    }

    /// The subfolders (links to folders included) and possible model files of a folder, in order. A missing folder has
    /// none.
    pub(super) fn entries(&mut self, folder: &Path) -> Vec<(PathBuf, bool)> {
        let Some(entries) = self.of_folder(folder, fs::read_dir(folder)) else { return Vec::new() };
        let mut found = Vec::new();
        for entry in entries {
            if self.entries == MAX_ENTRIES {
                self.skip(folder, SkipReason::TooManyEntries(MAX_ENTRIES));
                break;
            }
            self.entries += 1;
            match entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))) {
                Ok((path, kind)) => {
                    let is_folder = kind.is_dir() || kind.is_symlink() && path.is_dir();
                    found.push((path, is_folder));
                }
                Err(error) => self.skip(folder, files::unreadable(&error)),
            }
        }
        found.sort();
        found
    }
}

/// Whether a file named as a shard is a whole model. Its header decides that, not its name.
fn is_whole(path: &Path) -> bool {
    Header::open(path).is_ok_and(|header| header.shards().len() == 1)
}

fn is_half(name: &str) -> bool {
    HALF.iter().any(|end| name.ends_with(end))
}

/// The name `publisher/model`, by LM Studio's structure of folders.
fn in_lm_studio(root: &Path, folder: &Path) -> Option<String> {
    let mut parts = folder.strip_prefix(root).ok()?.iter().map(|part| part.to_string_lossy());
    Some(format!("{}/{}", parts.next()?, parts.next()?))
}

fn own_name<T>(model: &Group<T>) -> String {
    model.stem.rsplit('/').next().unwrap_or(&model.stem).to_owned()
}
