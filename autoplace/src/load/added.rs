//! What was added to a model while something was computed: adapters, told apart from all others by what their files
//! hold.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::adapters::{AdapterFiles, Scales};

/// What is read at once.
const BUFFER: usize = 1 << 20;

/// The adapters that change a computation, by name; those that are multiplied by 0 are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Added(Vec<AddedFile>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct AddedFile {
    name: String,
    /// What it is multiplied by.
    scale: f32,
    /// Of the whole file, in hexadecimal: two trainings have the same header.
    hash: String,
}

#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

impl Unreadable {
    pub(crate) fn new(path: &Path, error: io::Error) -> Self {
        Self { path: path.to_owned(), error }
    }
}

impl Added {
    /// These of a model's files, at these scales. Reads the files that count.
    pub(super) fn of(files: &AdapterFiles, scales: &Scales) -> Result<Self, Unreadable> {
        let lora = files.lora.iter().zip(scales.iter()).filter(|(_, scale)| *scale != 0.0);
        let lora = lora.map(|(one, scale)| Ok(AddedFile { name: one.name.clone(), scale, hash: hash(&one.path)? }));
        let mut lora = lora.collect::<Result<Vec<_>, _>>()?;
        lora.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self(lora))
    }

    /// The scales at which a model's files compute the same; `None` where none do. Adapters are known by their names.
    pub(super) fn scales(&self, files: &AdapterFiles) -> Result<Option<Scales>, Unreadable> {
        let then = |name: &str| self.0.iter().find(|one| one.name == name).map_or(0.0, |one| one.scale);
        let scales: Vec<f32> = files.lora.iter().map(|one| then(&one.name)).collect();
        let scales = Scales::from(scales);
        Ok((Self::of(files, &scales)? == *self).then_some(scales))
    }
}

impl fmt::Display for Added {
    /// `french × 0.5, legal × 1`; `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|one| format!("{} × {}", one.name, one.scale)).collect();
        f.write_str(&if all.is_empty() { "none".to_owned() } else { all.join(", ") })
    }
}

fn hash(path: &Path) -> Result<String, Unreadable> {
    let mut hash = Xxh3::new();
    let file = File::open(path).map(|file| BufReader::with_capacity(BUFFER, file));
    file.and_then(|mut file| io::copy(&mut file, &mut hash)).map_err(|error| Unreadable::new(path, error))?;
    Ok(format!("{:032x}", hash.digest128()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An adapter called `a`, in a file that holds this text.
    fn files(folder: &Path, holds: &str) -> AdapterFiles {
        let mut files = AdapterFiles::default();
        let path = folder.join("a.gguf");
        std::fs::write(&path, holds).unwrap();
        files.push(None, &path, 1.0);
        files
    }

    /// Adapters in any order, and by their scales: `tests/generate/lora_texts.rs`.
    #[test]
    fn another_file_of_the_name_computes_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let scales = Scales::from(vec![0.5]);
        let added = Added::of(&files(folder.path(), "x"), &scales).unwrap();
        assert_eq!(added.to_string(), "a × 0.5");
        assert_eq!(Added::default().to_string(), "none");
        assert_eq!(added.scales(&files(folder.path(), "other")).unwrap(), None);
        assert_eq!(added.scales(&files(folder.path(), "x")).unwrap(), Some(scales));
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), "x");
        std::fs::remove_file(folder.path().join("a.gguf")).unwrap();
        let gone = Added::of(&files, &Scales::from(vec![1.0])).unwrap_err();
        assert_eq!(gone.path, folder.path().join("a.gguf"));
        assert_eq!(gone.error.kind(), io::ErrorKind::NotFound);
        // What is multiplied by 0 is not looked at.
        assert!(Added::of(&files, &Scales::from(vec![0.0])).is_ok());
    }
}
