//! Resolves a hub's name to a local file: chooses a file of the repository, and fetches it if allowed.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Mutex;

use autoplace_hub::{Candidate, Hub, Name, Preference};

use super::options::LoadOptions;
use super::rates::with_rates_of;
use super::{Error, ModelBuilder, remote};
use crate::gguf::Header;
use crate::machine::Machine;
use crate::sync::lock;
use crate::worker::Isolation;

/// A callback with the fetched and the total bytes.
type Callback = Box<dyn FnMut(u64, u64) -> ControlFlow<()> + Send>;

/// The hub, the preference and the permission for a model that is requested by name.
#[derive(Default)]
pub(super) struct Source {
    hub: Option<Hub>,
    preference: Preference,
    fetch: bool,
    progress: Option<Mutex<Callback>>,
}

debug_with!(Source: hub, preference, fetch);

impl ModelBuilder {
    /// Sets whether a model of a hub, `hf:OWNER/NAME`, may be fetched if it is not in the cache. Default: no; the load
    /// then fails with [`Error::NotFetched`], which names the size. A cached model is loaded without any request to the
    /// hub.
    pub fn fetch(mut self, allowed: bool) -> Self {
        self.source.fetch = allowed;
        self
    }

    /// Sets the preference among a hub's files. The choice is computed from the machine and the request. The model's
    /// companions (draft and projector) have no influence on the choice. Default: [`Preference::Auto`].
    pub fn preference(mut self, preference: Preference) -> Self {
        self.source.preference = preference;
        self
    }

    /// Sets the hub and its cache. Default: [`Hub::from_env`].
    pub fn hub(mut self, hub: Hub) -> Self {
        self.source.hub = Some(hub);
        self
    }

    /// Sets a callback for the progress of a fetch, called every tenth of a second with the fetched and the total
    /// bytes. The callback may stop the fetch; the next fetch then continues after the fetched part.
    /// [`progress`](Self::progress) reports only the load.
    pub fn fetch_progress(mut self, callback: impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'static) -> Self {
        self.source.progress = Some(Mutex::new(Box::new(callback)));
        self
    }
}

impl Source {
    /// If the model or its projector is requested by a name on a hub, resolves the name to a file. The file is chosen
    /// for the machine for which the load will plan.
    pub(super) fn place(&self, options: &mut LoadOptions, isolation: &Isolation) -> Result<(), Error> {
        let model = options.hub_name().map(str::to_owned);
        let projector = options.mmproj_name().map(str::to_owned);
        if model.is_none() && projector.is_none() {
            return Ok(());
        }
        let hub = self.hub.clone().map_or_else(Hub::from_env, Ok)?;
        let (machine, measures) = self.machine(options, isolation)?;
        if let Some(name) = model {
            self.place_model(&name, &hub, (&machine, measures), options)?;
        }
        if let Some(name) = projector {
            self.place_projector(&name, &hub, &machine, options)?;
        }
        Ok(())
    }

    /// The machine of the load, and whether this process may measure missing rates.
    fn machine(&self, options: &LoadOptions, isolation: &Isolation) -> Result<(Machine, bool), Error> {
        let isolation = options.servers.isolation(isolation.clone())?;
        // A saved plan may use fewer devices, but its file was chosen for all of them.
        let asked = LoadOptions { saved: None, ..options.clone() };
        Ok(match (&options.machine, isolation) {
            (Some(machine), _) => (machine.clone(), false),
            (None, Isolation::None) => (asked.machine(false)?, options.learn.cache(false).is_some()),
            // Detecting devices takes memory on them and can end the process, so the worker does it.
            (None, Isolation::Process(process)) => (remote::machine_in(&process, asked)?, false),
        })
    }

    fn place_model(
        &self,
        name: &str,
        hub: &Hub,
        (machine, measures): (&Machine, bool),
        options: &mut LoadOptions,
    ) -> Result<(), Error> {
        let name: Name = name.parse().map_err(autoplace_hub::Error::from)?;
        let (request, preference) = (&options.request, self.preference);
        let pick = match measures {
            true => hub.pick_measured(&name, machine, request, preference, with_rates_of),
            false => hub.pick(&name, machine, request, preference),
        }?;
        let chosen = pick.chosen()?;
        options.notes =
            [&pick.choice.reason].into_iter().chain(&pick.left_out).map(|reason| format!("{name}: {reason}")).collect();
        options.path = self.here_or_fetched(&name, hub, chosen, pick.cached.clone())?;
        Ok(())
    }

    /// Chooses the projector for the model. The model's file is known by now.
    fn place_projector(
        &self,
        name: &str,
        hub: &Hub,
        machine: &Machine,
        options: &mut LoadOptions,
    ) -> Result<(), Error> {
        let name: Name = name.parse().map_err(autoplace_hub::Error::from)?;
        let projectors = hub.projectors(&name)?;
        let model = Header::open(&options.path)?;
        let pick = hub.pick_projector(&projectors, &model, machine, &options.request)?;
        options.notes.push(format!("{name}: {}", pick.reason));
        options.mmproj = Some(self.here_or_fetched(&name, hub, &pick.candidate, pick.cached)?);
        Ok(())
    }

    /// The cached file, or the fetched file if fetching is allowed.
    fn here_or_fetched(
        &self,
        name: &Name,
        hub: &Hub,
        chosen: &Candidate,
        cached: Option<PathBuf>,
    ) -> Result<PathBuf, Error> {
        if let Some(path) = cached {
            return Ok(path);
        }
        if !self.fetch {
            let (file, bytes) = (chosen.files().next().unwrap_or_default().to_owned(), chosen.bytes());
            return Err(Error::NotFetched { name: name.to_string(), file, bytes });
        }
        Ok(hub.fetch(chosen, |done, total| match &self.progress {
            Some(callback) => lock(callback)(done, total),
            None => ControlFlow::Continue(()),
        })?)
    }
}
