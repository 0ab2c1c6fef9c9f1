//! What was added to a model while something was computed: adapters and control vectors, told apart from all others by
//! what their files hold.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::adapters::{AdapterFiles, Scales};

/// What is read at once.
const BUFFER: usize = 1 << 20;

/// The adapters and control vectors that change a computation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Added {
    /// By name; those that are multiplied by 0 left out.
    lora: Vec<AddedFile>,
    control_vectors: Vec<AddedFile>,
    /// The first and the last layer that the control vectors are added to.
    control_layers: Option<(u32, u32)>,
}

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
        let lora = lora.map(|(one, scale)| AddedFile::read(&one.name, &one.path, scale));
        let mut lora = lora.collect::<Result<Vec<_>, _>>()?;
        lora.sort_by(|one, other| one.name.cmp(&other.name));
        let control_vectors = files.control_vectors.iter().map(|(path, scale)| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            AddedFile::read(&name, path, *scale)
        });
        let control_layers = files.control_layers.filter(|_| !files.control_vectors.is_empty());
        Ok(Self { lora, control_vectors: control_vectors.collect::<Result<_, _>>()?, control_layers })
    }

    /// The scales at which a model's files compute the same; `None` where none do. Adapters are known by their names.
    pub(super) fn scales(&self, files: &AdapterFiles) -> Result<Option<Scales>, Unreadable> {
        let then = |name: &str| self.lora.iter().find(|one| one.name == name).map_or(0.0, |one| one.scale);
        let scales: Vec<f32> = files.lora.iter().map(|one| then(&one.name)).collect();
        let scales = Scales::from(scales);
        Ok((Self::of(files, &scales)? == *self).then_some(scales))
    }
}

impl AddedFile {
    fn read(name: &str, path: &Path, scale: f32) -> Result<Self, Unreadable> {
        Ok(Self { name: name.to_owned(), scale, hash: hash(path)? })
    }
}

impl fmt::Display for Added {
    /// `french × 0.5, control vector calm × 1`; `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lora = self.lora.iter().map(|one| ("", one));
        let all = lora.chain(self.control_vectors.iter().map(|one| ("control vector ", one)));
        let all: Vec<String> = all.map(|(what, one)| format!("{what}{} × {}", one.name, one.scale)).collect();
        f.write_str(&if all.is_empty() { "none".to_owned() } else { all.join(", ") })?;
        if let Some((first, last)) = self.control_layers {
            write!(f, " in layers {first} to {last}")?;
        }
        Ok(())
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

    /// Adapters of these names, in files that hold these texts.
    fn files(folder: &Path, lora: &[(&str, &str)], control: &[(&str, f32)]) -> AdapterFiles {
        let mut files = AdapterFiles::default();
        for (name, holds) in lora {
            let path = folder.join(format!("{name}.gguf"));
            std::fs::write(&path, holds).unwrap();
            files.push(None, &path, 1.0);
        }
        for (name, scale) in control {
            let path = folder.join(format!("{name}.gguf"));
            std::fs::write(&path, name).unwrap();
            files.control_vectors.push((path, *scale));
        }
        files
    }

    /// Adapters in any order, and by their scales: `tests/generate/lora_texts.rs`.
    #[test]
    fn another_file_of_the_name_another_control_vector_or_scale_computes_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let of = |holds, control: &[(&str, f32)]| files(folder.path(), &[("a", holds)], control);
        let added = Added::of(&of("x", &[("calm", 1.0)]), &Scales::from(vec![0.5])).unwrap();
        assert_eq!(added.to_string(), "a × 0.5, control vector calm × 1");
        assert_eq!(Added::default().to_string(), "none");
        let mut limited = of("x", &[("calm", 1.0)]);
        limited.control_layers = Some((2, 3));
        assert_eq!(added.scales(&limited).unwrap(), None);
        for (holds, control, is_same) in [
            ("other", &[("calm", 1.0)][..], false),
            ("x", &[("calm", 0.5)], false),
            ("x", &[("cold", 1.0)], false),
            ("x", &[], false),
            ("x", &[("calm", 1.0)], true),
        ] {
            let scales = added.scales(&of(holds, control)).unwrap();
            assert_eq!(scales, is_same.then(|| Scales::from(vec![0.5])), "{holds} {control:?}");
        }
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), &[("a", "x")], &[]);
        std::fs::remove_file(folder.path().join("a.gguf")).unwrap();
        let gone = Added::of(&files, &Scales::from(vec![1.0])).unwrap_err();
        assert_eq!(gone.path, folder.path().join("a.gguf"));
        assert_eq!(gone.error.kind(), io::ErrorKind::NotFound);
        // What is multiplied by 0 is not looked at.
        assert!(Added::of(&files, &Scales::from(vec![0.0])).is_ok());
    }
}
