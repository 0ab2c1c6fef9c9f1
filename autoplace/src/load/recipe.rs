//! How a model is loaded, kept so that it can be loaded again.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::adapters::AdapterFiles;
use super::devices::{bounded_by_now, detect};
use super::disk::measure_disk;
use super::lease::{Folder, Leases};
use super::rpc::Servers;
use super::{Error, threads};
use crate::gguf::Header;
use crate::machine::{Host, Machine, MeasurementCache};
use crate::memory::Companion;
use crate::memory::companion::Role;
use crate::plan::{self, GpuLayers, Plan, PlannedCompanion, Planner, Request, SavedPlan};
use crate::profile::ModelProfile;

/// Tokens that a draft may draft at once, where nobody says how many.
const DRAFT_MAX: u32 = 8;

/// Bytes that checkpoints of a model may take, where nobody says how many: two of gemma-3-27b's, and dozens or hundreds
/// of models with smaller windows or states.
const CHECKPOINTS: u64 = 1 << 30;

/// How a model is loaded.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Recipe {
    pub(super) path: PathBuf,
    /// A model that drafts for it.
    pub(super) draft: Option<PathBuf>,
    /// Whether the blocks that predict further tokens are loaded.
    pub(super) mtp: bool,
    pub(super) request: Request,
    /// A plan to follow, in a single attempt.
    pub(super) saved: Option<Box<SavedPlan>>,
    /// Whether its request is planned again where the machine has changed since.
    pub(super) replan: bool,
    /// LoRA adapters and control vectors beside the model.
    pub(super) adapters: AdapterFiles,
    /// The machine to plan for, instead of the detected one.
    pub(super) machine: Option<Machine>,
    /// Whose devices may be used beside this machine's.
    pub(super) servers: Servers,
    pub(super) threads: Option<u32>,
    pub(super) threads_batch: Option<u32>,
    /// Bytes of the host that checkpoints may take.
    pub(super) checkpoints: u64,
    /// Where loads see what others are about to take.
    pub(super) leases: Leases,
    pub(super) verify: Verify,
    pub(super) on_difference: OnDifference,
    pub(super) attempts: u32,
    /// Where it keeps what it learns of its GPUs: of simulated ones nothing in the user's own folder.
    pub(super) learn: Folder,
    /// What its plans say first: how its file was chosen.
    pub(super) notes: Vec<String>,
}

