//! The file `pool.toml`: models by their names, and the limits of the pool.
//!
//! ```
//! let text = r#"
//! [models.coder]
//! model = "qwen3-coder-30b-a3b.gguf"   # a path, relative to the file, or `hf:OWNER/NAME`
//! ctx = 16384
//! idle = "30m"
//! beside = ["embedder"]
//!
//! [models.embedder]
//! model = "nomic-embed-text-v1.5.gguf"
//! embed = "mean"
//! "#;
//! let pool = autoplace_pool::PoolFile::parse(text, "pool.toml").unwrap();
//! assert_eq!(pool.models[0].name, "coder");
//! assert_eq!(pool.models[0].idle, Some(std::time::Duration::from_secs(1800)));
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use autoplace::chat::FAMILIES;
use autoplace::gguf::read_text;
use autoplace::memory::{KvType, Pooling};
use autoplace::plan::{Context, GpuLayers, KvCache, MoeCache, Request};
use autoplace::store::StoreOptions;

use crate::amounts::{self, TIME, duration};
use crate::error::Error;
use crate::spec::{self, ModelSpec};
use crate::state::Limits;

/// Maximum bytes of the file.
const MAX_BYTES: u64 = 1 << 20;

/// The models and the limits of a pool, as a file describes them.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct PoolFile {
    /// The models, in the order of their names.
    pub models: Vec<ModelSpec>,
    /// The limits of the pool.
    pub limits: Limits,
}

