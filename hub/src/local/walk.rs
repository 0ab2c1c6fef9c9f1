//! Finds models in folders. In: a folder, with its links and subfolders. Out: models, with the names that their store
//! gives to them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use autoplace_planner::gguf::Header;

use crate::group::{Group, group_where};

use super::files::{self, Id};
use super::{LocalModel, Models, Place, SkipReason, Skipped, Store};

/// Maximum number of levels of folders.
const MAX_DEPTH: usize = 16;

/// Maximum number of entries in all folders together.
const MAX_ENTRIES: usize = 1 << 20;

/// Folders of Hugging Face's cache in which no models are (huggingface_hub, file_download.py).
const OF_THE_CACHE: [&str; 2] = [".locks", ".no_exist"];

/// The endings of downloads that are not finished: those of huggingface_hub (file_download.py,
/// `_download_to_tmp_and_move`), of llama.cpp (common/download.cpp, `common_download_file_single_online`), of this
/// library and of browsers.
const HALF: [&str; 5] = [".incomplete", ".downloadInProgress", ".part", ".partial", ".crdownload"];

/// The search, and what it has found so far.
#[derive(Default)]
pub(super) struct Finder {
    found: Models,
    /// The index of each model, by the identity of its first file.
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

    /// Adds a model. If a model with the same first file was already found, that model gets another place.
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

    /// Finds all models in a folder and its subfolders. If the folder is a snapshot, `repository` is the name of its
    /// repository.
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
                    // A cache with Hugging Face's layout contains data sets, spaces and locks too, and empty files that
                    // stand for files which a repository lacks. They are skipped.
                    if file.starts_with("datasets--") || file.starts_with("spaces--") || OF_THE_CACHE.contains(&&*file)
                    {
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
    /// `main` comes first. If other snapshots have the same file, it is still one model.
    fn repository(&mut self, folder: &Path, store: Store, name: &str) {
        let store = if store == Store::Folder { Store::HuggingFace } else { store };
        let blobs = folder.join("blobs");
        for (path, _) in self.entries(&blobs) {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            // The names are `ETAG.incomplete`, `ETAG.RANDOM.incomplete` and `ETAG.autoplace.part`. Their first part is
            // the name of the blob.
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

    /// Records that the download of a GGUF file is not finished.
    fn half(&mut self, path: PathBuf) {
        let begins = files::look(&path).and_then(|file| files::check(&path, &file));
        if begins.is_ok() {
            self.skip(path, SkipReason::PartialDownload);
        }
    }

    /// Whether a folder exists, and was not visited before through any path. A link may lead back to a folder further
    /// up.
    fn is_new(&mut self, folder: &Path) -> bool {
        let Some(metadata) = self.of_folder(folder, fs::metadata(folder)) else { return false };
        files::id(folder, &metadata).is_some_and(|id| self.folders.insert(id))
    }

    /// The result of reading a folder; `None` if there was an error. Errors are recorded, except if there is no such
    /// folder.
    fn of_folder<T>(&mut self, folder: &Path, read: io::Result<T>) -> Option<T> {
        let read = read.inspect_err(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                self.skip(folder, files::unreadable(error));
            }
        });
        read.ok()
    }

    /// The subfolders of a folder (including links to folders) and the files that may be models, sorted. If there is no
    /// such folder, the list is empty.
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

/// Whether a file that is named like a shard is a whole model. Its header decides this, and not its name.
fn is_whole(path: &Path) -> bool {
    Header::open(path).is_ok_and(|header| header.shards().len() == 1)
}

fn is_half(name: &str) -> bool {
    HALF.iter().any(|end| name.ends_with(end))
}

/// The name `publisher/model`, according to LM Studio's structure of folders.
fn in_lm_studio(root: &Path, folder: &Path) -> Option<String> {
    let mut parts = folder.strip_prefix(root).ok()?.iter().map(|part| part.to_string_lossy());
    Some(format!("{}/{}", parts.next()?, parts.next()?))
}

fn own_name<T>(model: &Group<T>) -> String {
    model.stem.rsplit('/').next().unwrap_or(&model.stem).to_owned()
}
