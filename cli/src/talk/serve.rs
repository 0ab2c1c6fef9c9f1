//! The verb `serve`: serves a model to programs that use OpenAI's or Anthropic's API. It listens only on this machine,
//! unless `--host` sets another address. An address that other machines can reach requires a key. It logs a line of
//! JSON to stderr for each request.

use std::collections::BTreeSet;
use std::env::VarError;
use std::error::Error;
use std::io::{ErrorKind, Write, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use autoplace::chat::ChatTemplate;
use autoplace::embed::Normalization;
use autoplace::generate::{Engine, EngineBuilder};
use autoplace::gguf::Header;
use autoplace::memory::Pooling;
use autoplace::plan::{Context, Request};
use autoplace::{AbortHandle, Embedder, Isolation, Model, ModelBuilder, OnDeath, WorkerProcess, load};
use autoplace_openai::Api;
#[cfg(feature = "media")]
use autoplace_openai::MediaHosts;
use autoplace_openai::server::{HeaderValue, Server, check_key, check_prefix};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, value_parser};
use tokio::sync::Notify;

use super::load::LoadArgs;
use super::page::Page;
use super::pool::{self, PoolArgs};
use super::sampling::SamplingArgs;
use super::screen::note;
use super::source::{Files, Wanted};
use super::texts::ShiftArgs;
use super::warnings;
use crate::ask::CacheRam;
use crate::files;
use crate::llama_cpp::{api_keys, api_keys_in_file};
use crate::pooling::PoolingArgs;
use crate::stop::Stop;
use crate::template;
use crate::terminal::unwritten;

/// The environment variable with the keys. It is used if no argument sets a key.
const KEYS: &str = "AUTOPLACE_API_KEY";

/// The variables in which llama-server finds its keys, and the file with its keys. They are used if nothing else sets a
/// key: a server that ignored them would admit everybody.
const LLAMA_KEYS: &str = "LLAMA_API_KEY";
const LLAMA_KEY_FILE: &str = "LLAMA_ARG_API_KEY_FILE";

/// The arguments of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(super) load: ServedModel,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
    /// Maximum number of simultaneous answers (`-np`). They share the context; without `--ctx` each has at least 4096
    /// tokens
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=64), conflicts_with = "plan")]
    parallel: u32,
    /// Maximum number of waiting answers; further requests are refused
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(super) queue: usize,
    /// Maximum prompt tokens between two tokens of running answers. A smaller number delays those answers less, and the
    /// first tokens of new answers more [default: the rest of --ubatch]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(super) prompt_chunk: Option<u32>,
    /// A host from which images of requests may be fetched, NAME or NAME:PORT; repeat for several [default: none, and
    /// images are data URLs]
    #[arg(long, value_name = "HOST")]
    allow_media_host: Vec<String>,
    /// The model's names for clients, separated by commas. As in llama-server, answers have the name that is first in
    /// the alphabet [default: the file's name]
    #[arg(short, long, value_name = "NAME,..")]
    alias: Vec<String>,
    #[command(flatten)]
    vectors: PoolingArgs,
    /// GGUF file of a model for embeddings; its name is the file's
    #[arg(long, value_name = "FILE", conflicts_with = "embeddings")]
    pub(super) embed: Option<PathBuf>,
    /// GGUF file of a reranker; its name is the file's
    #[arg(long, value_name = "FILE", conflicts_with = "embeddings")]
    pub(super) reranker: Option<PathBuf>,
    /// For embeddings: the default scaling of vectors: -1 none, 0 the largest element to 32760, 1 taxicab, 2 Euclidean,
    /// N the N-norm [default: 2]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = normalization)]
    pub(super) embd_normalize: Option<Normalization>,
    /// Family of the chat template, or a file with one [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) template: Option<String>,
    /// Refuses tools that the chat template does not show, instead of describing them in the system message
    #[arg(long)]
    pub(super) no_tool_descriptions: bool,
    /// Puts the text after the gap first in prompts of `/infill`, for models trained that way
    #[arg(long)]
    pub(super) spm_infill: bool,
    /// Words that describe the model to clients, separated by commas; `/v1/models` shows them
    #[arg(long, value_name = "TAG,..", conflicts_with = "embeddings")]
    tags: Vec<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS|localhost", default_value = "127.0.0.1", value_parser = address)]
    host: IpAddr,
    /// Port to listen on; 0 chooses a free port
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// File of keys, one in each line. A request must contain one of them (`Authorization: Bearer KEY`, or `x-api-key:
    /// KEY`) [default: the keys in the variable AUTOPLACE_API_KEY, if set]
    #[arg(long, value_name = "FILE")]
    api_key_file: Vec<PathBuf>,
    /// The keys themselves, separated by commas, visible in the list of processes
    #[arg(long, value_name = "KEY,..")]
    api_key: Vec<String>,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    #[command(flatten)]
    pub(super) shift: ShiftArgs,
    /// Loads the LoRA adapters without applying them until a request or `POST /lora-adapters` does
    #[arg(long)]
    lora_init_without_apply: bool,
    /// Admits everybody without a key: required for a `--host` beyond this machine if there is no key
    #[arg(long)]
    without_key: bool,
    /// Another name of this server for clients, besides `localhost` and addresses; repeat for several
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// A site whose pages may use this server, such as `https://chat.example`; repeat for several
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<HeaderValue>,
    /// Runs each model in its own process, which is replaced if it dies
    #[arg(long)]
    isolated: bool,
    /// Seconds without a sign of life after which a model's process is replaced
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = value_parser!(u64).range(1..=86_400))]
    silent: u64,
    /// Seconds without an event after which a stream gets a comment; -1 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 15, allow_negative_numbers = true, value_parser = value_parser!(i64).range(-1..=86_400))]
    sse_ping_interval: i64,
    /// A path that precedes all paths, such as `/llama`, for a proxy that forwards it
    #[arg(long, value_name = "PATH", value_parser = prefix)]
    api_prefix: Option<String>,
    /// Does not answer `/slots`
    #[arg(long)]
    no_slots: bool,
    /// Maximum number of tokens of an answer whose request sets none; -1 and -2 are no limit
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(i64).range(-2..))]
    max_tokens: Option<i64>,
    /// Computes each prompt anew, unless its request sets `cache_prompt`
    #[arg(long)]
    pub(super) no_cache_prompt: bool,
    /// Seconds for a client to send a request's head, then its body; and for answers to end after Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// Serves a model until Ctrl-C, and then lets the running requests finish. A second Ctrl-C ends them.
