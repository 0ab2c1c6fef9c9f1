//! The specification of a model of the pool.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use autoplace::plan::Request;
use autoplace::store::StoreOptions;

use crate::error::Error;

/// Maximum bytes of a name.
const MAX_NAME: usize = 200;

/// How a model of the pool is named, loaded and kept.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct ModelSpec {
    /// Its name. The pool only looks it up, and never opens it as a path.
    pub name: String,
    /// Its GGUF file, or `hf:OWNER/NAME[:QUANT][@REVISION]` with the feature `hub` of `autoplace`.
    pub model: PathBuf,
    /// The request that its plans are made for.
    pub request: Request,
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// Whether the model is loaded with the pool and never unloaded. It may still be placed smaller.
    pub keep: bool,
    /// How long the model stays loaded without a request; `None`: until its memory is needed.
    pub idle: Option<Duration>,
    /// The weight of its waiting time, relative to other models; 1 by default.
    pub priority: f64,
    /// Models that are loaded whenever this one is.
    pub beside: Vec<String>,
    /// A draft model with the same vocabulary, which is planned and loaded with the model.
    pub draft: Option<PathBuf>,
    /// The projector (mmproj) for images and sound, which is planned and loaded with the model: a file, or
    /// `hf:OWNER/NAME` as in [`model`](Self::model).
    pub mmproj: Option<PathBuf>,
    /// Whether a server may look for a projector beside the model if [`mmproj`](Self::mmproj) names none; true by
    /// default. The pool itself does not use this setting.
    pub finds_mmproj: bool,
    /// LoRA adapters, which are planned and loaded with the model, each with scale 1.
    pub lora: Vec<PathBuf>,
    /// Whether the model is loaded when the pool starts, if there is room without unloading another one. Unlike a model
    /// to [`keep`](Self::keep), it may be unloaded later.
    pub preload: bool,
    /// The family of the chat template, or a file with one; `None` for the model's own. The pool does not use it: it is
    /// for servers.
    pub template: Option<String>,
    /// The store for the computed states of its texts; `None` keeps nothing.
    pub prompt_store: Option<StoreOptions>,
}

impl ModelSpec {
    /// A model under this name, with the default request.
    pub fn new(name: impl Into<String>, model: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            model: model.into(),
            request: Request::new(),
            aliases: Vec::new(),
            keep: false,
            idle: None,
            priority: 1.0,
            beside: Vec::new(),
            draft: None,
            mmproj: None,
            finds_mmproj: true,
            lora: Vec::new(),
            preload: false,
            template: None,
            prompt_store: None,
        }
    }

    /// Sets the request that the model's plans are made for.
    pub fn request(mut self, request: Request) -> Self {
        self.request = request;
        self
    }

    /// Adds another name.
    pub fn alias(mut self, name: impl Into<String>) -> Self {
        self.aliases.push(name.into());
        self
    }

    /// Sets whether the model is loaded with the pool and never unloaded.
    pub const fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Sets how long the model stays loaded without a request.
    pub const fn idle(mut self, time: Duration) -> Self {
        self.idle = Some(time);
        self
    }

    /// Sets the weight of its waiting time: with 2, each second counts twice.
    pub const fn priority(mut self, weight: f64) -> Self {
        self.priority = weight;
        self
    }

    /// Adds a model that is loaded whenever this one is.
    pub fn beside(mut self, name: impl Into<String>) -> Self {
        self.beside.push(name.into());
        self
    }

    /// Loads a draft model with this one.
    pub fn draft(mut self, path: impl Into<PathBuf>) -> Self {
        self.draft = Some(path.into());
        self
    }

    /// Loads a projector (mmproj) with this model, so that requests may show it images and let it hear sounds.
    pub fn mmproj(mut self, path: impl Into<PathBuf>) -> Self {
        self.mmproj = Some(path.into());
        self
    }

    /// Loads a LoRA adapter with this model.
    pub fn lora(mut self, path: impl Into<PathBuf>) -> Self {
        self.lora.push(path.into());
        self
    }

    /// Sets whether the model is loaded when the pool starts, if there is room.
    pub const fn preload(mut self, preload: bool) -> Self {
        self.preload = preload;
        self
    }

    /// Sets the family of the chat template, or a file with a template. It is for servers.
    pub fn template(mut self, template: impl Into<String>) -> Self {
        self.template = Some(template.into());
        self
    }

    /// Keeps the computed states of the model's texts in a prompt store of its own. Later texts use them, even after
    /// the model was unloaded and loaded again. The memory of a worker ends with the worker, so a model in a worker
    /// needs a [folder](StoreOptions::folder) for this. Each model needs its own folder, because only one process may
    /// write to a folder. The pool's plans leave the store's [memory](StoreOptions::memory) free.
    pub fn prompt_store(mut self, options: StoreOptions) -> Self {
        self.prompt_store = Some(options);
        self
    }

    /// Whether the model has this name or alias.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// Whether a model that is loaded for this specification is what `other` describes too, apart from the path of its
    /// file.
    pub(crate) fn is_loaded_as(&self, other: &Self) -> bool {
        // All fields that are not listed here matter for the load.
        let Self { name, model, aliases, keep, idle, priority, beside, finds_mmproj, preload, template, .. } =
            other.clone();
        let same = Self {
            name,
            model,
            aliases,
            keep,
            idle,
            priority,
            beside,
            finds_mmproj,
            preload,
            template,
            ..self.clone()
        };
        same == *other
    }

    /// The first problem of the specification by itself.
    fn problem(&self) -> Option<String> {
        if let Some(name) = [&self.name].into_iter().chain(&self.aliases).find(|name| !is_name(name)) {
            return Some(format!(
                "`{}` is not a name: a name has 1 to {MAX_NAME} bytes and no control characters",
                name.escape_debug()
            ));
        }
        let is_weight = self.priority.is_finite() && self.priority > 0.0;
        (!is_weight).then(|| format!("the priority is {}: it must be above 0", self.priority))
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.contains(char::is_control)
}

/// Checks the models together: each name belongs to one model, and every name in `beside` is in the pool.
///
/// # Errors
///
/// [`Error::Specification`] with the first invalid model.
pub fn check(models: &[ModelSpec]) -> Result<(), Error> {
    let error = |name: &str, problem: String| Error::Specification { name: name.to_owned(), problem };
    let mut names = BTreeSet::new();
    for model in models {
        if let Some(problem) = model.problem() {
            return Err(error(&model.name, problem));
        }
        for name in [&model.name].into_iter().chain(&model.aliases) {
            if !names.insert(name.as_str()) {
                return Err(error(&model.name, format!("another model is named `{name}` too")));
            }
        }
    }
    for model in models {
        for beside in &model.beside {
            if beside == &model.name {
                return Err(error(&model.name, "`beside` lists the model itself".to_owned()));
            }
            if !models.iter().any(|other| other.name == *beside) {
                let known: Vec<&str> = models.iter().map(|other| other.name.as_str()).collect();
                let problem =
                    format!("`beside` lists `{beside}`, which is not in the pool: it has {}", known.join(", "));
                return Err(error(&model.name, problem));
            }
        }
    }
    Ok(())
}
