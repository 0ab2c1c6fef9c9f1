//! Finds a model and its projector: at local paths, or on a hub. On a hub, chooses the files that are best for this
//! machine, and fetches them.

use std::error::Error;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdin};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use autoplace::gguf::Header;
use autoplace::load;
use autoplace::machine::{Bytes, Machine};
use autoplace::plan::Request;
use autoplace_hub::{self as hub, Candidate, Choice, Hub, Name, Outcome, Preference};

use super::screen::note;
use crate::files::in_file;
use crate::stop::Stop;
use crate::terminal::bar;

/// The model and how to obtain it.
#[derive(Debug, clap::Args)]
pub(super) struct SourceArgs {
    /// GGUF file (for a split model, its first part), or a model of Hugging Face's hub:
    /// hf:OWNER/NAME[:QUANT][@REVISION]
    #[arg(required = true)]
    model: Option<String>,
    /// Which file of a hub's repository to use: `best:20` has the best quality at 20 tok/s or more here, `fastest:Q4`
    /// is the fastest with at least 4 bits, `fits` is the best that fits wholly on GPUs; `auto` tries the first two in
    /// turn
    #[arg(long, alias = "wish", value_name = "auto|best:N|fastest:QUANT|fits", default_value = "auto")]
    prefer: Preference,
    /// Fetches missing files without asking
    #[arg(short, long)]
    yes: bool,
    /// Uses only files that were fetched before, and contacts no hub
    #[arg(long)]
    offline: bool,
    /// The user's token for the hub, visible in the list of processes [default: HF_TOKEN, or the file of
    /// huggingface_hub]
    #[arg(long, value_name = "TOKEN")]
    hf_token: Option<String>,
}

impl SourceArgs {
    /// The model's name or path; `None` if none is given.
    pub(super) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// The model's first file, and the projector; `None` if Ctrl-C or the user cancelled the fetch.
    pub(super) fn files(
        &self,
        wanted: &Wanted,
        request: &Request,
        stop: &Stop,
    ) -> Result<Option<Files>, Box<dyn Error>> {
        self.files_of(self.model().unwrap_or_default(), wanted, request, stop)
    }

    /// As [`files`](Self::files), but for the model with this name or path.
    pub(super) fn files_of(
        &self,
        model: &str,
        wanted: &Wanted,
        request: &Request,
        stop: &Stop,
    ) -> Result<Option<Files>, Box<dyn Error>> {
        let of_projector = wanted.name()?;
        if !Name::is_hub_name(model) && of_projector.is_none() {
            let model = local(Path::new(model))?;
            return Ok(Some(Files { projector: wanted.beside(&model), model }));
        }
        let (hub, machine) = (self.hub()?, load::detect()?);
        let (model, header, beside) = if Name::is_hub_name(model) {
            self.picked(&model.parse()?, &hub, &machine, request, wanted)?
        } else {
            (At::Here(local(Path::new(model))?), Header::open(model)?, Vec::new())
        };
        let is_beside = of_projector.is_none();
        let projectors = of_projector.map_or(Ok(beside), |name| hub.projectors(&name))?;
        let projector = match wanted {
            Wanted::At(path) if is_beside => Some(At::Here(path.clone())),
            _ if projectors.is_empty() => None,
            _ => match hub.pick_projector(&projectors, &header, &machine, request) {
                Ok(pick) => {
                    note(&pick.reason);
                    Some(pick.cached.map_or(At::There(pick.candidate), At::Here))
                }
                // The model is of use without a projector, so this is no error unless the user has named a projector.
                Err(error) if is_beside => {
                    note(format!("no projector: {error}"));
                    None
                }
                Err(error) => return Err(error.into()),
            },
        };
        // The user is asked only once, about the model and the projector together.
        let lacking: Vec<&Candidate> =
            [Some(&model), projector.as_ref()].into_iter().flatten().filter_map(At::there).collect();
        let may_do_without = is_beside && model.there().is_none();
        let is_wanted = match self.is_wanted(&lacking) {
            Err(why) if may_do_without => {
                note(why);
                false
            }
            is_wanted => is_wanted?,
        };
        if !is_wanted && !may_do_without {
            return Err(format!("{} is not fetched", names(&lacking)).into());
        }
        let projector = projector.filter(|projector| is_wanted || projector.there().is_none());
        let Some(model) = model.here(&hub, stop)? else { return Ok(None) };
        let Some(projector) = projector else { return Ok(Some(Files { model, projector: None })) };
        let projector = projector.here(&hub, stop)?;
        Ok(projector.map(|projector| Files { model, projector: Some(projector) }))
    }

