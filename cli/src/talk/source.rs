//! The source of a model: a path, or a hub, from which the best file for this machine is chosen and fetched.

use std::error::Error;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use autoplace::load;
use autoplace::machine::{Bytes, Machine};
use autoplace::plan::Request;
use autoplace_hub::{self as hub, Candidate, Choice, Hub, Name, Outcome, Preference};

use super::screen::note;
use crate::stop::Stop;
use crate::terminal::bar;

/// The model and how to obtain it.
#[derive(Debug, clap::Args)]
pub(super) struct SourceArgs {
    /// GGUF file (for a split model, its first part), or a model of Hugging Face's hub:
    /// hf:OWNER/NAME[:QUANT][@REVISION]
    #[arg(required = true)]
    model: Option<String>,
    /// Which file of a hub's repository: `best:20` has the best quality at 20 tok/s or more here, `fastest:Q4` is the
    /// fastest with at least 4 bits, `fits` is the best that fits wholly on GPUs; `auto` tries the first two in turn
    #[arg(long, value_name = "auto|best:N|fastest:QUANT|fits", default_value = "auto")]
    wish: Preference,
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
    /// The model's name or path; `None` where a verb needs none.
    pub(super) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// The model's first file; `None` if Ctrl-C or the user cancelled the fetch.
    pub(super) fn path(&self, request: &Request, stop: &Stop) -> Result<Option<PathBuf>, Box<dyn Error>> {
        self.path_of(self.model().unwrap_or_default(), request, stop)
    }

    /// As [`path`](Self::path), of a model with this name or path.
    pub(super) fn path_of(
        &self,
        model: &str,
        request: &Request,
        stop: &Stop,
    ) -> Result<Option<PathBuf>, Box<dyn Error>> {
        if !Name::is_hub_name(model) {
            return Ok(Some(PathBuf::from(model)));
        }
        let (name, mut hub): (Name, Hub) = (model.parse()?, Hub::from_env()?);
        if let Some(token) = &self.hf_token {
            hub = hub.token(token)?;
        }
        if self.offline {
            hub = hub.offline(true);
        }
        note(format!("looking for {name}"));
        let pick = hub.pick_measured(&name, &load::detect()?, request, self.wish, load::with_rates_of)?;
        pick.left_out.iter().for_each(note);
        report(&pick.choice);
        let candidate = pick.chosen()?;
        match pick.cached {
            Some(path) => Ok(Some(path)),
            None if self.is_wanted(candidate)? => fetched(&hub, candidate, stop),
            None => Err(format!("{} is not fetched", candidate.name()).into()),
        }
    }

    /// Whether to fetch the model. Asks on a terminal.
    fn is_wanted(&self, candidate: &Candidate) -> Result<bool, Box<dyn Error>> {
        let (name, bytes) = (candidate.name(), Bytes(candidate.bytes()));
        if self.yes {
            return Ok(true);
        }
        if !stdin().is_terminal() || !stderr().is_terminal() {
            return Err(format!("{name} is not here: --yes fetches its {bytes}").into());
        }
        write!(stderr(), "fetch {bytes} of {name}? [y/N] ")?;
        let mut answer = String::new();
        stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}

/// The first file of a local model by its path, or the best fetched file for a machine by its hub name.
pub(crate) fn here(
    model: &Path,
    request: &Request,
    machine: impl FnOnce() -> Result<Machine, Box<dyn Error>>,
) -> Result<PathBuf, Box<dyn Error>> {
    let Some(name) = model.to_str().filter(|name| Name::is_hub_name(name)) else { return Ok(model.to_owned()) };
    let hub = Hub::from_env()?;
    let may_fetch = !hub.is_offline();
    let hub = hub.offline(true);
    let pick = match hub.pick(&name.parse()?, &machine()?, request, Preference::Auto) {
        Err(hub::Error::Offline { .. }) if may_fetch => {
            Err(format!("{name} is not here: `autoplace run {name}` fetches it"))?
        }
        // The error says what prevents a fetch.
        pick => pick?,
    };
    // If no file can be placed, the caller's plan gives the reason.
    let any = || hub.cached(pick.candidates.first()?);
    pick.cached.or_else(any).ok_or_else(|| pick.choice.reason.into())
}

/// Lists the model's files with their placements, and marks the chosen one.
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
