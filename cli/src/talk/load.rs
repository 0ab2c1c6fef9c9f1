//! Loads a model for a chat or a server. The arguments say where the model comes from, where it is placed, and on which
//! devices.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use autoplace::load::Error as LoadError;
use autoplace::machine::Bytes;
use autoplace::plan::{self, GpuLayers, Request, SavedPlan, SavedPlanError};
use autoplace::store::PromptStore;
use autoplace::{Model, ModelBuilder, Plan};
use clap::value_parser;

use super::media::ProjectorArgs;
use super::screen::note;
use super::source::SourceArgs;
use super::store::{PoolStores, StoreArgs};
use crate::adapters::AdapterArgs;
use crate::ask::{AskArgs, CacheRam};
use crate::settings::{DeviceArgs, SettingArgs};
use crate::stop::Stop;
use crate::terminal::bar;

/// A model and its placement.
#[derive(Debug, clap::Args)]
pub(super) struct LoadArgs {
    #[command(flatten)]
    pub(super) source: SourceArgs,
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    settings: SettingArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Follows a plan that `plan --save` wrote, instead of making one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["AskArgs", "SettingArgs", "DeviceArgs"])]
    plan: Option<PathBuf>,
    /// If the machine has changed, plans the stored request again and says what has changed
    #[arg(long, requires = "plan")]
    replan: bool,
    /// Threads to compute with [default: one per usable core; at most 4 generate if all layers are on GPUs]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Threads for prompts [default: as --threads]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=512))]
    threads_batch: Option<u32>,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    pub(super) projector: ProjectorArgs,
    /// Also uses a device of another machine, whose rpc-server listens at this address; repeat for several
    #[arg(long, value_name = "HOST:PORT")]
    rpc: Vec<String>,
    /// Lets --rpc connect to machines other than this one: there is no authentication
    #[arg(long, requires = "rpc")]
    rpc_trusted_network: bool,
}

impl LoadArgs {
    /// The numbers of threads that were asked for.
    pub(super) const fn threads(&self) -> Threads {
        Threads { generation: self.threads, prompts: self.threads_batch }
    }

    /// The request for a plan, without the settings that depend on the machine's devices.
    pub(super) fn request(&self) -> Request {
        let mut request = self.ask.request();
        self.settings.set(&mut request.params);
        request
    }

    /// The prompt store; `None` if there is none. `usual` is its memory, if neither a flag nor the plan sets it.
    /// `keys` are the server's keys, which identify the owner of the texts.
    pub(super) fn store(&self, usual: CacheRam, keys: &[String]) -> Result<Option<PromptStore>, Box<dyn Error>> {
        let planned =
            self.plan.as_ref().map(|file| Ok::<_, SavedPlanError>(SavedPlan::read(file)?.request.prompt_store));
        let usual = match planned.transpose()? {
            None | Some(0) => usual,
            Some(bytes) => CacheRam::Bytes(bytes),
        };
        self.store.open(self.ask.cache_ram.unwrap_or(usual), keys)
    }

