//! A server of several models. In: a file (`pool.toml`), a folder, and models on the command line. Out: a pool. On
//! SIGHUP, the pool reads the file and the folder again.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use autoplace::ModelBuilder;
use autoplace::chat::ChatTemplate;
use autoplace::gguf::Header;
use autoplace::memory::Pooling;
use autoplace::plan::Request;
use autoplace::profile::ModelProfile;
use autoplace_hub::{Models, Name};
use autoplace_openai::server::Server;
use autoplace_openai::{Api, ApiError};
use autoplace_pool::{ModelHandle, ModelSpec, Pool, PoolFile};

use super::pool_page;
use super::screen::note;
use super::serve::{ServeArgs, name_of, until_stopped};
use super::source::{self, Files, Wanted};
use super::store::PoolStores;
use crate::stop::Stop;
use crate::template;

/// The value of llama.cpp's `llama_pooling_type` for rerankers.
const POOLING_RANK: u32 = 4;

/// Several models, which share the machine.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several models")]
pub(crate) struct PoolArgs {
    /// Further models. All share the machine: each is loaded when a request names it, and makes room for others
    #[arg(value_name = "MODEL", conflicts_with_all = ONE_MODEL)]
    more: Vec<String>,
    /// A file of models with their settings (docs/pool.md), which SIGHUP reads again
    #[arg(long, value_name = "FILE", conflicts_with_all = ONE_MODEL)]
    models: Option<PathBuf>,
    /// A folder of GGUF files, each a model with the file's name; SIGHUP looks again
    #[arg(long, value_name = "DIR", conflicts_with_all = ONE_MODEL)]
    models_dir: Option<PathBuf>,
}

/// Arguments that place a single model. In a pool, the keys of `pool.toml` set these values, or the pool decides them.
const ONE_MODEL: [&str; 9] =
    ["DeviceArgs", "AdapterArgs", "mmproj", "plan", "alias", "rpc", "lora_init_without_apply", "embeddings", "tags"];

impl PoolArgs {
    /// Whether the arguments are for several models.
    pub(super) fn is_meant(&self) -> bool {
        !self.more.is_empty() || self.models.is_some() || self.models_dir.is_some()
    }
}

/// Serves the models until Ctrl-C.
pub(super) fn serve(args: &ServeArgs, keys: Vec<String>, listener: TcpListener) -> Result<ExitCode, Box<dyn Error>> {
    let running = Arc::new(Mutex::new(None::<Pool>));
    let sources = Arc::new(Sources::new(args, args.load.pool_stores(&keys)?));
    let (heard, read) = (Arc::clone(&running), Arc::clone(&sources));
    let stop = Stop::listen_and_on_hangup(move || read_again(&read, &heard))?;
    let find = |name: &str, wanted: &Wanted, request: &Request| args.load.source.files_of(name, wanted, request, &stop);
    let Some(models) = sources.read(find)? else { return Ok(ExitCode::from(130)) };
    for model in &models.models {
        let beside = model.mmproj.as_ref().map(|file| format!(", images or sound by {}", file.display()));
        let lacking = if model.model.exists() { "" } else { " (there is no such file)" };
        note(format!("{}: {}{lacking}{}", model.name, model.model.display(), beside.unwrap_or_default()));
    }
    let (threads, images) = (args.load.threads(), args.load.projector.limits());
    let requests =
        args.queue + models.models.iter().map(|model| model.request.params.n_seq_max as usize).sum::<usize>();
    let pool = Pool::builder()
        .file(models)
        .isolation(args.worker())
        .configure(move |_, builder: ModelBuilder| images.set(threads.set(builder)))
        .start()?;
    *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(pool.clone());
    let (sampling, when_full, spm_infill) = (args.sampling.clone(), args.shift.when_full(), args.spm_infill);
    let (caches_prompts, max_tokens) = (!args.no_cache_prompt, args.max_tokens());
    let (describes_tools, hosts, template) = (!args.no_tool_descriptions, args.media_hosts()?, args.template.clone());
    let api = move |handle: &ModelHandle, api: Api| {
        let api =
            api.sampling(sampling.over(handle.sampling(), true)).when_full(when_full).infill_suffix_first(spm_infill);
        let api = max_tokens.into_iter().fold(hosts.set(api).cache_prompt(caches_prompts), Api::max_tokens);
        Ok(match template_of(handle, template.as_deref())? {
            Some(template) => api.template(template.describe_tools(describes_tools)),
            None => api,
        })
    };
    let engine = args.engine();
    let normalization = args.embd_normalize.unwrap_or_default();
    let server = Server::from_pool(pool)
        .engine(move |builder| engine.set(builder))
        .api(api)
        .embedders(move |embedder| embedder.normalize(normalization))
        .requests(requests.min(MAX_REQUESTS))
        .page(pool_page::html);
    let server = args.access(server, keys)?;
    let ended = until_stopped(listener, &stop, |listener, stop| server.serve(listener, stop));
    // This drops the last handle of the pool, and so the models are unloaded.
    drop(running.lock().unwrap_or_else(PoisonError::into_inner).take());
    ended
}

