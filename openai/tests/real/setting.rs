//! The two sides of a comparison: a model, and the programs that it is compared with.

use std::path::{Path, PathBuf};

use autoplace::Model;
use autoplace::chat::{self, ChatTemplate};
use autoplace::gguf::Header;
use bare_llama::Bare;

use crate::rows::Outcome;

/// The number of threads that both sides use. It must be the same on both sides, because it affects how sums are
/// rounded, and the speed.
pub(crate) const THREADS: u32 = 2;

/// One model, and what it is compared with.
pub(crate) struct Setting {
    pub(crate) path: PathBuf,
    /// The file's name without its extension.
    pub(crate) name: String,
    /// The folder with llama.cpp's programs. Without it, the model is compared with libllama's API.
    pub(crate) tools: Option<PathBuf>,
    /// A Python with transformers.
    pub(crate) python: Option<PathBuf>,
    /// llama.cpp's published grammars.
    pub(crate) grammars: Option<PathBuf>,
}

impl Setting {
    /// One setting for each model that the environment names.
    pub(crate) fn of_environment() -> Outcome<Vec<Self>> {
        let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let (tools, python) = (folder("AUTOPLACE_REAL_TOOLS"), folder("AUTOPLACE_REAL_PYTHON"));
        let grammars = folder("AUTOPLACE_REAL_GRAMMARS");
        let models = std::env::var_os("AUTOPLACE_REAL_MODELS").unwrap_or_default();
        let models = std::env::split_paths(&models).filter(|path| !path.as_os_str().is_empty());
        let setting = |path: PathBuf| -> Outcome<Self> {
            if !path.is_file() {
                return Err(format!("AUTOPLACE_REAL_MODELS: {} is no file", path.display()).into());
            }
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok(Self { path, name, tools: tools.clone(), python: python.clone(), grammars: grammars.clone() })
        };
        models.map(setting).collect()
    }

    /// Whether everything is compared, or only the part that the CI runs.
    pub(crate) fn is_whole(&self) -> bool {
        self.tools.is_some()
    }

    /// A program of llama.cpp, if available.
    pub(crate) fn tool(&self, name: &str) -> Option<PathBuf> {
        let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
        self.tools.as_deref().map(|folder: &Path| folder.join(file))
    }

    /// The model's own template. For a base model without a template, that of its family.
    pub(crate) fn template(&self) -> Outcome<ChatTemplate> {
        let header = Header::open(&self.path)?;
        match ChatTemplate::from_header(&header) {
            Err(chat::Error::NoTemplate { .. }) => {
                let family = ChatTemplate::family("gemma")?;
                let source = family.source_for(false).ok_or("the family has no template")?;
                Ok(ChatTemplate::from_source(source, &header)?)
            }
            template => Ok(template?),
        }
    }

    /// Loads the model with a context of this size.
    pub(crate) fn load(&self, n_ctx: u32) -> Outcome<Model> {
        Ok(Model::builder(&self.path).n_ctx(n_ctx).n_threads(THREADS).load()?)
    }

    /// Loads the model with llama.cpp's own functions, on the host. It is for runs without llama.cpp's programs.
    pub(crate) fn bare(&self, n_ctx: u32) -> Outcome<Bare> {
        Ok(Bare::load(&self.path, 0, THREADS, |params| params.n_ctx = n_ctx)?)
    }
}
