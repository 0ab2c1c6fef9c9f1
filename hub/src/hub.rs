//! A hub and its cache on this machine. The endpoint, the cache and the token come from the settings of Hugging Face's
//! own tools.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use autoplace_planner::gguf::Header;
use ureq::http::HeaderValue;

use crate::cache::Folder;
use crate::error::Error;
use crate::http::{Http, Patience, bearer};
use crate::local::Environment;
use crate::name::Name;
use crate::repository::{self, Candidate, Repository};
use crate::{fetch, header};

const ENDPOINT: &str = "https://huggingface.co";

/// A hub with models, and the cache for its files. `Debug` shows no token.
#[derive(Debug, Clone)]
pub struct Hub {
    endpoint: String,
    cache: PathBuf,
    token: Option<HeaderValue>,
    offline: bool,
    patience: Patience,
}

impl Hub {
    /// A hub with this address and this cache folder. There is no token.
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Self {
        let (endpoint, cache) = (endpoint.into(), cache.into());
        let (timeout, pause) = (Duration::from_secs(30), Duration::from_secs(1));
        Self { endpoint, cache, token: None, offline: false, patience: Patience { timeout, attempts: 6, pause } }
    }

    /// Reads the environment as huggingface_hub's `constants.py` does:
    ///
    /// - endpoint: `HF_ENDPOINT`;
    /// - cache: `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, or `hub` in `HF_HOME` (default: `huggingface` in
    ///   `XDG_CACHE_HOME` or `~/.cache`); variables in these values (`$DATA`) are expanded;
    /// - token: `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, or the file `HF_TOKEN_PATH` (default: `token` in `HF_HOME`),
    ///   unless `HF_HUB_DISABLE_IMPLICIT_TOKEN` is set;
    /// - offline: `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] if there is no home folder, or if the token cannot be read or cannot be sent.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_environment(&Environment::from_process())
    }

    fn from_environment(environment: &Environment) -> Result<Self, Error> {
        let get = |name| environment.get(name)?.into_string().ok().filter(|value| !value.is_empty());
        let no_home = || Error::Environment { variable: "HF_HOME", problem: "not set, and no home folder".to_owned() };
        let hf_home = environment.hf_home().ok_or_else(no_home)?;
        let cache = environment.hugging_face().ok_or_else(no_home)?;
        let offline = get("HF_HUB_OFFLINE").or_else(|| get("TRANSFORMERS_OFFLINE")).as_deref().is_some_and(is_true);
        let hub = Self::new(get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned()), cache).offline(offline);
        if get("HF_HUB_DISABLE_IMPLICIT_TOKEN").as_deref().is_some_and(is_true) {
            return Ok(hub);
        }
        let token = match get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")) {
            None => read_token(&environment.expanded_folder("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token")))?,
            token => token,
        };
        token.iter().try_fold(hub, |hub, token| hub.token(token))
    }

    /// Sets a token. It is sent with every request to the endpoint itself, and never to another host.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] if the token contains characters that a header cannot contain.
    pub fn token(mut self, token: &str) -> Result<Self, Error> {
        let token: String = token.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        let problem = "the token has characters that are not allowed in one".to_owned();
        let wrong = Error::Environment { variable: "HF_TOKEN", problem };
        self.token = match token.trim() {
            "" => None,
            token => Some(bearer(token).ok_or(wrong)?),
        };
        Ok(self)
    }

    /// Sets whether only the cache is used.
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Whether only the cache is used. If so, nothing can be fetched.
    pub const fn is_offline(&self) -> bool {
        self.offline
    }

    /// Sets how long opening a connection and each read may take, the number of attempts, and the pause before the
    /// second attempt. The pause is doubled before each further attempt. The defaults are 30 seconds, 6 attempts, and 1
    /// second. Whenever bytes arrive, attempts are counted from the beginning again.
    pub fn patience(mut self, timeout: Duration, attempts: u32, pause: Duration) -> Self {
        self.patience = Patience { timeout, attempts, pause };
        self
    }

    /// Lists the models of a repository with one request. In offline mode, lists those in the cache.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`] if the name contains a quantisation and no model has it. [`Error::Offline`]. The errors of a
    /// request: [`Error::Refused`], [`Error::Missing`], [`Error::Status`], [`Error::Network`], [`Error::Answer`].
    pub fn repository(&self, name: &Name) -> Result<Repository, Error> {
        match self.http() {
            Some(http) => repository::listed(&http, name),
            None => repository::cached(&self.folder(name.repository()), name),
        }
    }

    /// The header of each candidate, in their order. If a file is in the cache, it is read from the disk. Of the other
    /// files, ranges are requested: a few MB for the first header, and about 100 KB for each further header.
    ///
    /// # Errors
    ///
    /// For each candidate: [`Error::Header`] if the file is not GGUF, and the errors of a request.
    pub fn headers(&self, repository: &Repository) -> Vec<Result<Header, Error>> {
        self.headers_of(&repository.candidates)
    }

    /// Lists the projectors of a repository, whatever its models. If there are projectors in the cache, these are
    /// listed, and otherwise those on the hub. If the name contains a quantisation, it is that of the projector.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`] if there is no projector, or none with the quantisation. [`Error::Offline`]. The errors of a
    /// request.
    pub fn projectors(&self, name: &Name) -> Result<Vec<Candidate>, Error> {
        self.projectors_unless(name, self.http().is_none())
    }

    /// Like [`projectors`](Self::projectors), for a cached model whose projector nobody has named. If the hub has once
    /// answered that the cached commit has no projector, the hub is not asked again.
    ///
    /// # Errors
    ///
    /// The errors of [`projectors`](Self::projectors).
    pub fn projectors_beside(&self, name: &Name) -> Result<Vec<Candidate>, Error> {
        self.projectors_unless(name, true)
    }

    /// The projectors in the cache, else those on the hub. With `known_counts`, the hub is not asked if it is known
    /// that the cached commit has none.
    fn projectors_unless(&self, name: &Name, known_counts: bool) -> Result<Vec<Candidate>, Error> {
        let folder = self.folder(name.repository());
        let mut here = repository::projectors_cached(&folder, name);
        here.retain(|candidate| self.cached(candidate).is_some());
        if !here.is_empty() {
            return Ok(here);
        }
        if let Some(error) = repository::known_without_projector(&folder, name).filter(|_| known_counts) {
            return Err(error);
        }
        match self.http() {
            Some(http) => repository::projectors_listed(&http, &folder, name),
            None => Err(Error::Offline { what: format!("a projector (mmproj) of {name}"), cache: self.cache.clone() }),
        }
    }

    pub(crate) fn headers_of(&self, candidates: &[Candidate]) -> Vec<Result<Header, Error>> {
        let http = self.http();
        let mut known = None;
        let header = |candidate: &Candidate| match (&http, self.cached(candidate)) {
            (_, Some(path)) => {
                let file = path.display().to_string();
                Header::open(path).map_err(|source| Error::Header { file, source })
            }
            (Some(http), None) => header::read(http, candidate, &mut known),
            (None, None) => Err(Error::Offline { what: candidate.name().to_owned(), cache: self.cache.clone() }),
        };
        candidates.iter().map(header).collect()
    }

    /// The path of a model's first file, if all of its files are in the cache.
    pub fn cached(&self, candidate: &Candidate) -> Option<PathBuf> {
        let (folder, commit) = (self.folder(&candidate.place.repository), &candidate.place.commit);
        let whole = candidate.files.iter().all(|file| folder.has(commit, file));
        whole.then(|| folder.pointer(commit, &candidate.files[0].name))
    }

    /// Fetches those files of a model that are not in the cache. Returns the path of the first file. If this library
    /// has begun a fetch before, it is resumed. If another tool has written a blob, the blob is read once. If its hash
    /// is not the hub's, it is fetched again. Every tenth of a second, `progress` is called with the number of bytes so
    /// far and in total. It may cancel the fetch.
    ///
    /// # Errors
    ///
    /// [`Error::Space`] before anything is fetched. [`Error::Hash`] and [`Error::Answer`] if a file is not as the hub
    /// lists it. [`Error::Cancelled`]. [`Error::Offline`]. [`Error::Io`]. The errors of a request.
    pub fn fetch(
        &self,
        candidate: &Candidate,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<PathBuf, Error> {
        let folder = self.folder(&candidate.place.repository);
        fetch::fetch(self.http().as_ref(), &folder, candidate, &mut progress)
    }

    fn http(&self) -> Option<Http> {
        (!self.offline).then(|| Http::new(&self.endpoint, self.token.clone(), self.patience.clone()))
    }

    fn folder(&self, repository: &str) -> Folder {
        Folder::new(&self.cache, repository)
    }
}

