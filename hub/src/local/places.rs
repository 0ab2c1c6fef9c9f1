//! The folders in which the tools on this machine keep their models. In: the environment. Out: folders.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::Store;

/// Maximum number of bytes that are read of LM Studio's settings.
const MAX_SETTINGS: u64 = 1 << 20;

/// A home folder and environment variables. They decide where tools keep their models.
/// [`Models::local`](super::Models::local) uses the environment of this process.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    home: Option<PathBuf>,
    variables: BTreeMap<&'static str, OsString>,
    /// Whether a variable that was not set here is taken from this process.
    is_process: bool,
}

/// Operating systems. On each of them, tools use other folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Linux,
    Mac,
    Windows,
}

impl System {
    pub(super) const HERE: Self = if cfg!(windows) {
        Self::Windows
    } else if cfg!(target_os = "macos") {
        Self::Mac
    } else {
        Self::Linux
    };
}

impl Environment {
    /// The environment of a user with this home folder, and with no variables.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self { home: Some(home.into()), ..Self::default() }
    }

    /// The environment of this process.
    pub fn from_process() -> Self {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        Self { home, is_process: true, ..Self::default() }
    }

    /// Sets a variable: `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `HF_HOME`, `HF_TOKEN_PATH`, `XDG_CACHE_HOME`,
    /// `XDG_CONFIG_HOME`, `LLAMA_CACHE`, `OLLAMA_MODELS`, `APPDATA` or `LOCALAPPDATA`. Any other variable matters only
    /// if the value of one of Hugging Face's variables contains it, as in `$DATA/huggingface`.
    #[must_use]
    pub fn variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.insert(name, value.into());
        self
    }

    pub(crate) fn get(&self, name: &str) -> Option<OsString> {
        self.variables.get(name).cloned().or_else(|| std::env::var_os(name).filter(|_| self.is_process))
    }

    /// The folder or file that a variable names. `~` is replaced by the home folder.
    pub(crate) fn folder(&self, name: &str) -> Option<PathBuf> {
        self.in_own_home(self.get(name)?.into())
    }

    /// A path in which `~` is replaced by the home folder; `None` if the path is empty.
    fn in_own_home(&self, path: PathBuf) -> Option<PathBuf> {
        match path.strip_prefix("~") {
            Ok(rest) => Some(self.home.as_ref()?.join(rest)),
            Err(_) => (!path.as_os_str().is_empty()).then_some(path),
        }
    }

    /// Like [`folder`](Self::folder), but other variables in the value are replaced too, as in Hugging Face's client
    /// (constants.py).
    pub(crate) fn expanded_folder(&self, name: &str) -> Option<PathBuf> {
        let folder = self.folder(name)?;
        Some(folder.to_str().map(|text| PathBuf::from(self.expanded(text, System::HERE))).unwrap_or(folder))
    }

    /// Replaces `$NAME` and `${NAME}`, and on Windows `%NAME%`, by the values of the variables. A variable that is not
    /// set stays as it is written (Python's `os.path.expandvars`).
    fn expanded(&self, text: &str, system: System) -> String {
        let value = |name: &str| self.get(name)?.into_string().ok();
        let (mut expanded, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(['$', '%']) {
            expanded.push_str(&rest[..at]);
            let (sign, behind) = rest[at..].split_at(1);
            let word = behind.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(behind.len());
            let found = match (sign, behind.strip_prefix('{')) {
                ("$", Some(braced)) => braced.find('}').map(|end| (&braced[..end], &braced[end + 1..])),
                ("$", None) => (word > 0).then(|| behind.split_at(word)),
                _ if system == System::Windows => behind.split_once('%'),
                _ => None,
            };
            match found.and_then(|(name, behind)| Some((value(name)?, behind))) {
                Some((value, behind)) => {
                    expanded.push_str(&value);
                    rest = behind;
                }
                None => {
                    expanded.push_str(sign);
                    rest = behind;
                }
            }
        }
        expanded + rest
    }

    fn in_home(&self, path: &str) -> Option<PathBuf> {
        Some(self.home.as_ref()?.join(path))
    }

    /// Hugging Face's home folder: `HF_HOME`, or the default (huggingface_hub, constants.py).
    pub(crate) fn hf_home(&self) -> Option<PathBuf> {
        let cache = || self.expanded_folder("XDG_CACHE_HOME").or_else(|| self.in_home(".cache"));
        self.expanded_folder("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))
    }

    /// Hugging Face's cache: `HF_HUB_CACHE`, or a folder in Hugging Face's home folder.
    pub(crate) fn hugging_face(&self) -> Option<PathBuf> {
        self.expanded_folder("HF_HUB_CACHE")
            .or_else(|| self.expanded_folder("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(self.hf_home()?.join("hub")))
    }

    /// llama.cpp's own cache (common/common.cpp, `fs_get_cache_directory`). Newer versions use Hugging Face's cache, or
    /// a `LLAMA_CACHE` with the same layout (common/hf-cache.cpp, `get_cache_directory`).
    fn llama_cpp(&self, system: System) -> Option<PathBuf> {
        let base = || match system {
            System::Windows => self.folder("LOCALAPPDATA"),
            System::Mac => self.in_home("Library/Caches"),
            System::Linux => self.folder("XDG_CACHE_HOME").or_else(|| self.in_home(".cache")),
        };
        self.folder("LLAMA_CACHE").or_else(|| Some(base()?.join("llama.cpp")))
    }

    /// Ollama's stores: `OLLAMA_MODELS`, or a folder in the user's home (envconfig/config.go, `Models`). Also the store
    /// of Ollama's service, which runs as a user of its own (scripts/install.sh).
    fn ollama(&self) -> impl Iterator<Item = PathBuf> {
        // Ollama removes spaces and quotation marks around the value (envconfig/config.go, `Var`).
        let named = self.get("OLLAMA_MODELS").map(|value| match value.into_string() {
            Ok(text) => text.trim().trim_matches(['"', '\'']).into(),
            Err(value) => PathBuf::from(value),
        });
        let own = named.and_then(|path| self.in_own_home(path)).or_else(|| self.in_home(".ollama/models"));
        let has_service = self.is_process && System::HERE == System::Linux;
        own.into_iter().chain(has_service.then(|| PathBuf::from("/usr/share/ollama/.ollama/models")))
    }

    /// LM Studio's folders: those in its home (lms-common-server, `findLMStudioHome`) and those in its settings (lms,
    /// src/modelsFolder.ts, `resolveModelsFolderPath`; older versions: src/subcommands/importCmd.ts,
    /// `getUserAppDataPath`).
    fn lm_studio(&self, system: System) -> Vec<PathBuf> {
        let pointer = self.in_home(".lmstudio-home-pointer");
        let pointer = pointer.and_then(|file| read_small(&file)).map(|text| PathBuf::from(text.trim()));
        let pointed = pointer.filter(|home| home.is_absolute());
        let homes = [pointed, self.in_home(".cache/lm-studio"), self.in_home(".lmstudio")];
        let homes: Vec<PathBuf> = homes.into_iter().flatten().collect();
        let data = match system {
            System::Windows => self.folder("APPDATA"),
            System::Mac => self.in_home("Library/Application Support"),
            System::Linux => self.folder("XDG_CONFIG_HOME").or_else(|| self.in_home(".config")),
        };
        let settings = homes.iter().cloned().chain(data.map(|data| data.join("LM Studio")));
        let named: Vec<PathBuf> =
            settings.filter_map(|folder| downloads_folder(&folder.join("settings.json"))).collect();
        homes.into_iter().map(|home| home.join("models")).chain(named).collect()
    }

    /// The folders of all stores. They need not exist.
    pub(super) fn places(&self, system: System) -> Vec<(Store, PathBuf)> {
        let hugging_face = self.hugging_face().map(|folder| (Store::HuggingFace, folder));
        let llama_cpp = self.llama_cpp(system).map(|folder| (Store::LlamaCpp, folder));
        let ollama = self.ollama().map(|folder| (Store::Ollama, folder));
        let lm_studio = self.lm_studio(system).into_iter().map(|folder| (Store::LmStudio, folder));
        hugging_face.into_iter().chain(llama_cpp).chain(ollama).chain(lm_studio).collect()
    }
}

fn downloads_folder(settings: &Path) -> Option<PathBuf> {
    let settings: serde_json::Value = read_small(settings)?.parse().ok()?;
    settings["downloadsFolder"].as_str().map(PathBuf::from).filter(|folder| folder.is_absolute())
}

/// The text of a small file; `None` if there is no such file, or it is too large.
fn read_small(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    (file.is_file() && file.len() <= MAX_SETTINGS).then(|| fs::read_to_string(path).ok())?
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Environment, System};
    use crate::local::Store;

    #[test]
    fn percent_signs_mark_a_variable_only_on_windows() {
        let environment = Environment::new("/h").variable("DATA", "D:/x");
        assert_eq!(environment.expanded("%DATA%/%UNSET%/50%", System::Windows), "D:/x/%UNSET%/50%");
        assert_eq!(environment.expanded("%DATA%/é$DATA", System::Linux), "%DATA%/éD:/x");
    }

    #[test]
    fn each_tool_has_its_folders_in_a_home_or_where_its_variables_say() {
        use System::{Linux, Mac, Windows};
        let old = ("HUGGINGFACE_HUB_CACHE", "/old");
        for (variables, system, store, folders) in [
            (&[][..], Linux, Store::HuggingFace, &["/h/.cache/huggingface/hub"][..]),
            (&[], Mac, Store::HuggingFace, &["/h/.cache/huggingface/hub"]),
            (&[], Linux, Store::LlamaCpp, &["/h/.cache/llama.cpp"]),
            (&[], Mac, Store::LlamaCpp, &["/h/Library/Caches/llama.cpp"]),
            (&[("LOCALAPPDATA", "/l")], Windows, Store::LlamaCpp, &["/l/llama.cpp"]),
            (&[], Linux, Store::Ollama, &["/h/.ollama/models"]),
            (&[], Windows, Store::LmStudio, &["/h/.cache/lm-studio/models", "/h/.lmstudio/models"]),
            (&[("XDG_CACHE_HOME", "/x")], Linux, Store::HuggingFace, &["/x/huggingface/hub"]),
            (&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/f")], Linux, Store::HuggingFace, &["/h/f/hub"]),
            (&[("HF_HOME", "~/f"), old], Linux, Store::HuggingFace, &["/old"]),
            (&[old, ("HF_HUB_CACHE", "/new")], Linux, Store::HuggingFace, &["/new"]),
            (&[old, ("HF_HUB_CACHE", "")], Linux, Store::HuggingFace, &["/old"]),
            (
                &[("HF_HOME", "$DATA/${USER}/f"), ("DATA", "/d"), ("USER", "me")],
                Linux,
                Store::HuggingFace,
                &["/d/me/f/hub"],
            ),
            (
                &[("HF_HUB_CACHE", "/a$UNSET/${UNSET}/$/${/b%DATA%"), ("DATA", "/d")],
                Linux,
                Store::HuggingFace,
                &["/a$UNSET/${UNSET}/$/${/b%DATA%"],
            ),
            (&[("XDG_CACHE_HOME", "$DATA"), ("DATA", "/d")], Linux, Store::HuggingFace, &["/d/huggingface/hub"]),
            (&[("LLAMA_CACHE", "/c")], Linux, Store::LlamaCpp, &["/c"]),
            (&[("OLLAMA_MODELS", "/o")], Linux, Store::Ollama, &["/o"]),
            (&[("OLLAMA_MODELS", " \"/o p\" ")], Linux, Store::Ollama, &["/o p"]),
            (&[("OLLAMA_MODELS", "''")], Linux, Store::Ollama, &["/h/.ollama/models"]),
        ] {
            let home = Environment::new("/h");
            let environment =
                variables.iter().fold(home, |environment, &(name, value)| environment.variable(name, value));
            let found = environment.places(system).into_iter().filter(|(of, _)| *of == store).map(|(_, folder)| folder);
            let expected: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
            assert_eq!(found.collect::<Vec<_>>(), expected, "{variables:?} {system:?} {store}");
        }
    }
}