pub(crate) fn serve(args: &ServeArgs) -> Result<ExitCode, Box<dyn Error>> {
    warnings::show(true);
    let keys = args.keys()?;
    let address = SocketAddr::new(args.host, args.port);
    let listener = TcpListener::bind(address).map_err(|error| format!("cannot listen on {address}: {error}"))?;
    listener.set_nonblocking(true)?;
    if args.pool.is_meant() {
        return pool::serve(args, keys, listener);
    }
    let stop = Stop::listen()?;
    if let Some(pooling) = args.vectors.pooling() {
        return serve_vectors(args, pooling, keys, listener, &stop);
    }
    let request = args.request();
    let files = args.load.source.files(&args.load.projector.wanted(true), &request, &stop)?;
    let Some(Files { model: path, projector }) = files else { return Ok(ExitCode::from(130)) };
    let template = args.template.as_deref();
    let template = template.map(|name| template::named(name, &Header::open(&path)?)).transpose()?;
    // The smaller models are loaded first. The text model gets the memory that is left.
    let embedding = args.embed.as_deref().map(|file| Ok::<_, Box<dyn Error>>((name_of(file), args.embedder(file)?)));
    let embedding = embedding.transpose()?;
    let reranking =
        args.reranker.as_deref().map(|file| Ok::<_, Box<dyn Error>>((name_of(file), args.reranking(file)?)));
    let reranking = reranking.transpose()?;
    let store = args.load.store(CacheRam::Auto, &keys)?;
    let more = |builder: ModelBuilder| {
        let builder = args.load.projector.set(builder.isolation(args.isolation()), projector.as_deref());
        store.iter().cloned().fold(builder, ModelBuilder::prompt_store)
    };
    let Some(model) = args.load.load(&path, request, &stop, more)? else { return Ok(ExitCode::from(130)) };
    let engine = args.engine().set(Engine::builder(&model)).start()?;
    let (name, aliases) = args.names(&path);
    let mut api = aliases.into_iter().fold(Api::new(&model, &engine, name), Api::alias);
    api = api.sampling(args.sampling.over(model.sampling(), true)).when_full(args.shift.when_full());
    api = api.infill_suffix_first(args.spm_infill).cache_prompt(!args.no_cache_prompt);
    api = args.tags.iter().cloned().fold(api, Api::tag);
    api = args.max_tokens().into_iter().fold(api, Api::max_tokens);
    api = args.media_hosts()?.set(api);
    if args.shift.context_shift {
        // If the model cannot shift its context, there is one error now, and not an error for each request.
        let text = model.generate("a").max_tokens(1).when_full(args.shift.when_full());
        engine.submit(text)?.into_text()?;
    }
    if args.lora_init_without_apply {
        api.apply_no_adapters();
    }
    // A model without a template answers prompts, but a chat request gets an error.
    if let Some(template) = template.or_else(|| ChatTemplate::from_header(model.header().ok()?).ok()) {
        if !template.supports_tools() {
            note(match args.no_tool_descriptions {
                true => "the chat template shows no tools: requests with tools are refused",
                false => {
                    "the chat template shows no tools: they are described in the system message, and called with \
                     <tool_call>{..}</tool_call>"
                }
            });
        }
        api = api.template(template.describe_tools(!args.no_tool_descriptions));
    }
    let page = Page::new(&model);
    let mut server = args.access(Server::new(api).page(move |activity| page.html(activity)), keys)?;
    if let Some((name, embedder)) = embedding {
        server = server.embedder(name, embedder);
    }
    if let Some((name, reranker)) = reranking {
        server = server.reranker(name, reranker);
    }
    until_stopped(listener, &stop, |listener, stop| server.serve(listener, stop))
}