/// As `ENV_VARS_TRUE_VALUES` in huggingface_hub.
fn is_true(value: &str) -> bool {
    matches!(&value.to_ascii_uppercase()[..], "1" | "ON" | "YES" | "TRUE")
}

fn read_token(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(token) => Ok(Some(token)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => {
            let problem = format!("{}: {error}", path.display());
            Err(Error::Environment { variable: "HF_TOKEN_PATH", problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn hub(variables: &[(&'static str, &'static str)], home: &Path) -> Hub {
        let home = Environment::new(home);
        Hub::from_environment(
            &variables.iter().fold(home, |environment, &(name, value)| environment.variable(name, value)),
        )
        .unwrap()
    }

    #[test]
    fn the_environment_is_read_as_the_official_client_reads_it() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let usual = hub(&[], home);
        assert_eq!((&*usual.cache, &*usual.endpoint), (&*home.join(".cache/huggingface/hub"), ENDPOINT));
        let other = hub(&[("HF_ENDPOINT", "http://mirror/"), ("HF_HUB_OFFLINE", "yes")], home);
        assert!(other.offline && other.endpoint == "http://mirror/");
        assert!(!hub(&[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")], home).offline);
    }

    #[test]
    fn a_token_is_found_in_its_usual_places_and_is_not_shown() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        assert!(hub(&[], home).token.is_none());
        fs::create_dir_all(home.join(".cache/huggingface")).unwrap();
        fs::write(home.join(".cache/huggingface/token"), "hf_secret\n").unwrap();
        fs::write(home.join("other"), "hf_secret").unwrap();
        for variables in [
            &[][..],
            &[("HF_TOKEN", " hf_secret\n")],
            &[("HF_TOKEN_PATH", "~/other"), ("HF_HOME", "/nowhere")],
            &[("HUGGING_FACE_HUB_TOKEN", "hf_secret")],
        ] {
            let hub = hub(variables, home);
            assert!(hub.token.is_some(), "{variables:?}");
            assert!(!format!("{hub:?}").contains("secret"));
        }
        assert!(hub(&[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")], home).token.is_none());
        let wrong = Environment::new(home).variable("HF_TOKEN", "hf_sec\u{7}ret");
        let error = Hub::from_environment(&wrong).unwrap_err().to_string();
        assert!(error.starts_with("HF_TOKEN: ") && !error.contains("sec"), "{error}");
    }
}