    /// The best of the files that a model's name on a hub can mean, and its header. If a projector is to come from the
    /// same repository, also the projectors there.
    fn picked(
        &self,
        name: &Name,
        hub: &Hub,
        machine: &Machine,
        request: &Request,
        wanted: &Wanted,
    ) -> Result<(At, Header, Vec<Candidate>), Box<dyn Error>> {
        note(format!("looking for {name}"));
        let pick = hub.pick_measured(name, machine, request, self.prefer, load::with_rates_of)?;
        pick.left_out.iter().for_each(note);
        report(&pick.choice);
        let candidate = pick.chosen()?.clone();
        let header = pick.header.ok_or("the chosen model has no header")?;
        let projectors = match wanted {
            Wanted::Beside if pick.projectors.is_empty() && pick.cached.is_some() && !hub.is_offline() => {
                projectors_of(hub, name)
            }
            Wanted::Beside => pick.projectors,
            _ => Vec::new(),
        };
        Ok((pick.cached.map_or(At::There(candidate), At::Here), header, projectors))
    }

    fn hub(&self) -> Result<Hub, Box<dyn Error>> {
        let mut hub = Hub::from_env()?;
        if let Some(token) = &self.hf_token {
            hub = hub.token(token)?;
        }
        Ok(if self.offline { hub.offline(true) } else { hub })
    }

    /// Whether these files should be fetched. If there is a terminal, the user is asked.
    fn is_wanted(&self, lacking: &[&Candidate]) -> Result<bool, Box<dyn Error>> {
        if lacking.is_empty() || self.yes {
            return Ok(true);
        }
        let (names, bytes) = (names(lacking), Bytes(lacking.iter().map(|candidate| candidate.bytes()).sum()));
        if !stdin().is_terminal() || !stderr().is_terminal() {
            let (are, their) = if lacking.len() > 1 { ("are", "their") } else { ("is", "its") };
            return Err(format!("{names} {are} not here: --yes fetches {their} {bytes}").into());
        }
        write!(stderr(), "fetch {bytes} of {names}? [y/N] ")?;
        let mut answer = String::new();
        stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}

/// The projectors that the hub has for a model whose file is in the cache. Empty if the hub does not answer at once.
fn projectors_of(hub: &Hub, name: &Name) -> Vec<Candidate> {
    // The model is already in the cache, so the program does not wait for a hub that does not answer.
    let hub = hub.clone().patience(Duration::from_secs(5), 1, Duration::ZERO);
    match hub.projectors_beside(&name.without_quant()) {
        Ok(projectors) => projectors,
        Err(hub::Error::NoModel { .. }) => Vec::new(),
        Err(error) => {
            note(format!("no projector is looked for: {error}"));
            Vec::new()
        }
    }
}

fn names(candidates: &[&Candidate]) -> String {
    candidates.iter().map(|candidate| candidate.name()).collect::<Vec<_>>().join(" and ")
}

/// The first file of a model, and the file of its projector.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) model: PathBuf,
    pub(super) projector: Option<PathBuf>,
}

impl Files {
    pub(super) fn exist(&self) -> bool {
        self.model.exists() && self.projector.as_ref().is_none_or(|file| file.exists())
    }
}

/// Which projector to look for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    /// No projector.
    Nothing,
    /// A projector in the folder or the repository of the model.
    Beside,
    /// The file at this path, or the best file of the repository with this name.
    At(PathBuf),
}

impl Wanted {
    /// The projector's name, if it is on the hub; `None` for a path.
    pub(super) fn name(&self) -> Result<Option<Name>, Box<dyn Error>> {
        let Self::At(path) = self else { return Ok(None) };
        let name = path.to_str().filter(|name| Name::is_hub_name(name));
        Ok(name.map(str::parse).transpose()?)
    }

    /// Whether the projector is given as a name on the hub.
    pub(super) fn is_named(&self) -> bool {
        matches!(self, Self::At(path) if path.to_str().is_some_and(Name::is_hub_name))
    }

    /// The projector of a local model. It is found without a hub.
    pub(super) fn beside(&self, model: &Path) -> Option<PathBuf> {
        match self {
            Self::Nothing => None,
            Self::Beside => load::mmproj_beside(model),
            Self::At(path) => Some(path.clone()),
        }
    }
}

/// Where a file is: on this machine, or on the hub.
enum At {
    Here(PathBuf),
    There(Candidate),
}

impl At {
    fn there(&self) -> Option<&Candidate> {
        match self {
            Self::Here(_) => None,
            Self::There(candidate) => Some(candidate),
        }
    }

