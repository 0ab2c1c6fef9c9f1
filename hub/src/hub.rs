//! A hub and its cache on this machine. Endpoint, cache and token come from the settings of Hugging Face's own tools.

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

/// A hub of models and the cache for its files. `Debug` shows no token.
#[derive(Debug, Clone)]
pub struct Hub {
    endpoint: String,
    cache: PathBuf,
    token: Option<HeaderValue>,
    offline: bool,
    patience: Patience,
}

impl Hub {
    /// A hub with this address and cache folder, without a token.
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Self {
        let (endpoint, cache) = (endpoint.into(), cache.into());
        let (timeout, pause) = (Duration::from_secs(30), Duration::from_secs(1));
        Self { endpoint, cache, token: None, offline: false, patience: Patience { timeout, attempts: 6, pause } }
    }

    /// Reads the environment as huggingface_hub's `constants.py` does:
    ///
    /// - endpoint: `HF_ENDPOINT`;
    /// - cache: `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, or `hub` in `HF_HOME` (default: `huggingface` in
    ///   `XDG_CACHE_HOME` or `~/.cache`), with variables (`$DATA`) expanded;
    /// - token: `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, or the file `HF_TOKEN_PATH` (default: `token` in `HF_HOME`),
    ///   unless `HF_HUB_DISABLE_IMPLICIT_TOKEN` is set;
    /// - offline: `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] if there is no home folder, or if the token cannot be read or sent.
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

    /// Sends a token with every request to the endpoint itself, and never to another host.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`] if the token has characters that a header cannot contain.
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

    /// Whether only the cache is used. Nothing can be fetched then.
    pub const fn is_offline(&self) -> bool {
        self.offline
    }

    /// Sets the time limit of a connection and of each read, the number of attempts, and the pause before the second
    /// attempt, which doubles before each further one. Default: 30 seconds, 6 attempts, 1 second. The count of attempts
    /// starts again whenever bytes arrive.
    pub fn patience(mut self, timeout: Duration, attempts: u32, pause: Duration) -> Self {
        self.patience = Patience { timeout, attempts, pause };
        self
    }

    /// Lists a repository's models, by one request or, when offline, from the cache.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`] if no model has the quantisation in the name; [`Error::Offline`]; errors of a request:
    /// [`Error::Refused`], [`Error::Missing`], [`Error::Status`], [`Error::Network`], [`Error::Answer`].
    pub fn repository(&self, name: &Name) -> Result<Repository, Error> {
        match self.http() {
            Some(http) => repository::listed(&http, name),
            None => repository::cached(&self.folder(name.repository()), name),
        }
    }

    /// The header of each candidate, in order. A cached file is read from the disk. Of other files, ranges are
    /// requested: a few MB for the first header, and about 100 KB for each further one.
    ///
    /// # Errors
    ///
    /// For each candidate: [`Error::Header`] if the file is not GGUF; errors of a request.
    pub fn headers(&self, repository: &Repository) -> Vec<Result<Header, Error>> {
        self.headers_of(&repository.candidates)
    }

    /// Lists the projectors of a repository, whatever models it has: those in the cache, or else those of the hub. A
    /// quantisation in the name is the projector's. The hub is asked once about a cached commit without a projector.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`] if there is no projector, or none with the quantisation; [`Error::Offline`]; errors of a
    /// request.
    pub fn projectors(&self, name: &Name) -> Result<Vec<Candidate>, Error> {
        let folder = self.folder(name.repository());
        let mut here = repository::projectors_cached(&folder, name);
        here.retain(|candidate| self.cached(candidate).is_some());
        if !here.is_empty() {
            return Ok(here);
        }
        if let Some(error) = repository::known_without_projector(&folder, name) {
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

    /// A model's first file, if the cache has all files.
    pub fn cached(&self, candidate: &Candidate) -> Option<PathBuf> {
        let (folder, commit) = (self.folder(&candidate.place.repository), &candidate.place.commit);
        let whole = candidate.files.iter().all(|file| folder.has(commit, file));
        whole.then(|| folder.pointer(commit, &candidate.files[0].name))
    }

    /// Fetches the files of a model that the cache lacks, and returns the first file's path. An unfinished fetch by
    /// this library is resumed. A blob from another tool is read once, and fetched again if its hash differs from the
    /// hub's. `progress` is called every tenth of a second with the bytes so far and the total bytes; it may cancel the
    /// fetch.
    ///
    /// # Errors
    ///
    /// [`Error::Space`] before anything is fetched; [`Error::Hash`] and [`Error::Answer`] if a file differs from the
    /// hub's listing; [`Error::Cancelled`]; [`Error::Offline`]; [`Error::Io`]; errors of a request.
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

/// `ENV_VARS_TRUE_VALUES` of huggingface_hub.
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
