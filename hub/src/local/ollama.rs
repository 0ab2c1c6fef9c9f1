//! Ollama's store. It contains a manifest for each name, and the manifest contains the hash of the model's blob.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::group::quant_of;
use crate::null;
use crate::repository::is_hex;

use super::walk::Finder;
use super::{SkipReason, Store, files};

/// Maximum number of bytes of a manifest. Real manifests have a few hundred.
const MAX_MANIFEST: u64 = 1 << 20;

const MODEL: &str = "application/vnd.ollama.image.model";

/// A manifest. It may be a list of manifests, one for each runner (manifest/manifest.go, `Manifest`).
#[derive(Deserialize)]
struct Manifest {
    /// Empty if the model is in Ollama's cloud and has no file here.
    #[serde(default, deserialize_with = "null::empty")]
    layers: Vec<Layer>,
    #[serde(default, deserialize_with = "null::empty")]
    manifests: Vec<Manifest>,
    /// If this is an entry of a list, the blob in which the manifest is.
    digest: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    /// Empty if the manifest has `null`, as Ollama reads it.
    #[serde(default, deserialize_with = "null::empty")]
    media_type: String,
    #[serde(default, deserialize_with = "null::empty")]
    digest: String,
}

/// Whether a folder is a store of Ollama.
pub(super) fn is_store(folder: &Path) -> bool {
    folder.join("blobs").is_dir() && folder.join("manifests").is_dir()
}

/// Finds all models in a store.
pub(super) fn find(finder: &mut Finder, store: &Path) {
    // If a store cannot be read, that is recorded only once.
    if finder.entries(store).is_empty() {
        return;
    }
    let blobs = store.join("blobs");
    for (path, _) in finder.entries(&blobs) {
        // Ollama gives this name to a download (server/download.go, `blobDownload`). If the download has parts, their
        // names have a number after this suffix.
        if path.to_string_lossy().ends_with("-partial") {
            finder.skip(path, SkipReason::PartialDownload);
        }
    }
    let mut names = HashSet::new();
    // Ollama looks into these folders in this order (manifest/manifest.go, `namedManifestRefs`).
    for folder in ["manifests-v2", "manifests"] {
        for (parts, path) in manifests(finder, &store.join(folder)) {
            let name = shortest(&parts);
            if !names.insert(name.clone()) {
                continue;
            }
            match model(&path, &blobs) {
                Ok(Some(file)) => {
                    finder.add(name, parts.last().and_then(|tag| quant_of(tag)), vec![file], Store::Ollama);
                }
                // The weights in this manifest are for another runner.
                Ok(None) => {}
                Err(why) => finder.skip(path, why),
            }
        }
    }
}

/// The manifests. They are the files whose paths have four parts (host, namespace, model, tag).
fn manifests(finder: &mut Finder, folder: &Path) -> Vec<(Vec<String>, PathBuf)> {
    let mut level = vec![(Vec::new(), folder.to_owned())];
    for depth in 1..=4 {
        let mut next = Vec::new();
        for (parts, folder) in level {
            for (path, is_folder) in finder.entries(&folder) {
                let part = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if is_folder == (depth < 4) && !part.starts_with('.') {
                    next.push((parts.iter().cloned().chain([part]).collect(), path));
                }
            }
        }
        level = next;
    }
    level
}

/// The name as Ollama shows it, without the parts that have their defaults (types/model/name.go, `DisplayShortest`).
fn shortest(parts: &[String]) -> String {
    let usual = parts.iter().zip(["registry.ollama.ai", "library"]).take_while(|(part, usual)| *part == usual).count();
    let (name, tag) = parts[usual..].split_at(parts.len() - usual - 1);
    format!("{}:{}", name.join("/"), tag.concat())
}

/// The blob of the model, according to a manifest.
fn model(path: &Path, blobs: &Path) -> Result<Option<PathBuf>, SkipReason> {
    let manifest = read(path)?;
    let mut layers = manifest.layers;
    for child in manifest.manifests {
        layers.extend(match &child.digest {
            Some(digest) if child.layers.is_empty() => read(&blob(blobs, digest)?)?.layers,
            _ => child.layers,
        });
    }
    let Some(layer) = layers.iter().find(|layer| layer.media_type == MODEL) else { return Ok(None) };
    let file = blob(blobs, &layer.digest)?;
    match file.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(SkipReason::Manifest(format!("its blob {} is missing", layer.digest)))
        }
        _ => Ok(Some(file)),
    }
}

fn read(path: &Path) -> Result<Manifest, SkipReason> {
    let file = files::look(path)?;
    if !file.is_file() || file.len() > MAX_MANIFEST {
        return Err(SkipReason::Manifest(format!("it is not a file of at most {MAX_MANIFEST} bytes")));
    }
    let text = fs::read(path).map_err(|error| files::unreadable(&error))?;
    serde_json::from_slice(&text).map_err(|error| SkipReason::Manifest(error.to_string()))
}

/// The path of a blob's file. If the digest is not a hash, it is refused (manifest/paths.go, `BlobsPath`).
fn blob(blobs: &Path, digest: &str) -> Result<PathBuf, SkipReason> {
    let hash = digest.strip_prefix("sha256").and_then(|rest| rest.strip_prefix([':', '-']));
    let hash = hash.filter(|hash| is_hex(&hash.to_ascii_lowercase(), 64));
    let wrong = || SkipReason::Manifest(format!("`{}` is not a digest", digest.escape_debug()));
    Ok(blobs.join(format!("sha256-{}", hash.ok_or_else(wrong)?)))
}