/// Arguments, and groups of arguments, that concern the writing of texts.
const OF_TEXTS: [&str; 12] = [
    "SamplingArgs",
    "ShiftArgs",
    "StoreArgs",
    "cache_ram",
    "queue",
    "prompt_chunk",
    "template",
    "no_tool_descriptions",
    "spm_infill",
    "allow_media_host",
    "no_cache_prompt",
    "max_tokens",
];

/// A note on the given arguments that concern the writing of texts, if the model computes vectors or scores. `command`
/// is that of the whole program.
pub(crate) fn without_effect(command: &Command, matches: &ArgMatches) -> Option<String> {
    let (verb, matches) = matches.subcommand()?;
    let is_given = |argument: &str| matches.value_source(argument) == Some(ValueSource::CommandLine);
    if verb != "serve" || !is_given("embeddings") {
        return None;
    }
    let command = command.find_subcommand(verb)?;
    let of_texts = |argument: &Arg| {
        let groups =
            command.get_groups().filter(|group| group.get_args().any(|of_group| of_group == argument.get_id()));
        let mut names = groups.map(|group| group.get_id().as_str()).chain([argument.get_id().as_str()]);
        names.any(|name| OF_TEXTS.contains(&name))
    };
    let given = command.get_arguments().filter(|argument| is_given(argument.get_id().as_str()) && of_texts(argument));
    let given: Vec<String> = given.filter_map(|argument| argument.get_long()).map(|name| format!("--{name}")).collect();
    (!given.is_empty())
        .then(|| format!("without effect, because with --embeddings the model writes no texts: {}", given.join(", ")))
}

/// Serves a model's vectors or scores until Ctrl-C, and no texts.
fn serve_vectors(
    args: &ServeArgs,
    pooling: Pooling,
    keys: Vec<String>,
    listener: TcpListener,
    stop: &Stop,
) -> Result<ExitCode, Box<dyn Error>> {
    if matches!(args.load.projector.wanted(true), Wanted::At(_)) {
        return Err("--mmproj: with --embeddings the model reads texts, and no images or sounds".into());
    }
    let files = args.load.source.files(&Wanted::Nothing, &args.load.request(), stop)?;
    let Some(Files { model: path, .. }) = files else { return Ok(ExitCode::from(130)) };
    let pooling = match pooling {
        // If the header states none, the pooling is the mean.
        Pooling::Model => pool::pooling_of(&path).unwrap_or(Pooling::Mean),
        pooling => pooling,
    };
    let mut request = args.load.request().embeddings(pooling);
    request.prompt_store = 0;
    // Without `--parallel`, as many texts are computed at once as is usual for embeddings.
    if args.parallel > 1 {
        request = request.n_seq_max(args.parallel);
    }
    let more = |builder: ModelBuilder| builder.isolation(args.isolation());
    let Some(model) = args.load.load(&path, request, stop, more)? else { return Ok(ExitCode::from(130)) };
    let embedder = model.embedder()?.normalize(args.embd_normalize.unwrap_or_default());
    note(match pooling {
        Pooling::Rank => "the model ranks documents (/v1/rerank), and writes no texts",
        _ => "the model computes vectors (/v1/embeddings), and writes no texts",
    });
    let (name, aliases) = args.names(&path);
    let server = Server::from_embedder(name, embedder).map_err(|error| format!("--embeddings: {error}"))?;
    let server = args.access(aliases.into_iter().fold(server, Server::alias), keys)?;
    until_stopped(listener, stop, |listener, stop| server.serve(listener, stop))
}

