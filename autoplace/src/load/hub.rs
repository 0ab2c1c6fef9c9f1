//! Resolves a hub's name to a local file: chooses a file of the repository, and fetches it if allowed.

use std::ops::ControlFlow;
use std::sync::Mutex;

use autoplace_hub::{Hub, Name, Wish};

use super::rates::with_rates_of;
use super::recipe::Recipe;
use super::{Error, ModelBuilder, remote};
use crate::lock;
use crate::worker::Isolation;

/// Receives the fetched and the total bytes.
type Callback = Box<dyn FnMut(u64, u64) -> ControlFlow<()> + Send>;

/// The hub, the preference and the permission for a model that is requested by name.
#[derive(Default)]
pub(super) struct Source {
    hub: Option<Hub>,
    wish: Wish,
    fetch: bool,
    progress: Option<Mutex<Callback>>,
}

debug_with!(Source: hub, wish, fetch);

impl ModelBuilder {
    setters! {
        /// Sets whether a hub's model, `hf:OWNER/NAME`, may be fetched if the cache lacks it. Default: no; the load
        /// then fails with [`Error::NotFetched`], which names the size. A cached model is loaded without any request.
        fetch(allowed: bool) source.fetch = allowed;
        /// Sets the preference among a hub's files. The choice is made by arithmetic for the machine and the request,
        /// and for the model alone. Default: [`Wish::Auto`].
        wish(wish: Wish) source.wish = wish;
        /// Sets the hub and its cache. Default: [`Hub::from_env`].
        hub(hub: Hub) source.hub = Some(hub);
        /// Sets a callback for the progress of a fetch, called every tenth of a second with the fetched and the total
        /// bytes. It may stop the fetch; the fetched part stays for the next one. [`progress`](Self::progress) reports
        /// only the load.
        fetch_progress(callback: impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'static)
            source.progress = Some(Mutex::new(Box::new(callback)));
    }
}

impl Source {
    /// Resolves a hub's name to a file for the machine that the load will plan for.
    pub(super) fn place(&self, recipe: &mut Recipe, isolation: &Isolation) -> Result<(), Error> {
        let Some(name) = recipe.hub_name() else { return Ok(()) };
        let name: Name = name.parse().map_err(autoplace_hub::Error::from)?;
        let hub = self.hub.clone().map_or_else(Hub::from_env, Ok)?;
        let isolation = recipe.servers.isolation(isolation.clone())?;
        // A saved plan may use fewer devices, but its file was chosen for all of them.
        let asked = Recipe { saved: None, ..recipe.clone() };
        let (request, wish) = (&recipe.request, self.wish);
        let pick = match (&recipe.machine, isolation) {
            (Some(machine), _) => hub.pick(&name, machine, request, wish),
            (None, Isolation::None) => {
                let machine = asked.machine(false)?;
                match recipe.learn.cache(false) {
                    Some(_) => hub.pick_measured(&name, &machine, request, wish, with_rates_of),
                    None => hub.pick(&name, &machine, request, wish),
                }
            }
            // Looking at devices takes memory on them and can end the process, so the worker does it.
            (None, Isolation::Process(process)) => {
                hub.pick(&name, &remote::machine_in(&process, asked)?, request, wish)
            }
        }?;
        let chosen = pick.chosen()?;
        recipe.notes =
            [&pick.choice.reason].into_iter().chain(&pick.left_out).map(|it| format!("{name}: {it}")).collect();
        recipe.path = match pick.cached.clone() {
            Some(path) => path,
            None if self.fetch => hub.fetch(chosen, |done, total| match &self.progress {
                Some(callback) => lock(callback)(done, total),
                None => ControlFlow::Continue(()),
            })?,
            None => {
                let (file, bytes) = (chosen.files().next().unwrap_or_default().to_owned(), chosen.bytes());
                return Err(Error::NotFetched { name: name.to_string(), file, bytes });
            }
        };
        Ok(())
    }
}
