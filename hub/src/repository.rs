//! The content of a repository. In: a name. Out: its commit, and its models by quantisation.

use std::fs;
use std::path::{Component, Path};
use std::sync::Arc;

use serde::Deserialize;

use crate::cache::Folder;
use crate::error::Error;
use crate::group::{Group, group};
use crate::http::{Http, quoted, shown};
use crate::local::SkipReason;
use crate::name::Name;
use crate::null;

/// A repository on a hub, at one commit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Repository {
    /// The models, each with all of its files, sorted by name. If the name contains a quantisation, only models with
    /// this quantisation.
    pub candidates: Vec<Candidate>,
    /// Projectors (mmproj) for images or sound. They are loaded together with a model. They are sorted by name, and
    /// those of every quantisation are listed.
    pub projectors: Vec<Candidate>,
    /// Files that cannot be loaded as models, with the reasons: projectors, or sets in which shards are missing.
    pub left_out: Vec<(Vec<String>, String)>,
}

/// Where files come from: the repository, the revision and the commit.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) repository: String,
    pub(crate) revision: String,
    pub(crate) commit: String,
}

/// One of a repository's models, in one quantisation.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub(crate) place: Arc<Place>,
    name: String,
    quant: Option<String>,
    pub(crate) files: Vec<RemoteFile>,
}

/// A file in the hub's listing.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    /// The path in the repository, with `/` between folders.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The hub's hash of the content: sha256 for large files, git's sha1 for others. It is also the name of the blob in
    /// the cache. Empty if the file was found in the cache, because its hash may not be known there.
    pub(crate) etag: String,
}

impl Candidate {
    /// The name of the model in the repository. It is the name of the first file, without the number of the shard and
    /// without `.gguf`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The quantisation in the name, in capitals.
    pub fn quant(&self) -> Option<&str> {
        self.quant.as_deref()
    }

    /// A name together with its repository, for errors.
    pub(crate) fn shown(&self, name: &str) -> String {
        format!("{}/{name}", self.place.repository)
    }

    /// The size of all files together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// The names of the files, in the order of the shards.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.iter().map(|file| &file.name[..])
    }
}

/// The answer to `GET /api/models/OWNER/NAME/revision/REVISION?blobs=true` (`HfApi.model_info` with `files_metadata`).
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default, deserialize_with = "null::empty")]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Lists a repository by a request to the hub.
pub(crate) fn listed(http: &Http, name: &Name) -> Result<Repository, Error> {
    let (commit, files) = files_listed(http, name)?;
    grouped(name, commit, files)
}

/// Lists the projectors of a repository by a request to the hub. If the name contains a quantisation, it is that of the
/// projector. If a cached commit has no projector at all, this is stored in the cache, so that the hub is asked only
/// once.
pub(crate) fn projectors_listed(http: &Http, folder: &Folder, name: &Name) -> Result<Vec<Candidate>, Error> {
    let (commit, files) = files_listed(http, name)?;
    let projectors = parts(name, commit.clone(), files).projectors;
    if projectors.is_empty() && folder.commit(name.revision()) == Some(commit.clone()) {
        // If nothing can be written to the cache, that is no error here.
        let _ = folder.remember_lacking(&commit, PROJECTOR);
    }
    let found: Vec<&str> = projectors.iter().map(Candidate::name).collect();
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    let projectors = of_quant(projectors, name);
    if projectors.is_empty() { Err(no_projector(name, found)) } else { Ok(projectors) }
}

/// The name that is stored in the cache for "this commit has no projector". Other tools never ask for a file of this
/// name, so it stands for no single file that is missing.
const PROJECTOR: &str = "autoplace.mmproj.gguf";

/// The error for a repository about which it is known that it has no projector.
pub(crate) fn known_without_projector(folder: &Folder, name: &Name) -> Option<Error> {
    let commit = folder.commit(name.revision())?;
    folder.lacks(&commit, PROJECTOR).then(|| no_projector(name, "none".to_owned()))
}

fn no_projector(name: &Name, found: String) -> Error {
    let wanted = name.quant().map_or("projector (mmproj)".to_owned(), |quant| format!("projector of {quant}"));
    Error::NoModel { repository: name.repository().to_owned(), wanted, found }
}

/// The projectors of a repository that are in the cache. No request goes to the hub. If the name contains a
/// quantisation, it is that of the projector.
pub(crate) fn projectors_cached(folder: &Folder, name: &Name) -> Vec<Candidate> {
    let Some(commit) = folder.commit(name.revision()) else { return Vec::new() };
    let files = files_cached(folder, &commit);
    of_quant(parts(name, commit, files).projectors, name)
}

fn of_quant(mut projectors: Vec<Candidate>, name: &Name) -> Vec<Candidate> {
    projectors.retain(|projector| name.quant().is_none_or(|quant| projector.quant() == Some(quant)));
    projectors
}

/// The commit of a repository, and its GGUF files. They come from a request to the hub.
fn files_listed(http: &Http, name: &Name) -> Result<(String, Vec<RemoteFile>), Error> {
    let (repository, revision) = (name.repository(), quoted(name.revision()));
    let url = format!("{}/api/models/{repository}/revision/{revision}?blobs=true", http.endpoint);
    let wrong = |problem: String| Error::Answer { url: shown(&url), problem };
    let text = http.text(&url)?;
    let listing: Listing = serde_json::from_str(&text).map_err(|error| wrong(format!("no listing: {error}")))?;
    if !is_hex(&listing.sha, 40) {
        return Err(wrong("the listing's commit is not a hash".to_owned()));
    }
    let models = listing.siblings.into_iter().filter(|file| is_gguf(&file.rfilename));
    let files = models.map(|file| file.checked().map_err(wrong)).collect::<Result<_, _>>()?;
    Ok((listing.sha, files))
}