/// Maximum number of requests that are not answered yet. Together with as many other connections, they fit into a limit
/// of 1024 open files.
const MAX_REQUESTS: usize = 512;

/// Reads the file and the folder again, and sets the models of the pool that is running. If a model has changed, it is
/// replaced once its texts have ended. If there is an error, everything stays as it was.
fn read_again(sources: &Sources, running: &Mutex<Option<Pool>>) {
    let pool = || running.lock().unwrap_or_else(PoisonError::into_inner);
    if pool().is_none() {
        return note("SIGHUP came before the models were known: they are read now");
    }
    // The lock is not held while the files are read: a folder on the network may take long, and the pool must be able
    // to end meanwhile. Nothing is fetched at this time, because nobody is there to confirm it.
    let read = sources.read(source::files_here).and_then(|models| {
        let pool = pool();
        let (Some(PoolFile { models, limits, .. }), Some(pool)) = (models, pool.as_ref()) else { return Ok(0) };
        let count = models.len();
        pool.set_models(models, limits)?;
        Ok(count)
    });
    match read {
        Ok(count) => note(format!("SIGHUP: {count} models")),
        Err(error) => note(format!("SIGHUP: nothing is changed: {error}")),
    }
}

/// Where the models come from.
struct Sources {
    file: Option<PathBuf>,
    folder: Option<PathBuf>,
    /// The models on the command line.
    named: Vec<String>,
    embed: Option<PathBuf>,
    reranker: Option<PathBuf>,
    /// The request for models that write texts. If the file has a key too, the file's value counts.
    request: Request,
    /// Which projector to look for, for each model.
    wanted: Wanted,
    stores: PoolStores,
    /// For a name and a wanted projector, the files that were found.
    files: Mutex<BTreeMap<(String, Wanted), Files>>,
}

/// A function that finds the files of a model by the model's name or path.
type Find<'f> = &'f dyn Fn(&str, &Wanted, &Request) -> Result<Option<Files>, Box<dyn Error>>;

impl Sources {
    fn new(args: &ServeArgs, stores: PoolStores) -> Self {
        let named = args.load.source.model().into_iter().map(str::to_owned).chain(args.pool.more.iter().cloned());
        let mut request = args.request();
        // Each model's store has its own limit, which is set elsewhere.
        request.prompt_store = 0;
        Self {
            file: args.pool.models.clone(),
            folder: args.pool.models_dir.clone(),
            named: named.collect(),
            embed: args.embed.clone(),
            reranker: args.reranker.clone(),
            request,
            wanted: args.load.projector.wanted(true),
            stores,
            files: Mutex::default(),
        }
    }

    /// All models; `None` if the user cancelled a fetch.
    fn read(
        &self,
        find: impl Fn(&str, &Wanted, &Request) -> Result<Option<Files>, Box<dyn Error>>,
    ) -> Result<Option<PoolFile>, Box<dyn Error>> {
        let read = |file: &PathBuf| PoolFile::read_with_defaults(file, &self.request);
        let mut all = self.file.as_ref().map(read).transpose()?.unwrap_or_default();
        for model in &mut all.models {
            let wanted = match &model.mmproj {
                Some(file) => Wanted::At(file.clone()),
                None if model.finds_mmproj => self.wanted.clone(),
                None => Wanted::Nothing,
            };
            let name = model.model.to_str().filter(|name| Name::is_hub_name(name) || wanted.is_named());
            let Some(name) = name else {
                model.mmproj = wanted.beside(&model.model);
                continue;
            };
            let Some(files) = self.found(name, &wanted, &model.request, &find)? else { return Ok(None) };
            (model.model, model.mmproj) = (files.model, files.projector);
        }
        for name in &self.named {
            let files = self.found(name, &self.wanted, &self.request, &find)?;
            let Some(Files { model: path, projector }) = files else { return Ok(None) };
            let mut spec = ModelSpec::new(name_of(&path), &path).request(self.request_of(&path)).preload(true);
            spec.mmproj = projector.filter(|_| spec.request.params.embeddings.is_none());
            all.models.push(spec);
        }
        for (path, pooling) in [(&self.embed, None), (&self.reranker, Some(Pooling::Rank))] {
            let Some(path) = path else { continue };
            let pooling = pooling.or_else(|| pooling_of(path)).unwrap_or(Pooling::Mean);
            all.models.push(ModelSpec::new(name_of(path), path).request(Request::new().embeddings(pooling)).keep(true));
        }
        if let Some(folder) = &self.folder {
            self.read_folder(folder, &mut all)?;
        }
        for model in all.models.iter_mut().filter(|model| model.request.params.embeddings.is_none()) {
            model.prompt_store = self.stores.of(&model.name, model.prompt_store.as_ref());
        }
        if all.models.is_empty() {
            return Err("there is no model: neither the file nor the folder has one".into());
        }
        autoplace_pool::check(&all.models)?;
        Ok(Some(all))
    }