impl PoolFile {
    /// Reads a file. Paths in it are relative to its folder.
    ///
    /// # Errors
    ///
    /// [`Error::Read`] if the file cannot be read; [`Error::Line`], with the line, the key and the valid values, if a
    /// line is invalid or two models do not agree.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::read_with_defaults(path, &Request::new())
    }

    /// Reads a file as [`read`](Self::read) does. For models that write texts, settings that the file leaves open are
    /// those of `defaults`.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn read_with_defaults(path: impl AsRef<Path>, defaults: &Request) -> Result<Self, Error> {
        let path = path.as_ref();
        let error = |source| Error::Read { file: path.to_owned(), source };
        let text = File::open(path).and_then(|file| read_text(file, MAX_BYTES)).map_err(|problem| {
            let kind = problem.kind();
            error(match kind {
                io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge => {
                    io::Error::new(kind, format!("{problem}; a file of models is TOML (docs/pool.md)"))
                }
                _ => problem,
            })
        })?;
        Self::parse_with_defaults(&text, path, defaults)
    }

    /// Parses the text of a file. `path` is named in errors, and paths in the text are relative to its folder.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn parse(text: &str, path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::parse_with_defaults(text, path, &Request::new())
    }

    /// Parses the text of a file as [`parse`](Self::parse) does, over the defaults of
    /// [`read_with_defaults`](Self::read_with_defaults).
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    pub fn parse_with_defaults(text: &str, path: impl AsRef<Path>, defaults: &Request) -> Result<Self, Error> {
        let source = Source { text, path: path.as_ref() };
        let raw: Raw = toml::from_str(text).map_err(|error| source.error(error.span(), error.message()))?;
        let limits = raw.pool.limits(&source)?;
        let mut models = Vec::new();
        let mut places = Vec::new();
        for (name, model) in &raw.models {
            models.push(model.get_ref().specification(name.get_ref(), &source, defaults)?);
            places.push(name.span());
        }
        match spec::check(&models) {
            Err(Error::Specification { name, problem }) => {
                let place = models.iter().position(|model| model.name == name).map(|index| places[index].clone());
                Err(source.error(place, &problem))
            }
            checked => checked.map(|()| Self { models, limits }),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    pool: RawPool,
    #[serde(default)]
    models: BTreeMap<Spanned<String>, Spanned<RawModel>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPool {
    reloads_per_minute: Option<u32>,
    ram: Option<Spanned<Size>>,
    anticipate: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    model: Spanned<String>,
    ctx: Option<Spanned<u32>>,
    kv: Option<Spanned<String>>,
    parallel: Option<Spanned<u32>>,
    ngl: Option<u32>,
    moe_cache: Option<Spanned<Size>>,
    embed: Option<Spanned<String>>,
    draft: Option<PathBuf>,
    mmproj: Option<Spanned<RawMmproj>>,
    #[serde(default)]
    lora: Vec<PathBuf>,
    template: Option<String>,
    cache_ram: Option<Spanned<Size>>,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    keep: bool,
    #[serde(default)]
    preload: bool,
    idle: Option<Spanned<Idle>>,
    priority: Option<f64>,
    #[serde(default)]
    beside: Vec<String>,
}

/// A time: a number of seconds, or a text such as `10m`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "an idle time is a number of seconds, or a text such as \"90s\", \"10m\" or \"2h\"")]
enum Idle {
    Seconds(u64),
    Text(String),
}

/// A projector: its file, or `false` for none.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a projector is a file, `hf:OWNER/NAME`, or false for none")]
enum RawMmproj {
    None(bool),
    File(PathBuf),
}

/// Memory: a number of bytes, or a text such as `8GiB`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a size is a number of bytes, or a text such as \"8GiB\" or \"600MiB\"")]
enum Size {
    Bytes(u64),
    Text(String),
}

impl RawPool {
    fn limits(&self, source: &Source<'_>) -> Result<Limits, Error> {
        let mut limits = Limits::default();
        limits.reloads_per_minute = self.reloads_per_minute;
        limits.anticipate = self.anticipate.unwrap_or(limits.anticipate);
        limits.ram = self.ram.as_ref().map(|ram| source.size(ram)).transpose()?;
        Ok(limits)
    }
}

/// The text, for errors.
struct Source<'t> {
    text: &'t str,
    path: &'t Path,
}

impl Source<'_> {
    /// The error at this place, with its line and the key at the beginning of the line.
    fn error(&self, place: Option<Range<usize>>, problem: &str) -> Error {
        let begin = place.map_or(0, |place| place.start).min(self.text.len());
        let before = self.text.get(..begin).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let text = self.text.lines().nth(line - 1).unwrap_or_default();
        let key = text.split_once('=').map(|(key, _)| key.trim().to_owned());
        // In the line of a table's header, the key is the header.
        let key = key.or_else(|| text.trim().strip_prefix('[')?.strip_suffix(']').map(str::to_owned));
        Error::Line { file: self.path.to_owned(), line, key, problem: problem.trim().replace('\n', "; ") }
    }

    fn size(&self, size: &Spanned<Size>) -> Result<u64, Error> {
        match size.get_ref() {
            Size::Bytes(bytes) => Ok(*bytes),
            Size::Text(text) => amounts::size(text).map_err(|problem| self.error(Some(size.span()), &problem)),
        }
    }

    /// A cache of experts: `auto`, `off`, or its bytes.
    fn moe_cache(&self, cache: &Spanned<Size>) -> Result<MoeCache, Error> {
        match cache.get_ref() {
            Size::Bytes(0) => Ok(MoeCache::Off),
            Size::Bytes(bytes) => Ok(MoeCache::Bytes(*bytes)),
            Size::Text(text) => match text.as_str() {
                "auto" => Ok(MoeCache::Auto),
                "off" => Ok(MoeCache::Off),
                text => amounts::size(text)
                    .map(MoeCache::Bytes)
                    .map_err(|problem| self.error(Some(cache.span()), &format!("{problem}, `auto`, or `off`"))),
            },
        }
    }

    /// The name of a template's family or the text of a template, unchanged; otherwise the path of a file with a
    /// template.
    fn template_of(&self, name: &str) -> String {
        let is_source = name.contains("{{") || name.contains("{%");
        if FAMILIES.contains(&name) || is_source {
            return name.to_owned();
        }
        self.path_of(Path::new(name)).to_string_lossy().into_owned()
    }

    /// A path in the file, which is relative to the file's folder.
    fn path_of(&self, path: &Path) -> PathBuf {
        let is_name = path.to_str().is_some_and(|text| text.starts_with("hf:"));
        match self.path.parent() {
            Some(folder) if !is_name => folder.join(path),
            _ => path.to_owned(),
        }
    }
}

