//! Installs a runtime from an archive, a folder or an address into a folder of runtimes, such as the user's. The
//! runtime is checked against its manifest, and is installed completely or not at all.
//!
//! The work happens in the folder `.new` beside the installed runtimes. A rename gives the result its name, so no
//! program ever finds an incomplete runtime. If a runtime is replaced, another rename puts it aside first. The next
//! installation removes what an interrupted one has left.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

use crate::error::{Error, io};
use crate::manifest::{MANIFEST, files, is_inside};
use crate::set::Set;

/// The source of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A `.tar.gz` archive that contains a runtime's folder, or directly a runtime's files.
    File(PathBuf),
    /// A runtime's folder: the one with the manifest.
    Folder(PathBuf),
    /// The address of such an archive. [`install`] then requires the archive's hash.
    #[cfg(feature = "fetch")]
    Url(String),
}

impl Source {
    /// Parses an address, or the path of a folder or file.
    pub fn new(text: &str) -> Self {
        #[cfg(feature = "fetch")]
        if text.starts_with("http://") || text.starts_with("https://") {
            return Self::Url(text.to_owned());
        }
        let path = PathBuf::from(text);
        if path.is_dir() { Self::Folder(path) } else { Self::File(path) }
    }

    /// The source in an error: a path, or an address without its query, which may be signed.
    fn name(&self) -> String {
        match self {
            Self::File(path) | Self::Folder(path) => path.display().to_string(),
            #[cfg(feature = "fetch")]
            Self::Url(url) => url.split(['?', '#']).next().unwrap_or(url).to_owned(),
        }
    }
}

/// The progress of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of the archive that were read so far, or bytes of the folder's files that were copied.
    pub done: u64,
    /// The bytes of the whole archive, or of all files that are copied. `None` if a server does not state the length.
    pub total: Option<u64>,
}

/// Maximum bytes of all files in an archive, once unpacked. A CUDA backend for every card takes some 600 MB.
const MAX_BYTES: u64 = 8 << 30;