    /// The files of a model by its name or path. Once files were found for a name, these files are used again. With
    /// other files, a model would be unloaded although its settings have not changed.
    fn found(
        &self,
        name: &str,
        wanted: &Wanted,
        request: &Request,
        find: Find<'_>,
    ) -> Result<Option<Files>, Box<dyn Error>> {
        let key = (name.to_owned(), wanted.clone());
        let known = self.files.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(files) = known.filter(Files::exist) {
            return Ok(Some(files));
        }
        let found = find(name, wanted, request)?;
        if let Some(files) = &found {
            self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(key, files.clone());
        }
        Ok(found)
    }

    /// Adds the models in the folder. A file is left out if another specification already uses it.
    fn read_folder(&self, folder: &Path, all: &mut PoolFile) -> Result<(), Box<dyn Error>> {
        let found = Models::in_folders([folder])?;
        let known: BTreeSet<PathBuf> = all.models.iter().map(|model| one_path(&model.model)).collect();
        let mut in_folder: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for model in &found.models {
            *in_folder.entry(folder_of(&model.files)).or_default() += 1;
        }
        for model in found.models {
            // If there are several models in a folder, it is not known to which of them a projector belongs.
            let is_alone = in_folder.get(&folder_of(&model.files)) == Some(&1);
            let Some(path) = model.files.first().filter(|path| !known.contains(&one_path(path))) else { continue };
            let is_taken = |name: &str| all.models.iter().any(|model| model.is_named(name));
            // If two files have the same name, the name of the second one includes its folder.
            let name = match is_taken(&model.name) {
                true => path.strip_prefix(folder).unwrap_or(path).with_extension("").to_string_lossy().into_owned(),
                false => model.name,
            };
            if is_taken(&name) {
                note(format!("{} is left out: another model is named `{name}`", path.display()));
                continue;
            }
            let mut spec = ModelSpec::new(name, path).request(self.request_of(path));
            if is_alone && spec.request.params.embeddings.is_none() {
                spec.mmproj = self.wanted.beside(path);
            }
            all.models.push(spec);
        }
        Ok(())
    }

    /// The request for a model that is not in the pool's file. It is a request for vectors if the model's header states
    /// a pooling, and otherwise for texts.
    fn request_of(&self, path: &Path) -> Request {
        match pooling_of(path) {
            Some(pooling) => Request::new().embeddings(pooling),
            None => self.request.clone(),
        }
    }
}

/// The folder that contains a model's first file.
fn folder_of(files: &[PathBuf]) -> PathBuf {
    files.first().and_then(|file| file.parent()).map(Path::to_owned).unwrap_or_default()
}

/// The path without symbolic links. With it, a file that is named twice is recognised.
fn one_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The pooling that a model's header states; `None` for a model that writes texts. Also `None` if the file cannot be
/// read: requests for that model then get the error.
pub(super) fn pooling_of(path: &Path) -> Option<Pooling> {
    let profile = ModelProfile::from_header(&Header::open(path).ok()?).ok()?;
    let pooling = profile.hparams.pooling?;
    Some(if pooling == POOLING_RANK { Pooling::Rank } else { Pooling::Model })
}

/// The template of a model: the one that its specification names, or `other`, or else the model's own. `None` if there
/// is none of them. Such a model answers prompts, but not chats.
fn template_of(handle: &ModelHandle, other: Option<&str>) -> Result<Option<ChatTemplate>, ApiError> {
    let failed = |error: &dyn std::fmt::Display| ApiError::new(500, format!("{}: {error}", handle.name()));
    let header = handle.header().map_err(|error| failed(&error))?;
    match handle.specification().template.as_deref().or(other) {
        Some(name) => template::named(name, header).map(Some).map_err(|error| failed(&error)),
        None => Ok(ChatTemplate::from_header(header).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs;

    #[test]
    fn a_name_keeps_the_file_that_was_found_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.gguf");
        fs::write(&file, "").unwrap();
        let sources = Sources {
            file: None,
            folder: None,
            named: vec!["hf:owner/name".to_owned()],
            embed: None,
            reranker: None,
            request: Request::new(),
            wanted: Wanted::Beside,
            stores: PoolStores::default(),
            files: Mutex::default(),
        };
        let asked = Cell::new(0);
        let find = |_: &str, _: &Wanted, _: &Request| {
            asked.set(asked.get() + 1);
            Ok(Some(Files { model: file.clone(), projector: None }))
        };
        for _ in 0..3 {
            assert_eq!(sources.read(find).unwrap().unwrap().models[0].model, file);
        }
        assert_eq!(asked.get(), 1);
        // If the file no longer exists, files are looked for again.
        fs::remove_file(&file).unwrap();
        sources.read(find).unwrap();
        assert_eq!(asked.get(), 2);
    }
}