/// Listens until Ctrl-C, and returns when the server has ended.
pub(super) fn until_stopped<Ended: Future<Output = ()>>(
    listener: TcpListener,
    stop: &Stop,
    serve: impl FnOnce(tokio::net::TcpListener, Pin<Box<dyn Future<Output = ()> + Send>>) -> Ended,
) -> Result<ExitCode, Box<dyn Error>> {
    let stopped = Arc::new(Notify::new());
    let begins = Arc::clone(&stopped);
    stop.begin(AbortHandle::new(move || begins.notify_one()));
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        // Whoever started the server may have closed its stdout: the server runs all the same.
        match writeln!(stdout(), "listening on http://{}", listener.local_addr()?) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(unwritten(error)),
            _ => {}
        }
        serve(listener, Box::pin(async move { stopped.notified().await })).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// The hosts from which images of requests may be fetched, if there are any.
#[derive(Debug, Clone)]
#[cfg(feature = "media")]
pub(super) struct AllowedHosts(Option<MediaHosts>);

#[cfg(feature = "media")]
impl AllowedHosts {
    pub(super) fn set(&self, api: Api) -> Api {
        self.0.iter().cloned().fold(api, Api::media_hosts)
    }
}

/// There are no hosts, because this program was built without images.
#[derive(Debug, Clone)]
#[cfg(not(feature = "media"))]
pub(super) struct AllowedHosts;

#[cfg(not(feature = "media"))]
impl AllowedHosts {
    pub(super) fn set(&self, api: Api) -> Api {
        api
    }
}

/// The settings for a model's engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineSettings {
    queue: usize,
    prompt_chunk: Option<u32>,
}

impl EngineSettings {
    pub(super) fn set(self, builder: EngineBuilder) -> EngineBuilder {
        // `ahead` limits how many tokens are buffered for a slow client.
        let builder = builder.queue(self.queue).ahead(256);
        self.prompt_chunk.into_iter().fold(builder, |builder, tokens| builder.prompt_chunk(tokens as usize))
    }
}

/// The arguments for the model that a server runs, and for its placement. A server of several models needs no model
/// here, so it may be missing.
#[derive(Debug)]
pub(super) struct ServedModel(LoadArgs);

impl Deref for ServedModel {
    type Target = LoadArgs;

    fn deref(&self) -> &LoadArgs {
        &self.0
    }
}

impl clap::FromArgMatches for ServedModel {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        LoadArgs::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl clap::Args for ServedModel {
    fn augment_args(command: Command) -> Command {
        let optional = |model: Arg| model.required(false).required_unless_present_any(["models", "models_dir"]);
        LoadArgs::augment_args(command).mut_arg("model", optional)
    }

    fn augment_args_for_update(command: Command) -> Command {
        LoadArgs::augment_args_for_update(command)
    }
}

/// The time without an event after which a stream gets a comment; `None` for no comments.
fn ping(seconds: i64) -> Option<Duration> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs)
}

impl ServeArgs {
    /// The maximum number of tokens of an answer whose request sets none.
    pub(super) fn max_tokens(&self) -> Option<usize> {
        self.max_tokens.and_then(|tokens| usize::try_from(tokens).ok())
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Sets the server's time limit, keys, allowed hosts and allowed origins.
    pub(super) fn access<Served>(
        &self,
        mut server: Server<Served>,
        keys: Vec<String>,
    ) -> Result<Server<Served>, Box<dyn Error>> {
        server = server.timeout(self.timeout()).ping(ping(self.sse_ping_interval));
        if let Some(prefix) = self.api_prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            server = server.prefix(prefix)?;
        }
        if self.no_slots {
            server = server.without_slots();
        }
        for key in keys {
            server = server.key(key)?;
        }
        server = self.allow_host.iter().cloned().fold(server, Server::allow_host);
        Ok(self.allow_origin.iter().cloned().fold(server, Server::allow_origin))
    }

