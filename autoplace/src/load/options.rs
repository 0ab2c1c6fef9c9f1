//! The options of a load, kept so that the model can be loaded again.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::adapters::AdapterFiles;
use super::devices::{bounded_by_now, detect};
use super::disk::measure_disk;
use super::error::Stage;
use super::leases::{Folder, Leases};
use super::progress::{LoadProgress, Progress};
use super::rates::with_rates_for_advice;
use super::rpc::Servers;
use super::{Error, NativeProbe, check_vocabulary, threads};
use crate::gguf::Header;
use crate::machine::{Host, Machine};
use crate::memory::Companion;
use crate::memory::companion::{CompanionRole, DraftOptions};
use crate::plan::{self, Advice, GpuLayers, Plan, PlannedCompanion, Planner, Request, SavedPlan};
use crate::profile::ModelProfile;
use crate::store::PromptStore;
use crate::worker;

/// Default number of tokens per draft.
const DRAFT_MAX: u32 = 8;

/// Default limit of checkpoints in bytes. This is enough for two checkpoints of gemma-3-27b, or for dozens or hundreds
/// of checkpoints of models with smaller windows or states.
const CHECKPOINTS: u64 = 1 << 30;

/// Default bytes for encoded images and sounds. This is enough for about 100 images of 256 rows, with 2560 numbers in
/// each row.
const MEDIA_CACHE: u64 = 256 << 20;

/// The options of a load.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct LoadOptions {
    pub(super) path: PathBuf,
    /// The draft model.
    pub(super) draft: Option<PathBuf>,
    /// The options of the draft that the caller stated.
    pub(super) draft_options: DraftOptions,
    /// Whether the block for multi-token prediction is loaded.
    pub(super) mtp: bool,
    /// The projector for images and sound.
    pub(super) mmproj: Option<PathBuf>,
    /// Maximum number of tokens per image, for projectors that take images of any size.
    pub(super) image_max_tokens: Option<u32>,
    /// Maximum bytes of host memory for encoded images and sounds.
    pub(super) media_cache: u64,
    pub(super) request: Request,
    /// A saved plan to follow. Without `replan`, there is a single attempt.
    pub(super) saved: Option<Box<SavedPlan>>,
    /// Whether the saved request is planned again if the machine has changed, or if the plan does not fit.
    pub(super) replan: bool,
    /// LoRA adapters and control vectors.
    pub(super) adapters: AdapterFiles,
    /// The machine to plan for, instead of the detected one.
    pub(super) machine: Option<Machine>,
    /// Servers whose devices may be used too.
    pub(super) servers: Servers,
    pub(super) threads: Option<u32>,
    pub(super) threads_batch: Option<u32>,
    /// Maximum bytes of host memory for checkpoints.
    pub(super) checkpoints: u64,
    /// The store that keeps computed texts for later ones.
    pub(super) prompt_store: Option<PromptStore>,
    /// The folder through which loads coordinate their use of GPUs.
    pub(super) leases: Leases,
    pub(super) verify: Verify,
    pub(super) on_difference: OnDifference,
    pub(super) attempts: u32,
    /// Folder for measurements of GPUs. Measurements of simulated GPUs are never kept in the user's default folder.
    pub(super) learn: Folder,
    /// Notes about the choice of the model's file, for the beginning of the plan.
    pub(super) notes: Vec<String>,
    /// The locality that the loaded model's cache of experts has measured: how soon texts use experts again. It
    /// replaces the locality that earlier programs measured.
    pub(super) expert_locality: Option<f64>,
}

