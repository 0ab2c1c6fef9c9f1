//! From a hub's name to a file of this machine: which of a repository's files is taken, and whether it may be fetched.

use std::ops::ControlFlow;
use std::sync::Mutex;

use autoplace_hub::{Hub, Name, Wish};

use super::rates::with_rates_of;
use super::recipe::Recipe;
use super::{Error, ModelBuilder, remote};
use crate::lock;
use crate::worker::Isolation;

/// What is called with the bytes that are there and those that there will be.
type Callback = Box<dyn FnMut(u64, u64) -> ControlFlow<()> + Send>;

/// Where a model comes from that is asked for by name.
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
        /// Whether a hub's model, `hf:OWNER/NAME`, is fetched where the cache lacks it. Default: no, and it is
        /// [`Error::NotFetched`], which says how many bytes that is. What the cache has is loaded without a request.
        fetch(allowed: bool) source.fetch = allowed;
        /// Which of a hub's files is the best for the machine and the request, by arithmetic and for the model alone.
        /// Default: [`Wish::Auto`].
        wish(wish: Wish) source.wish = wish;
        /// Which hub, and where its cache is. Default: [`Hub::from_env`].
        hub(hub: Hub) source.hub = Some(hub);
        /// Called every tenth of a second of a fetch with the bytes that are there and those that there will be; it may
        /// end the fetch, and what has arrived stays for the next. [`progress`](Self::progress) is of the load alone.
        fetch_progress(callback: impl FnMut(u64, u64) -> ControlFlow<()> + Send + 'static)
            source.progress = Some(Mutex::new(Box::new(callback)));
    }
}

impl Source {
    /// Sets the path to the file that a name stands for on the machine that the load will plan for.
    pub(super) fn place(&self, recipe: &mut Recipe, isolation: &Isolation) -> Result<(), Error> {
        let Some(name) = recipe.hub_name() else { return Ok(()) };
        let name: Name = name.parse().map_err(autoplace_hub::Error::from)?;
        let hub = self.hub.clone().map_or_else(Hub::from_env, Ok)?;
        let isolation = recipe.servers.isolation(isolation.clone())?;
        // Whatever a saved plan uses, its file was chosen for all devices.
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
            // What a look at the devices takes of them, and may end, is the worker's.
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