    pub(super) fn request(&self) -> Request {
        const MIN_TOKENS: u32 = 4096;
        let request = self.load.request().n_seq_max(self.parallel);
        match request.context {
            Context::Default if self.parallel > 1 => request.context(Context::AtLeast(MIN_TOKENS * self.parallel)),
            _ => request,
        }
    }

    /// The hosts from which images may be fetched.
    #[cfg(feature = "media")]
    pub(super) fn media_hosts(&self) -> Result<AllowedHosts, Box<dyn Error>> {
        let hosts = &self.allow_media_host;
        Ok(AllowedHosts((!hosts.is_empty()).then(|| MediaHosts::new(hosts))))
    }

    #[cfg(not(feature = "media"))]
    pub(super) fn media_hosts(&self) -> Result<AllowedHosts, Box<dyn Error>> {
        match self.allow_media_host.is_empty() {
            true => Ok(AllowedHosts),
            false => {
                Err("--allow-media-host: this program was built without images and sound (feature `media`)".into())
            }
        }
    }

    fn isolation(&self) -> Isolation {
        if self.isolated { self.worker() } else { Isolation::None }
    }

    /// The settings for running each model in a separate process.
    pub(super) fn worker(&self) -> Isolation {
        let worker = WorkerProcess::own_executable().timeout(Duration::from_secs(self.silent));
        Isolation::Process(worker.on_death(OnDeath::Resume { attempts: 2 }))
    }

    pub(super) const fn engine(&self) -> EngineSettings {
        EngineSettings { queue: self.queue, prompt_chunk: self.prompt_chunk }
    }

    /// Loads the model for embeddings. Its header sets the pooling; if the header states none, the pooling is the mean.
    fn embedder(&self, path: &Path) -> Result<Embedder, Box<dyn Error>> {
        let load = |pooling| Model::builder(path).embeddings(pooling).isolation(self.isolation()).load();
        let model = match load(Pooling::Model) {
            Err(load::Error::NoPooling { .. }) => load(Pooling::Mean),
            loaded => loaded,
        };
        Ok(model?.embedder()?.normalize(self.embd_normalize.unwrap_or_default()))
    }

    fn reranking(&self, path: &Path) -> Result<Embedder, Box<dyn Error>> {
        let model = Model::builder(path).embeddings(Pooling::Rank).isolation(self.isolation()).load();
        Ok(model?.embedder()?)
    }

    /// The model's name in answers, and its other names.
    fn names(&self, path: &Path) -> (String, BTreeSet<String>) {
        let mut names: BTreeSet<String> = self.alias.iter().cloned().collect();
        (names.pop_first().unwrap_or_else(|| name_of(path)), names)
    }

    /// The keys, of which a request must contain one. If there is none, and other machines can reach the address, that
    /// is an error.
    fn keys(&self) -> Result<Vec<String>, String> {
        let mut keys = self.api_key.clone();
        for key in &keys {
            check_key(key).map_err(|error| format!("--api-key: {error}"))?;
        }
        if !self.api_key_file.is_empty() && std::env::var_os(KEYS).is_some() {
            return Err(format!("both --api-key-file and {KEYS} give keys: use one of them"));
        }
        for file in &self.api_key_file {
            keys.extend(keys_of_file(file)?);
        }
        if !keys.is_empty() {
            return Ok(keys);
        }
        if let Some(keys) = keys_of_variable(KEYS)? {
            return Ok(keys);
        }
        if let Some(keys) = keys_of_variable(LLAMA_KEYS)? {
            note(format!("requests need a key of {LLAMA_KEYS}"));
            return Ok(keys);
        }
        if let Some(file) = std::env::var_os(LLAMA_KEY_FILE) {
            let keys = keys_of_file(Path::new(&file))?;
            note(format!("requests need a key of {LLAMA_KEY_FILE}"));
            return Ok(keys);
        }
        match self.host.is_loopback() || self.without_key {
            true => Ok(keys),
            false => Err(format!(
                "others can reach {}: set a key with --api-key-file or {KEYS}, or admit everybody with --without-key",
                self.host
            )),
        }
    }
}