impl Recipe {
    pub(super) fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            checkpoints: CHECKPOINTS,
            // The plan, one for memory that was taken since, and two for the unforeseen.
            attempts: 4,
            ..Self::default()
        }
    }

    /// What the path says, if it is no file and stands for a model of a hub.
    pub(super) fn hub_name(&self) -> Option<&str> {
        self.path.to_str().filter(|text| text.starts_with("hf:") && !self.path.exists())
    }

    /// The machine to plan for. One that the caller has described is believed at first; `again`, after time has passed,
    /// no GPU of it counts with more free bytes than it has now.
    pub(crate) fn machine(&self, again: bool) -> Result<Machine, Error> {
        let gone = self.servers.connect()?;
        let is_on_host = match &self.saved {
            Some(saved) if !again => saved.plan.gpus().next().is_none(),
            _ => matches!(self.request.gpu_layers, GpuLayers::Exactly(0) | GpuLayers::AtMost(0)),
        };
        let machine = match &self.machine {
            Some(machine) if again => bounded_by_now(machine.clone()),
            Some(machine) => Ok(machine.clone()),
            // Asking a CUDA device for its memory opens a context there, for nothing if no layer may go to it.
            None if is_on_host => Ok(Machine::new(Host::detect().0)),
            None => detect(),
        };
        machine.map(|mut machine| {
            machine.unused_gpus.extend(gone);
            machine
        })
    }

    /// Whether the request of a saved plan may be planned again: not where that plan leaves room for what is loaded
    /// beside the model and is not known here.
    pub(super) fn may_replan(&self) -> bool {
        let is_known = |one: &PlannedCompanion| one.role == Role::Draft && self.draft.is_some();
        self.replan && self.saved.as_ref().is_none_or(|saved| saved.plan.companions.iter().all(is_known))
    }

    /// The same [with room](Request::with_room_for) for so many tokens; 0 asks for nothing.
    pub(super) fn with_room_for(&self, tokens: u32) -> Cow<'_, Self> {
        if tokens == 0 {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self { request: self.request.clone().with_room_for(tokens), ..self.clone() })
    }

    /// The same after a worker has died, perhaps of a lost connection.
    pub(super) fn after_a_death(&self) -> Self {
        let mut recipe = self.clone();
        recipe.servers.may_be_gone = true;
        recipe
    }

    /// The header of the model's file, and what the model is.
    pub(super) fn read(&self) -> Result<(Header, ModelProfile), Error> {
        let header = Header::open(&self.path)?;
        let profile = self.profile(&header)?;
        Ok((header, profile))
    }

    /// What the model is, with all that is loaded of it and beside it.
    pub(super) fn profile(&self, header: &Header) -> Result<ModelProfile, Error> {
        let mut profile = ModelProfile::from_header(header)?;
        if self.mtp {
            profile = profile.with_mtp()?;
        }
        Ok(self.adapters.beside(profile)?)
    }

    /// A plan for this machine, confirmed by llama.cpp.
    pub(super) fn plan(&self, header: &Header, profile: &ModelProfile, machine: &Machine) -> Result<Plan, Error> {
        let (mut planner, mut request) = (Planner::new(profile, machine), self.request.clone());
        if let Some(path) = &self.draft {
            let draft = Companion::draft(&Header::open(path)?).map_err(plan::Error::from)?;
            draft.compatible_with(header).map_err(plan::Error::from)?;
            planner = planner.beside(draft);
            if request.draft_max == 0 {
                request.draft_max = DRAFT_MAX;
            }
        }
        let probe = self.adapters.probe(header)?;
        let plan = planner.request(request).plan_probed(&probe)?;
        if plan.paging.is_none() || machine.host.disk.is_some() {
            return Ok(plan);
        }
        // How fast is known only of the file's own disk.
        let Some(disk) = measure_disk(&self.path) else { return Ok(plan) };
        let mut machine = machine.clone();
        machine.host.disk = Some(disk);
        self.plan(header, profile, &machine)
    }

    /// Threads for what the CPU of this machine computes of a draft.
    pub(super) fn threads_on(&self, machine: &Machine) -> u32 {
        self.threads.unwrap_or_else(|| threads::cores(&machine.host))
    }
}

/// How far a load computes before it counts as done.
///
/// Drivers and their pools take memory when something is first computed, and no breakdown counts that. A warm-up makes
/// them take it while the load can still back off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verify {
    /// Nothing is computed; llama.cpp's own account is compared with the plan.
    Off,
    /// The largest batch and one token after it; with several sequences, one of them alone too. Compute buffers are
    /// reserved for some numbers of tokens; others may take a little more, of the headroom. Where the plan uses no GPU,
    /// nothing is computed.
    #[default]
    Quick,
    /// The whole context, up to its last position: takes as long as a prompt of `n_ctx` tokens. Compute buffers are
    /// reserved for all numbers of tokens: none grows later.
    Full,
}

/// What to do where a load took more of a GPU than its plan's footprint and headroom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnDifference {
    /// Release it, leave that much more free, and plan again; unless that makes the same plan, because there is more
    /// room than the plan needs.
    #[default]
    BackOff,
    /// Release it: [`Error::Difference`](super::Error::Difference).
    Fail,
    /// Keep it. The report says so.
    Accept,
}

impl Folder {
    /// The cache for what is learned and measured of devices; `None` where nothing is.
    pub(super) fn cache(&self, is_simulated: bool) -> Option<MeasurementCache> {
        match self {
            Self::User if !is_simulated => Some(MeasurementCache::user()),
            Self::At(folder) => Some(MeasurementCache::at(folder)),
            Self::User | Self::Nowhere => None,
        }
    }
}