/// Installs a runtime into the folder `into` (such as [`user_folder`](crate::user_folder)), in a subfolder with the
/// runtime's name. If the same runtime (with an equal manifest) is there already and complete, it stays unchanged.
/// Another runtime of this name, or a damaged one, is replaced. `sha256` (64 hexadecimal digits) is the hash of the
/// archive; an address requires it, and a folder has none. `progress` is called after each piece of an archive and each
/// file of a folder, and returns whether to continue. Waits while another process installs into the same folder.
///
/// # Errors
///
/// [`Error::Source`] if the source is not a runtime's archive, has another hash, or cannot be fetched, for example
/// because `AUTOPLACE_OFFLINE` or `HF_HUB_OFFLINE` is set; [`Error::NoManifest`] for a folder without a manifest, and
/// for an invalid manifest; the errors of [`Set::check`] for an incomplete runtime; [`Error::Cancelled`];
/// [`Error::Io`]. After an error, the installed runtimes are those from before.
pub fn install(
    source: &Source,
    sha256: Option<&str>,
    into: &Path,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Set, Error> {
    fs::create_dir_all(into).map_err(io(into, "make"))?;
    let lock = into.join(".lock");
    let lock = File::create(&lock).and_then(|file| file.lock().map(|()| file)).map_err(io(&lock, "lock"))?;
    // Names that begin with a dot do not count as installed runtimes.
    let (new, old) = (into.join(".new"), into.join(".old"));
    let remove = |folder: &Path| {
        let removed = if folder.exists() { fs::remove_dir_all(folder) } else { Ok(()) };
        removed.map_err(io(folder, "remove"))
    };
    remove(&new)?;
    remove(&old)?;
    fs::create_dir(&new).map_err(io(&new, "make"))?;
    let installed = bring(source, sha256, &new, progress).and_then(|unpacked| {
        let set = Set::read(&unpacked)?;
        set.check()?;
        let folder = into.join(&set.manifest.name);
        if Set::read(&folder).is_ok_and(|there| there.manifest == set.manifest && there.check().is_ok()) {
            return Set::read(&folder);
        }
        let replaces = folder.exists();
        if replaces {
            fs::rename(&folder, &old).map_err(io(&folder, "move"))?;
        }
        if let Err(error) = fs::rename(&unpacked, &folder) {
            if replaces {
                fs::rename(&old, &folder).map_err(io(&old, "move back"))?;
            }
            return Err(io(&folder, "make")(error));
        }
        Set::read(&folder)
    });
    remove(&new)?;
    remove(&old)?;
    drop(lock);
    installed
}

/// Copies a runtime into the empty folder `new`. Returns the folder with the runtime: `new`, or a folder below it.
fn bring(
    source: &Source,
    sha256: Option<&str>,
    new: &Path,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<PathBuf, Error> {
    let refuse = |problem: String| Error::Source { what: source.name(), problem };
    let wanted = sha256.map(str::to_ascii_lowercase);
    if let Some(wanted) =
        wanted.as_ref().filter(|hash| hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(refuse(format!("`{wanted}` is not a SHA-256 hash, which has 64 hexadecimal digits")));
    }
    let (reader, total): (Box<dyn Read>, Option<u64>) = match source {
        Source::Folder(folder) => {
            if wanted.is_some() {
                return Err(refuse("a folder has no SHA-256; its manifest has the hash of each file".to_owned()));
            }
            return copy(folder, new, progress);
        }
        Source::File(path) => {
            let file = File::open(path).map_err(io(path, "read"))?;
            let bytes = file.metadata().map_err(io(path, "read"))?.len();
            (Box::new(file), Some(bytes))
        }
        #[cfg(feature = "fetch")]
        Source::Url(url) => {
            if wanted.is_none() {
                return Err(refuse("the SHA-256 of a fetched archive must be given".to_owned()));
            }
            fetch::get(url).map_err(refuse)?
        }
    };
    let mut reader = ProgressReader { reader, hash: Sha256::new(), done: 0, total, progress, cancelled: false };
    let unpacked = unpack(&mut reader, new);
    // Bytes may follow the end of the archive, and the hash includes them.
    let read_on = unpacked.is_ok() || wanted.is_some();
    let rest = if read_on && !reader.cancelled { io::copy(&mut reader, &mut io::sink()).map(drop) } else { Ok(()) };
    if reader.cancelled {
        return Err(Error::Cancelled { what: source.name(), done: reader.done });
    }
    let found: String = reader.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    // If the hash is wrong, this is reported, and not a fault in the content.
    match (&wanted, rest) {
        (Some(wanted), Ok(())) if *wanted != found => {
            return Err(refuse(format!("its SHA-256 is {found}, but {wanted} was given")));
        }
        (_, Err(error)) => return Err(refuse(error.to_string())),
        (_, Ok(())) => unpacked.map_err(&refuse)?,
    }
    // The archive contains a runtime's folder, or directly a runtime's files.
    if new.join(MANIFEST).exists() {
        return Ok(new.to_owned());
    }
    match crate::find::installed(new).into_iter().next() {
        Some(set) => Ok(set?.folder),
        None => Err(refuse(format!("there is no {MANIFEST} in it"))),
    }
}

/// Copies a manifest and the files that it names.
fn copy(folder: &Path, new: &Path, progress: &mut dyn FnMut(Progress) -> bool) -> Result<PathBuf, Error> {
    let set = Set::read(folder)?;
    // A library that the manifest does not name is not copied, so a check of the copy would not notice it.
    set.check()?;
    let manifest = folder.join(MANIFEST);
    let of_manifest = manifest.metadata().map_err(io(&manifest, "read"))?.len();
    let (mut done, total) = (0, Some(set.bytes().saturating_add(of_manifest)));
    for name in files(folder)?.iter().filter(|name| *name == MANIFEST || set.manifest.files.contains_key(*name)) {
        let (from, to) = (folder.join(name), new.join(name));
        let parent = to.parent().unwrap_or(new);
        fs::create_dir_all(parent).map_err(io(parent, "make"))?;
        done += fs::copy(&from, &to).map_err(io(&to, "write"))?;
        if !progress(Progress { done, total }) {
            return Err(Error::Cancelled { what: folder.display().to_string(), done });
        }
    }
    Ok(new.to_owned())
}

/// Unpacks an archive. The archive may contain only files and folders that stay below `folder`, and no other kinds of
/// entries.
fn unpack(reader: impl Read, folder: &Path) -> Result<(), String> {
    let no_archive = |error: io::Error| format!("it is not a complete .tar.gz archive: {error}");
    let mut archive = tar::Archive::new(GzDecoder::new(reader));
    let (mut left, mut buffer) = (MAX_BYTES, vec![0; 1 << 16]);
    for entry in archive.entries().map_err(no_archive)? {
        let mut entry = entry.map_err(no_archive)?;
        let path = entry.path().map_err(no_archive)?.into_owned();
        // `tar .` begins each path with `./`, and packs the folder itself as an entry.
        let plain: PathBuf = path.components().filter(|part| *part != std::path::Component::CurDir).collect();
        // A manifest uses slashes on every system.
        let name = plain.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        if name.is_empty() {
            continue;
        }
        let kind = entry.header().entry_type();
        if !is_inside(&name) || !(kind.is_file() || kind.is_dir()) {
            return Err(format!("it contains `{}`, which is not a file or folder inside it", path.display()));
        }
        let to = folder.join(&plain);
        if kind.is_dir() {
            fs::create_dir_all(&to).map_err(|error| format!("cannot make {}: {error}", to.display()))?;
            continue;
        }
        let unwritten = |error: io::Error| format!("cannot write {}: {error}", to.display());
        fs::create_dir_all(to.parent().unwrap_or(folder)).map_err(unwritten)?;
        let mut file = File::create_new(&to).map_err(unwritten)?;
        loop {
            let n = entry.read(&mut buffer).map_err(no_archive)?;
            if n == 0 {
                break;
            }
            file.write_all(&buffer[..n]).map_err(unwritten)?;
            left = left.checked_sub(n as u64).ok_or_else(|| format!("it unpacks to more than {MAX_BYTES} bytes"))?;
        }
        file.sync_all().map_err(unwritten)?;
    }
    Ok(())
}

/// A reader that reports its progress and hashes the bytes that it reads.
struct ProgressReader<'a> {
    reader: Box<dyn Read>,
    hash: Sha256,
    done: u64,
    total: Option<u64>,
    progress: &'a mut dyn FnMut(Progress) -> bool,
    cancelled: bool,
}

impl Read for ProgressReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        self.hash.update(&buffer[..n]);
        self.done += n as u64;
        if !(self.progress)(Progress { done: self.done, total: self.total }) {
            self.cancelled = true;
            return Err(io::Error::other("cancelled"));
        }
        Ok(n)
    }
}

