//! A server of several models. In: a file (`pool.toml`), a folder, and models on the command line. Out: a pool. SIGHUP
//! makes it read the file and the folder again.

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

/// Arguments for the placement of a single model. In a pool, keys of `pool.toml` replace them, or the pool decides.
const ONE_MODEL: [&str; 7] = ["DeviceArgs", "AdapterArgs", "mmproj", "plan", "alias", "rpc", "lora_init_without_apply"];

impl PoolArgs {
    /// Whether the arguments name a pool instead of a single model.
    pub(super) fn is_meant(&self) -> bool {
        !self.more.is_empty() || self.models.is_some() || self.models_dir.is_some()
    }
}

/// Serves the models until Ctrl-C.
pub(super) fn serve(args: &ServeArgs, key: Option<String>, listener: TcpListener) -> Result<ExitCode, Box<dyn Error>> {
    let running = Arc::new(Mutex::new(None::<Running>));
    let heard = Arc::clone(&running);
    let stop = Stop::listen_and_on_hangup(move || match &*heard.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(running) => running.read_again(),
        None => note("SIGHUP came before the models were known: they are read now"),
    })?;
    let sources = Sources::new(args, args.load.pool_stores(key.as_deref())?);
    let find = |name: &str, wanted: &Wanted, request: &Request| args.load.source.files_of(name, wanted, request, &stop);
    let Some(models) = sources.read(find)? else { return Ok(ExitCode::from(130)) };
    for model in &models.models {
        let beside = model.mmproj.as_ref().map(|file| format!(", images or sound by {}", file.display()));
        note(format!("{}: {}{}", model.name, model.model.display(), beside.unwrap_or_default()));
    }
    let templates = Templates::new(&models.models, args.template.clone());
    let (threads, images) = (args.load.threads(), args.load.projector.limits());
    let requests =
        args.queue + models.models.iter().map(|model| model.request.params.n_seq_max as usize).sum::<usize>();
    let pool = Pool::builder()
        .file(models)
        .isolation(args.worker())
        .configure(move |_, builder: ModelBuilder| images.set(threads.set(builder)))
        .start()?;
    *running.lock().unwrap_or_else(PoisonError::into_inner) =
        Some(Running { pool: pool.clone(), sources, templates: templates.clone() });
    let (sampling, when_full, spm_infill) = (args.sampling.clone(), args.shift.when_full(), args.spm_infill);
    let (describes_tools, hosts) = (!args.no_tool_descriptions, args.media_hosts()?);
    let api = move |handle: &ModelHandle, api: Api| {
        let api = api.sampling(sampling.over(handle.sampling())).when_full(when_full).infill_suffix_first(spm_infill);
        let api = hosts.set(api);
        Ok(match templates.of(handle)? {
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
    let server = args.access(server, key)?;
    let ended = until_stopped(listener, args.timeout(), &stop, |listener, stop| server.serve(listener, stop));
    // This drops the last handle of the pool, which unloads the models.
    drop(running.lock().unwrap_or_else(PoisonError::into_inner).take());
    ended
}

/// Maximum number of requests under way. Together with the same number of further connections, they fit into a limit of
/// 1024 open files.
const MAX_REQUESTS: usize = 512;

/// The running pool, which SIGHUP updates.
struct Running {
    pool: Pool,
    sources: Sources,
    templates: Templates,
}

impl Running {
    /// Reads the file and the folder again. Models that have changed are replaced once their texts have ended; after an
    /// error, everything stays as it was.
    fn read_again(&self) {
        // Nothing is fetched now, because nobody can confirm a fetch.
        let read = self.sources.read(source::files_here).and_then(|models| {
            let Some(PoolFile { models, limits, .. }) = models else { return Ok(0) };
            let count = models.len();
            // The templates are set first, because a model may be loaded as soon as the pool has it.
            let before = self.templates.set(&models);
            self.pool.set_models(models, limits).inspect_err(|_| self.templates.put_back(before))?;
            Ok(count)
        });
        match read {
            Ok(count) => note(format!("SIGHUP: {count} models")),
            Err(error) => note(format!("SIGHUP: nothing is changed: {error}")),
        }
    }
}

/// The sources of the models.
struct Sources {
    file: Option<PathBuf>,
    folder: Option<PathBuf>,
    /// Models on the command line.
    named: Vec<String>,
    embed: Option<PathBuf>,
    reranker: Option<PathBuf>,
    /// The request for models that write texts. Keys of the file take precedence.
    request: Request,
    /// The projector to look for beside each model.
    wanted: Wanted,
    stores: PoolStores,
    /// The files that were found for a name and a wanted projector.
    files: Mutex<BTreeMap<(String, Wanted), Files>>,
}

/// Finds the files of a model by its name or path.
type Find<'f> = &'f dyn Fn(&str, &Wanted, &Request) -> Result<Option<Files>, Box<dyn Error>>;

impl Sources {
    fn new(args: &ServeArgs, stores: PoolStores) -> Self {
        let named = args.load.source.model().into_iter().map(str::to_owned).chain(args.pool.more.iter().cloned());
        let mut request = args.request();
        // The store of each model states its own limit.
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

    /// All models; `None` if a fetch was cancelled.
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

    /// The files of a model by its name or path. Once files were found for a name, it keeps them: another choice would
    /// unload a model whose settings have not changed.
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

    /// Adds the models of the folder, except files that already belong to another specification.
    fn read_folder(&self, folder: &Path, all: &mut PoolFile) -> Result<(), Box<dyn Error>> {
        let found = Models::in_folders([folder])?;
        let known: BTreeSet<PathBuf> = all.models.iter().map(|model| one_path(&model.model)).collect();
        let mut in_folder: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for model in &found.models {
            *in_folder.entry(folder_of(&model.files)).or_default() += 1;
        }
        for model in found.models {
            // If a folder has several models, it is unknown to which of them a projector belongs.
            let is_alone = in_folder.get(&folder_of(&model.files)) == Some(&1);
            let Some(path) = model.files.first().filter(|path| !known.contains(&one_path(path))) else { continue };
            let is_taken = |name: &str| all.models.iter().any(|model| model.is_named(name));
            // If two files have the same name, the second one is named with its folder.
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

    /// The request for a model that is not in the file: for vectors if its header states a pooling, otherwise for
    /// texts.
    fn request_of(&self, path: &Path) -> Request {
        match pooling_of(path) {
            Some(pooling) => Request::new().embeddings(pooling),
            None => self.request.clone(),
        }
    }
}

/// The folder of a model's first file.
fn folder_of(files: &[PathBuf]) -> PathBuf {
    files.first().and_then(|file| file.parent()).map(Path::to_owned).unwrap_or_default()
}

/// The path without links, to recognise a file that was named twice.
fn one_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The pooling that a model's header states; `None` for a model that writes texts. Also `None` for a file that cannot
/// be read: requests for that model get the error.
fn pooling_of(path: &Path) -> Option<Pooling> {
    let profile = ModelProfile::from_header(&Header::open(path).ok()?).ok()?;
    let pooling = profile.hparams.pooling?;
    Some(if pooling == POOLING_RANK { Pooling::Rank } else { Pooling::Model })
}

/// The chat templates that the models' specifications name.
#[derive(Clone)]
struct Templates {
    by_name: Arc<Mutex<BTreeMap<String, String>>>,
    /// The template of all other models, if the command line names one.
    others: Option<String>,
}

impl Templates {
    fn new(models: &[ModelSpec], others: Option<String>) -> Self {
        let templates = Self { by_name: Arc::default(), others };
        templates.set(models);
        templates
    }

    /// Sets the templates of these models, and returns the former ones.
    fn set(&self, models: &[ModelSpec]) -> BTreeMap<String, String> {
        let named = models.iter().filter_map(|model| Some((model.name.clone(), model.template.clone()?)));
        std::mem::replace(&mut *self.by_name.lock().unwrap_or_else(PoisonError::into_inner), named.collect())
    }

    fn put_back(&self, before: BTreeMap<String, String>) {
        *self.by_name.lock().unwrap_or_else(PoisonError::into_inner) = before;
    }

    /// The template of a model: the one that its specification names, or its own. `None` if it has none; then it
    /// answers only prompts.
    fn of(&self, handle: &ModelHandle) -> Result<Option<ChatTemplate>, ApiError> {
        let failed = |error: &dyn std::fmt::Display| ApiError::new(500, format!("{}: {error}", handle.name()));
        let named = self.by_name.lock().unwrap_or_else(PoisonError::into_inner).get(handle.name()).cloned();
        let header = handle.header().map_err(|error| failed(&error))?;
        match named.or_else(|| self.others.clone()) {
            Some(name) => template::named(&name, header).map(Some).map_err(|error| failed(&error)),
            None => Ok(ChatTemplate::from_header(header).ok()),
        }
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
        // If the file has vanished, it is looked up again.
        fs::remove_file(&file).unwrap();
        sources.read(find).unwrap();
        assert_eq!(asked.get(), 2);
    }
}