impl LoadOptions {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            checkpoints: CHECKPOINTS,
            media_cache: MEDIA_CACHE,
            // The first attempt follows the plan, the second one is for the case that memory was taken meanwhile, and
            // two are in reserve.
            attempts: 4,
            ..Self::default()
        }
    }

    /// The path as a hub's name, if it is not a file.
    pub(super) fn hub_name(&self) -> Option<&str> {
        self.path.to_str().filter(|text| text.starts_with("hf:") && !self.path.exists())
    }

    /// The projector as a hub's name, if it is not a file.
    pub(super) fn mmproj_name(&self) -> Option<&str> {
        let path = self.mmproj.as_ref()?;
        path.to_str().filter(|text| text.starts_with("hf:") && !path.exists())
    }

    /// The machine to plan for. If the caller described the machine, that description is trusted at first. `again`
    /// means that time has passed: then no GPU counts more free bytes than it has now.
    pub(crate) fn machine(&self, again: bool) -> Result<Machine, Error> {
        let gone = self.servers.connect()?;
        let is_on_host = match &self.saved {
            Some(saved) if !again => {
                let other = saved.plan.by_depth.iter().flat_map(|by_depth| by_depth.plan.gpus());
                saved.plan.gpus().chain(other).next().is_none()
            }
            _ => matches!(self.request.gpu_layers, GpuLayers::Exactly(0) | GpuLayers::AtMost(0)),
        };
        let machine = match &self.machine {
            Some(machine) if again => bounded_by_now(machine.clone()),
            Some(machine) => Ok(machine.clone()),
            // Reading the memory of a CUDA device creates a driver context there, which is wasted if no layer may go to
            // the device.
            None if is_on_host => Ok(Machine::new(Host::detect().0)),
            None => detect(),
        };
        machine.map(|mut machine| {
            machine.unused_gpus.extend(gone);
            machine
        })
    }

    /// Whether the request of a saved plan may be planned again. It may not if the plan leaves room for a companion
    /// whose file is unknown.
    pub(super) fn may_replan(&self) -> bool {
        let is_known = |one: &PlannedCompanion| self.is_loaded(one);
        self.replan && self.saved.as_ref().is_none_or(|saved| saved.plan.companions.iter().all(is_known))
    }

    /// Whether a companion of the plan will be loaded, because its file is known.
    pub(super) fn is_loaded(&self, companion: &PlannedCompanion) -> bool {
        match companion.role {
            CompanionRole::Draft => self.draft.is_some(),
            CompanionRole::Mmproj => self.mmproj.is_some(),
            _ => false,
        }
    }

    /// These options with [room](Request::with_room_for) for `tokens` tokens of context; 0 changes nothing.
    pub(super) fn with_room_for(&self, tokens: u32) -> Cow<'_, Self> {
        if tokens == 0 {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self { request: self.request.clone().with_room_for(tokens), ..self.clone() })
    }

    /// The options for another load after a worker has died, perhaps because a connection was lost.
    pub(super) fn after_a_death(&self) -> Self {
        let mut options = self.clone();
        options.servers.may_be_gone = true;
        options
    }

    /// The header and the profile of the model's file.
    pub(super) fn read(&self) -> Result<(Header, ModelProfile), Error> {
        let header = Header::open(&self.path)?;
        let profile = self.profile(&header)?;
        Ok((header, profile))
    }

    /// The profile of the model with its block for multi-token prediction and its adapters.
    pub(super) fn profile(&self, header: &Header) -> Result<ModelProfile, Error> {
        let mut profile = ModelProfile::from_header(header)?;
        if self.mtp {
            profile = profile.with_mtp()?;
        }
        Ok(self.adapters.beside(profile)?)
    }

    /// The planner of this load: its request, its draft model, and its projector.
    pub(super) fn planner<'p>(
        &self,
        header: &Header,
        profile: &'p ModelProfile,
        machine: &'p Machine,
    ) -> Result<Planner<'p>, Error> {
        let (mut planner, mut request) = (Planner::new(profile, machine), self.request.clone());
        if let Some(store) = &self.prompt_store {
            request.prompt_store = store.options().reserved();
        }
        if let Some(path) = &self.draft {
            let draft = Companion::draft(&Header::open(path)?).map_err(plan::Error::from)?;
            let draft = draft.draft_options(self.draft_options.clone());
            draft.compatible_with(header).map_err(plan::Error::from)?;
            planner = planner.beside(draft);
            if request.draft_max == 0 {
                request.draft_max = DRAFT_MAX;
            }
        }
        if let Some(projector) = self.projector(header, machine)? {
            planner = planner.beside(projector);
        }
        let moves = self.move_rates(machine, profile.file_bytes);
        let hits = self.expert_hits(machine, profile.file_bytes).unwrap_or_default();
        Ok(planner.request(request).move_rates(moves).expert_hits(hits))
    }

    /// llama.cpp's arithmetic for this model, with all adapters and with the rows of a projector.
    pub(super) fn probe(&self, header: &Header) -> Result<NativeProbe, Error> {
        let probe = self.adapters.probe(header)?;
        Ok(if self.mmproj.is_some() { probe.projector() } else { probe })
    }

    /// A plan for this machine, confirmed by llama.cpp.
    pub(super) fn plan(&self, header: &Header, profile: &ModelProfile, machine: &Machine) -> Result<Plan, Error> {
        let probe = self.probe(header)?;
        let plan = self.planner(header, profile, machine)?.plan_probed(&probe)?;
        if plan.paging.is_none() || machine.host.disk.is_some() {
            return Ok(plan);
        }
        // Only the speed of the disk with the model's file can be measured.
        let Some(disk) = measure_disk(&self.path) else { return Ok(plan) };
        let mut machine = machine.clone();
        machine.host.disk = Some(disk);
        self.plan(header, profile, &machine)
    }

    /// Plans as [`plan`](Self::plan) does, and adds advice to the error of a model that does not fit.
    pub(super) fn plan_or_advice(
        &self,
        header: &Header,
        profile: &ModelProfile,
        machine: &Machine,
    ) -> Result<Plan, Error> {
        match self.plan(header, profile, machine) {
            Err(Error::Plan(error)) => Err(self.planner(header, profile, machine)?.advised(error).into()),
            plan => plan,
        }
    }

    /// Tries changes that would put more of the model on GPUs.
    pub(super) fn advice(mut self) -> Result<Advice, Error> {
        if !self.servers.endpoints.is_empty() {
            return Err(worker::Error::Elsewhere { what: "planning with devices of other machines" }.into());
        }
        // Advice takes no memory, so it need not wait for other loads.
        self.leases = Leases::none();
        let (header, profile) = self.read()?;
        check_vocabulary(&header)?;
        let mut machine = self.measured(self.machine(false)?, &header, &profile);
        if self.machine.is_none() {
            machine = with_rates_for_advice(machine, &profile, &self.request);
        }
        let planner = self.planner(&header, &profile, &machine)?;
        match self.plan(&header, &profile, &machine) {
            Ok(plan) => Ok(Advice::on(&planner, &plan)),
            Err(Error::Plan(plan::Error::DoesNotFit { .. } | plan::Error::Beside { .. })) => Ok(planner.advice()?),
            Err(error) => Err(error),
        }
    }

    /// Reports a stage before the weights are loaded. Fails if the callback cancels the load.
    pub(super) fn enter(&self, stage: Stage, progress: &Progress) -> Result<(), Error> {
        match progress.report(LoadProgress { stage, done: 0.0 }) {
            true => Ok(()),
            false => Err(llama_sys::Error::LoadCancelled { path: self.path.clone() }.into()),
        }
    }

    /// The number of CPU threads for a draft model.
    pub(super) fn threads_on(&self, machine: &Machine) -> u32 {
        self.threads.unwrap_or_else(|| threads::cores(&machine.host))
    }
}

/// How much a load computes to verify itself.
///
/// Drivers and pools take memory at the first computation, and no breakdown counts this memory. With a warm-up, they
/// take this memory while the load can still back off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verify {
    /// Computes nothing. Compares llama.cpp's own account with the plan.
    Off,
    /// Computes the largest batch and one token after it; with several sequences, also one sequence alone. Reserves
    /// compute buffers for some numbers of tokens. Other numbers may need a little more memory, which the headroom
    /// covers. Computes nothing if the plan uses no GPU.
    #[default]
    Quick,
    /// Computes the whole context up to its last position, which takes as long as a prompt of `n_ctx` tokens. Reserves
    /// compute buffers for all numbers of tokens, so that no buffer grows later.
    Full,
}

/// What happens if a load took more of a GPU's memory than its plan's footprint and headroom together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnDifference {
    /// Release the load, leave the difference free, and plan again. If the new plan is the same, there is enough room
    /// for the difference too, and the load is kept.
    #[default]
    BackOff,
    /// Release the load and fail with [`Error::Difference`](super::Error::Difference).
    Fail,
    /// Keep the load, and mention the difference in the report.
    Accept,
}