    /// The prompt stores of several models.
    pub(super) fn pool_stores(&self, keys: &[String]) -> Result<PoolStores, &'static str> {
        self.store.of_pool(self.ask.cache_ram, keys)
    }

    /// Loads the model and prints its placement; `None` if Ctrl-C ended the load. `more` can add settings to the load.
    pub(super) fn load(
        &self,
        path: &Path,
        mut request: Request,
        stop: &Stop,
        more: impl Fn(ModelBuilder) -> ModelBuilder,
    ) -> Result<Option<Model>, Box<dyn Error>> {
        loop {
            let bar = bar(100, "{msg} {wide_bar} {percent} %");
            let (cancelled, shown) = (stop.flag(), bar.clone());
            let builder = more(self.builder(path, request.clone())?);
            let loaded = builder.progress(move |progress| {
                shown.set_message(progress.stage.doing());
                shown.set_position((progress.done * 100.0) as u64);
                !cancelled.load(Relaxed)
            });
            let loaded = loaded.load();
            bar.finish_and_clear();
            if stop.end() {
                return Ok(None);
            }
            match loaded {
                // As in llama.cpp's programs, a command line that was written for a GPU works without a GPU too.
                Err(LoadError::Plan(plan::Error::NoGpu { .. })) if request.gpu_layers != GpuLayers::Auto => {
                    note("no usable GPU found: --ngl is left out");
                    request.gpu_layers = GpuLayers::Auto;
                }
                Err(error) => return Err(error.into()),
                Ok(model) => {
                    note(summary(&model.placement()));
                    // `/placement` shows the reason for the placement.
                    model.notes().iter().for_each(note);
                    return Ok(Some(model));
                }
            }
        }
    }

    fn builder(&self, path: &Path, request: Request) -> Result<ModelBuilder, Box<dyn Error>> {
        let mut builder = self.devices.load(Model::builder(path), request)?;
        if let Some(file) = &self.plan {
            let saved = SavedPlan::read(file)?;
            builder = if self.replan { builder.follow_or_replan(saved) } else { builder.follow(saved) };
        }
        builder = self.threads().set(builder);
        builder = self.adapters.load(builder);
        builder = self.rpc.iter().fold(builder, ModelBuilder::rpc);
        Ok(if self.rpc_trusted_network { builder.rpc_trusted_network(true) } else { builder })
    }
}

/// The numbers of threads; with `None`, the load chooses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Threads {
    generation: Option<u32>,
    prompts: Option<u32>,
}

impl Threads {
    pub(super) fn set(self, builder: ModelBuilder) -> ModelBuilder {
        let builder = self.generation.into_iter().fold(builder, ModelBuilder::n_threads);
        self.prompts.into_iter().fold(builder, ModelBuilder::n_threads_batch)
    }
}

/// The placement in one line.
pub(super) fn summary(plan: &Plan) -> String {
    let gpus: Vec<&str> = plan.gpus().map(|gpu| gpu.name.as_str()).collect();
    let layers = match gpus.is_empty() {
        true => format!("all {} layers on the host", plan.layers()),
        false => format!("{} of {} layers on {}", plan.n_gpu_layers, plan.layers(), gpus.join(" and ")),
    };
    let bytes = plan.placements.iter().map(|placement| placement.footprint.total()).sum();
    let speed = plan.speed.as_ref().map(|speed| format!(", about {:.1} tok/s", speed.tokens_per_second));
    format!("{}: {layers}, {}{}", plan.model.name, Bytes(bytes), speed.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::LoadArgs;
    use crate::ask::CacheRam;
    use autoplace::gguf::Header;
    use autoplace::machine::{Host, Machine, mib};
    use autoplace::plan::{Planner, Request, SavedPlan};
    use autoplace::profile::ModelProfile;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        load: LoadArgs,
    }

    #[test]
    fn the_store_of_a_saved_plan_has_the_memory_that_the_plan_leaves_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan.json");
        let header = Header::open(test_support::demo_path()).unwrap();
        let profile = ModelProfile::from_header(&header).unwrap();
        let machine = Machine::new(Host::new(8 << 30));
        let memory = |bytes| {
            let mut request = Request::new();
            request.prompt_store = bytes;
            let plan = Planner::new(&profile, &machine).request(request.clone()).plan().unwrap();
            SavedPlan::new(plan, request, &header).unwrap().write(&file).unwrap();
            let read = Program::try_parse_from(["autoplace", "m.gguf", "--plan", file.to_str().unwrap()]).unwrap();
            let store = read.load.store(CacheRam::Off, &[]).unwrap();
            store.map(|store| store.options().memory())
        };
        assert_eq!(memory(mib(100)), Some(mib(100)));
        assert_eq!(memory(0), None);
    }
}