impl RawModel {
    fn specification(&self, name: &str, source: &Source<'_>, defaults: &Request) -> Result<ModelSpec, Error> {
        // Defaults such as the context are for models that write texts.
        let mut request = if self.embed.is_some() { Request::new() } else { defaults.clone() };
        if self.model.get_ref().is_empty() {
            return Err(source.error(Some(self.model.span()), "it is empty: a path or `hf:OWNER/NAME` is needed"));
        }
        if let Some(parallel) = &self.parallel {
            if !(1..=64).contains(parallel.get_ref()) {
                return Err(source.error(Some(parallel.span()), "the number of texts at once must be 1 to 64"));
            }
            request = request.n_seq_max(*parallel.get_ref());
        }
        if let Some(ctx) = &self.ctx {
            if *ctx.get_ref() < 2 {
                return Err(source.error(Some(ctx.span()), "the context must have at least 2 tokens"));
            }
            request = request.context(Context::Tokens(*ctx.get_ref()));
        }
        if let Some(kv) = &self.kv {
            let text = kv.get_ref();
            let bad = |error: &dyn std::fmt::Display| source.error(Some(kv.span()), &error.to_string());
            let (ty, choice) = match text.as_str() {
                "auto" => (KvType::default(), KvCache::Auto),
                _ => (text.parse::<KvType>().map_err(|error| bad(&format!("{error}, or auto")))?, KvCache::Given),
            };
            (request.params.type_k, request.params.type_v) = (ty, ty);
            request = request.kv_cache(choice);
        }
        if let Some(layers) = self.ngl {
            request.gpu_layers = GpuLayers::AtMost(layers);
        }
        if let Some(cache) = &self.moe_cache {
            request = request.moe_cache(source.moe_cache(cache)?);
        }
        if let Some(embed) = &self.embed {
            let known = [Pooling::Model, Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Rank];
            let pooling = known.into_iter().find(|pooling| pooling.to_string() == *embed.get_ref());
            let Some(pooling) = pooling else {
                let problem = format!("`{}` is not a pooling: use model, mean, cls, last or rank", embed.get_ref());
                return Err(source.error(Some(embed.span()), &problem));
            };
            request = request.embeddings(pooling);
        }
        if let Some(ram) = self.cache_ram.as_ref().filter(|_| request.params.embeddings.is_some()) {
            return Err(source.error(Some(ram.span()), "a model for embeddings stores no prompts"));
        }
        let mut finds_mmproj = self.embed.is_none();
        let mut mmproj = None;
        if let Some(given) = &self.mmproj {
            let wrong = |problem| Err(source.error(Some(given.span()), problem));
            match given.get_ref() {
                RawMmproj::None(false) => finds_mmproj = false,
                RawMmproj::None(true) => return wrong("`true` names no projector: write a file, or false for none"),
                RawMmproj::File(_) if self.embed.is_some() => {
                    return wrong("a model for embeddings takes no projector");
                }
                RawMmproj::File(file) if file.as_os_str().is_empty() => {
                    return wrong("it is empty: write a file, `hf:OWNER/NAME`, or false for none");
                }
                RawMmproj::File(file) => mmproj = Some(source.path_of(file)),
            }
        }
        let cache_ram = self.cache_ram.as_ref().map(|ram| source.size(ram)).transpose()?;
        let idle = self.idle.as_ref().map(|idle| match idle.get_ref() {
            Idle::Seconds(seconds) => Ok(Duration::from_secs(*seconds)),
            Idle::Text(text) => duration(text)
                .ok_or_else(|| source.error(Some(idle.span()), &format!("`{text}` is not a time: use {TIME}"))),
        });
        Ok(ModelSpec {
            request,
            aliases: self.aliases.clone(),
            keep: self.keep,
            preload: self.preload,
            lora: self.lora.iter().map(|file| source.path_of(file)).collect(),
            template: self.template.as_ref().map(|name| source.template_of(name)),
            prompt_store: cache_ram.map(StoreOptions::new),
            idle: idle.transpose()?,
            priority: self.priority.unwrap_or(1.0),
            beside: self.beside.clone(),
            mmproj,
            finds_mmproj,
            draft: self.draft.as_deref().map(|draft| source.path_of(draft)),
            ..ModelSpec::new(name, source.path_of(Path::new(self.model.get_ref())))
        })
    }
}