    /// The local path of the file, after a fetch if the file is not here; `None` if Ctrl-C ended the fetch.
    fn here(self, hub: &Hub, stop: &Stop) -> Result<Option<PathBuf>, Box<dyn Error>> {
        match self {
            Self::Here(path) => Ok(Some(path)),
            Self::There(candidate) => fetched(hub, &candidate, stop),
        }
    }
}

/// As [`SourceArgs::files_of`], but nothing is fetched, and the user is not asked.
pub(super) fn files_here(model: &str, wanted: &Wanted, request: &Request) -> Result<Option<Files>, Box<dyn Error>> {
    let path = here(Path::new(model), request, || Ok(load::detect()?))?;
    let named = wanted.name()?;
    let is_beside = named.is_none();
    let name = match named {
        Some(name) => name,
        // The rule is the same as for a fetch, but only projectors that are here are considered.
        None if *wanted == Wanted::Beside && Name::is_hub_name(model) => model.parse::<Name>()?.without_quant(),
        None => return Ok(Some(Files { projector: wanted.beside(&path), model: path })),
    };
    let hub = Hub::from_env()?.offline(true);
    let pick = || -> Result<_, Box<dyn Error>> {
        Ok(hub.pick_projector(&hub.projectors(&name)?, &Header::open(&path)?, &load::detect()?, request)?)
    };
    let projector = match pick() {
        Ok(pick) => pick.cached,
        // If the user has not named a projector, the model is of use without one.
        Err(error) if is_beside => {
            note(format!("no projector for {model}: {error}"));
            None
        }
        Err(error) => return Err(error),
    };
    Ok(Some(Files { model: path, projector }))
}

/// The first file of a local model, which is given by its path or by its name on a hub. For a name, it is the best of
/// the fetched files for this machine.
pub(crate) fn here(
    model: &Path,
    request: &Request,
    machine: impl FnOnce() -> Result<Machine, Box<dyn Error>>,
) -> Result<PathBuf, Box<dyn Error>> {
    let Some(name) = model.to_str().filter(|name| Name::is_hub_name(name)) else { return Ok(local(model)?) };
    let hub = Hub::from_env()?;
    let may_fetch = !hub.is_offline();
    let hub = hub.offline(true);
    let pick = match hub.pick(&name.parse()?, &machine()?, request, Preference::Auto) {
        Err(hub::Error::Offline { .. }) if may_fetch => {
            Err(format!("{name} is not here: `autoplace run {name}` fetches it"))?
        }
        // This error says why nothing can be fetched.
        pick => pick?,
    };
    // If no file can be placed, the plan that the caller makes gives the reason.
    let any = || hub.cached(pick.candidates.first()?);
    pick.cached.or_else(any).ok_or_else(|| pick.choice.reason.into())
}

/// The path of a local model. If there is no such file, the error says how models are named.
fn local(model: &Path) -> Result<PathBuf, String> {
    match model.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let hub_name = model.to_str().map(|name| format!("hf:{name}"));
            let hint = match hub_name.filter(|name| name.parse::<Name>().is_ok() && !name.ends_with(".gguf")) {
                Some(name) => format!("{name} is the model of that name on the hub"),
                None => "a model is a GGUF file, or hf:OWNER/NAME[:QUANT] on a hub".to_owned(),
            };
            let problem = format!("there is no such file; {hint}; `autoplace list` lists the models on this machine");
            Err(in_file(model, problem))
        }
        _ => Ok(model.to_owned()),
    }
}

/// Lists the model's files with their placements, and marks the one that is chosen.
fn report(choice: &Choice) {
    for (index, row) in choice.rows.iter().enumerate() {
        let mark = if choice.chosen == Some(index) { '>' } else { ' ' };
        let (quant, size) = (row.quant.as_deref().unwrap_or(&row.label), Bytes(row.bytes).to_string());
        let becomes = match &row.outcome {
            Outcome::Placed(at) => {
                let speed = at.tokens_per_second.unwrap_or_default();
                format!("{} of {} layers on GPUs, about {speed:.1} tok/s", at.n_gpu_layers, at.layers)
            }
            Outcome::Refused(why) => why.clone(),
            _ => String::new(),
        };
        note(format!("{mark} {quant:<14} {size:>10}  {becomes}"));
    }
    note(&choice.reason);
}

fn fetched(hub: &Hub, candidate: &Candidate, stop: &Stop) -> Result<Option<PathBuf>, Box<dyn Error>> {
    let cancelled = stop.flag();
    let bar = bar(candidate.bytes(), "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    let outcome = hub.fetch(candidate, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        if cancelled.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    let is_stopped = stop.end();
    match outcome {
        Err(_) if is_stopped => Ok(None),
        outcome => Ok(Some(outcome?)),
    }
}