/// The keys in a variable of the environment, a list as for `--api-key`. `None` if it is not set.
fn keys_of_variable(name: &str) -> Result<Option<Vec<String>>, String> {
    let list = match std::env::var(name) {
        Ok(list) => list,
        Err(VarError::NotPresent) => return Ok(None),
        Err(VarError::NotUnicode(_)) => return Err(format!("{name} is not valid text")),
    };
    let keys: Vec<String> = api_keys(&list).collect();
    if keys.is_empty() {
        return Err(format!("{name} has no key"));
    }
    keys.iter().try_for_each(|key| check_key(key)).map_err(|error| format!("{name}: {error}"))?;
    Ok(Some(keys))
}

fn keys_of_file(file: &Path) -> Result<Vec<String>, String> {
    keys_in(&files::read(file)?).map_err(|error| files::in_file(file, error))
}

/// Checks a prefix. As in llama-server, it may be empty, which means none.
fn prefix(text: &str) -> Result<String, String> {
    if !text.is_empty() {
        check_prefix(text).map_err(|error| error.to_string())?;
    }
    Ok(text.to_owned())
}

/// Parses an address. llama-server's `--host` also takes lists, names and sockets.
fn address(text: &str) -> Result<IpAddr, String> {
    if text == "localhost" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    text.parse().map_err(|_| "write one IP address, or `localhost`, but no list, other name or socket".to_owned())
}

/// The keys in the text of a file.
fn keys_in(text: &str) -> Result<Vec<String>, String> {
    let checked = |(line, key): (usize, &str)| match check_key(key) {
        Ok(()) => Ok(key.to_owned()),
        Err(error) => Err(format!("line {line}: {error}")),
    };
    let keys: Vec<String> = api_keys_in_file(text).map(checked).collect::<Result<_, _>>()?;
    if keys.is_empty() { Err("it has no key".to_owned()) } else { Ok(keys) }
}

fn normalization(text: &str) -> Result<Normalization, String> {
    let kind = text.parse().ok().and_then(Normalization::from_llama_cpp);
    kind.ok_or_else(|| format!("-1 (none), 0 (max absolute), 1 (taxicab), 2 (Euclidean), or a p up to {}", u16::MAX))
}

pub(super) fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{Args, Command};

    use super::{OF_TEXTS, ServeArgs, address, keys_in, ping, prefix};

    #[test]
    fn the_arguments_that_concern_the_writing_of_texts_exist() {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let arguments = command.get_arguments().map(|argument| argument.get_id().as_str());
        let names: Vec<&str> = arguments.chain(command.get_groups().map(|group| group.get_id().as_str())).collect();
        assert!(OF_TEXTS.iter().all(|name| names.contains(name)), "{names:?}");
    }

    #[test]
    fn minus_one_and_zero_are_no_pings() {
        assert_eq!([-1, 0, 3].map(ping), [None, None, Some(Duration::from_secs(3))]);
    }

    #[test]
    fn a_file_of_keys_has_a_key_in_each_line_and_at_least_one() {
        let keys = ["sk-1", "sk-2"].map(str::to_owned).to_vec();
        assert_eq!(keys_in("# for the phone\n\n sk-1 \r\nsk-2"), Ok(keys));
        assert_eq!(keys_in("# none\n"), Err("it has no key".to_owned()));
        let error = keys_in("sk-1\nmy secret\n").unwrap_err();
        assert!(error.starts_with("line 2: ") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_prefix_is_a_path_without_a_slash_at_its_end() {
        for right in ["", "/llama", "/a/b-c_d.e~1"] {
            assert_eq!(prefix(right), Ok(right.to_owned()));
        }
        for wrong in ["/", "llama", "/llama/", "//a", "/a//b", "/{id}", "/*x", "/a?b", "/a b", "/\u{e4}"] {
            assert!(prefix(wrong).unwrap_err().contains("is not a path"), "{wrong}");
        }
    }

    #[test]
    fn an_address_is_one_ip_address_or_localhost() {
        for (text, address_text) in [("localhost", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "::1")] {
            assert_eq!(address(text).unwrap().to_string(), address_text);
        }
        for text in ["127.0.0.1,::1", "/run/llama.sock", "example.org", ""] {
            assert!(address(text).unwrap_err().contains("one IP address"), "{text}");
        }
    }
}