/// Lists those files of a repository that are in the cache. No request goes to the hub.
pub(crate) fn cached(folder: &Folder, name: &Name) -> Result<Repository, Error> {
    let missing = || Error::Offline { what: name.to_string(), cache: folder.cache().to_owned() };
    let commit = folder.commit(name.revision()).ok_or_else(missing)?;
    let files = files_cached(folder, &commit);
    if files.is_empty() {
        return Err(missing());
    }
    // If this quantisation is not in the cache, it may still be on the hub.
    grouped(name, commit, files).map_err(|_| missing())
}

/// The GGUF files of a commit that are in the cache.
fn files_cached(folder: &Folder, commit: &str) -> Vec<RemoteFile> {
    let files = folder.files(commit).into_iter().filter(|(name, _)| is_gguf(name));
    files.map(|(name, bytes)| RemoteFile { name, bytes, etag: String::new() }).collect()
}

/// All models and all projectors, of every quantisation.
fn parts(name: &Name, commit: String, files: Vec<RemoteFile>) -> Repository {
    let (repository, revision) = (name.repository().to_owned(), name.revision().to_owned());
    let place = Arc::new(Place { repository, revision, commit });
    let (mut candidates, mut projectors, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for Group { stem: name, quant, files, why } in group(files.into_iter().map(|file| (file.name.clone(), file))) {
        let (names, files): (_, Vec<RemoteFile>) = files.into_iter().unzip();
        match why {
            Some(why) => {
                left_out.push((names, why.to_string()));
                // A projector that is split is left out, because mtmd opens only one file.
                if matches!(why, SkipReason::Projector) && files.len() == 1 {
                    projectors.push(Candidate { place: place.clone(), name, quant, files });
                }
            }
            None => candidates.push(Candidate { place: place.clone(), name, quant, files }),
        }
    }
    Repository { candidates, projectors, left_out }
}

fn grouped(name: &Name, commit: String, files: Vec<RemoteFile>) -> Result<Repository, Error> {
    let Repository { mut candidates, projectors, left_out } = parts(name, commit, files);
    let found: Vec<&str> = candidates.iter().map(|candidate| candidate.quant().unwrap_or(&candidate.name)).collect();
    let found = found.join(", ");
    if let Some(quant) = name.quant() {
        // `Q4_K_XL` stands for Unsloth's `UD-Q4_K_XL` too.
        let dynamic = format!("UD-{quant}");
        let meant = if candidates.iter().any(|candidate| candidate.quant() == Some(quant)) { quant } else { &dynamic };
        candidates.retain(|candidate| candidate.quant() == Some(meant));
    }
    if candidates.is_empty() {
        let wanted = name.quant().map_or("whole GGUF model".to_owned(), |quant| format!("model of {quant}"));
        let found = if found.is_empty() { "none".to_owned() } else { found };
        return Err(Error::NoModel { repository: name.repository().to_owned(), wanted, found });
    }
    Ok(Repository { candidates, projectors, left_out })
}

impl Sibling {
    /// Returns the file if its name and its hash are safe. Both come from a server, and become parts of paths.
    fn checked(self) -> Result<RemoteFile, String> {
        let Self { rfilename: name, size, blob_id, lfs } = self;
        if !stays_inside(&name) {
            return Err(format!("it lists a file `{}`, which would leave its folder", name.escape_debug()));
        }
        let (etag, bytes) = match lfs {
            Some(Lfs { sha256, size }) if is_hex(&sha256, 64) => (Some(sha256), Some(size)),
            Some(_) => (None, None),
            None => (blob_id.filter(|id| is_hex(id, 40)), size),
        };
        match (etag, bytes) {
            (Some(etag), Some(bytes)) => Ok(RemoteFile { name, bytes, etag }),
            _ => Err(format!("it lists {name} without its hash and length")),
        }
    }
}

pub(crate) fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn is_gguf(name: &str) -> bool {
    // The name is split as a text, and not as a path. On Windows, the path `\\host\a.gguf` would have no extension, and
    // it would be skipped without being reported.
    name.rsplit_once('.').is_some_and(|(stem, ending)| !stem.is_empty() && ending.eq_ignore_ascii_case("gguf"))
}

/// Whether a name cannot lead out of its folder, on this system and on Windows (`_validate_relative_filename`).
fn stays_inside(name: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && !matches!(part, "." | "..")
            && !part.contains(['\\', ':'])
            && !part.contains(char::is_control)
    };
    let is_normal = |part| matches!(part, Component::Normal(_));
    name.split('/').all(is_plain) && Path::new(name).components().all(is_normal)
}

/// The regular files in a folder and its subfolders, with their lengths. In their names, folders are separated by `/`.
/// Links to files are followed.
pub(crate) fn files_below(folder: &Path, prefix: &str) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
        if kind.is_dir() {
            found.extend(files_below(&entry.path(), &format!("{prefix}{name}/")));
        } else if let Some(file) = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file) {
            found.push((format!("{prefix}{name}"), file.len()));
        }
    }
    found.sort();
    found
}