#[cfg(feature = "fetch")]
mod fetch {
    use std::io::Read;
    use std::time::Duration;

    use ureq::Agent;

    /// The time limit of making a connection, of waiting for an answer, and of each read.
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

    /// A reader of the content at an address, and the content's length in bytes if the server states it.
    pub(super) fn get(url: &str) -> Result<(Box<dyn Read>, Option<u64>), String> {
        for variable in ["AUTOPLACE_OFFLINE", "HF_HUB_OFFLINE"] {
            let value = std::env::var(variable).unwrap_or_default();
            if !["", "0", "false", "no", "off"].contains(&value.to_ascii_lowercase().as_str()) {
                return Err(format!("{variable} is set, so nothing is fetched"));
            }
        }
        let config = Agent::config_builder()
            .https_only(url.starts_with("https:"))
            .timeout_connect(PATIENCE)
            .timeout_recv_response(PATIENCE)
            .timeout_per_read(PATIENCE)
            .user_agent(concat!("autoplace-runtime/", env!("CARGO_PKG_VERSION")));
        #[cfg(feature = "https")]
        let config = config
            .tls_config(ureq::tls::TlsConfig::builder().root_certs(ureq::tls::RootCerts::PlatformVerifier).build());
        let answer = config.build().new_agent().get(url).call().map_err(|error| match error {
            // The messages of these errors contain the address, which may be signed.
            ureq::Error::RequireHttpsOnly(_) => "a redirect from https to http".to_owned(),
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => "not a valid address".to_owned(),
            error => error.to_string(),
        })?;
        let body = answer.into_body();
        let bytes = body.content_length();
        Ok((Box::new(body.into_reader()), bytes))
    }
}
