//! How a model is loaded, kept so that it can be loaded again: the machine to plan for, the model with all that belongs
//! to it, and the plan.

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::adapters::AdapterFiles;
use super::devices::{bounded_by_now, detect};
use super::lease::{Lease, Leases};
use super::{Error, NativeProbe, threads};
use crate::gguf::Header;
use crate::machine::{Gpu, HeadroomCache, Host, Machine, RatesCache};
use crate::memory::{self, Companion, Estimate, Footprint, Footprints};
use crate::plan::{
    self, GpuLayers, MachineChange, Plan, Planner, Probe, Replay, Request, SavedPlan,
    SavedPlanError,
};
use crate::profile::ModelProfile;

/// Tokens that a draft may draft at once, where nobody says how many.
const DRAFT_MAX: u32 = 8;

/// Bytes that checkpoints of a model may take, where nobody says how many: two of gemma-3-27b's, and dozens or hundreds
/// of models with smaller windows or states.
pub(super) const CHECKPOINTS: u64 = 1 << 30;

/// How a model is loaded.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Recipe {
    pub(super) path: PathBuf,
    /// A model that drafts for it.
    #[serde(default)]
    pub(super) draft: Option<PathBuf>,
    /// Whether the blocks that predict further tokens are loaded.
    #[serde(default)]
    pub(super) mtp: bool,
    pub(super) request: Request,
    /// What is added to the model.
    pub(super) adapters: AdapterFiles,
    /// The machine to believe in, instead of what is detected.
    pub(super) machine: Option<Machine>,
    pub(super) threads: Option<u32>,
    pub(super) threads_batch: Option<u32>,
    /// Bytes of the host that checkpoints may take.
    pub(super) checkpoints: u64,
    /// Where loads tell each other what they are about to take.
    pub(super) leases: Leases,
    pub(super) terms: Terms,
}

impl Recipe {
    /// The machine to plan for. One that the caller has described is believed at first; `again`, after time has passed,
    /// no GPU of it counts with more free bytes than it has now.
    pub(super) fn machine(&self, again: bool) -> Result<Machine, Error> {
        match (&self.machine, self.request.gpu_layers) {
            (Some(machine), _) if again => bounded_by_now(machine.clone()),
            (Some(machine), _) => Ok(machine.clone()),
            // Asking a CUDA device for its memory opens a context there, for nothing if no layer may go to it.
            (None, GpuLayers::Exactly(0) | GpuLayers::AtMost(0)) => {
                Ok(Machine::new(Host::detect().0))
            }
            (None, _) => detect(),
        }
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
    pub(super) fn plan(
        &self,
        header: &Header,
        profile: &ModelProfile,
        machine: &Machine,
    ) -> Result<Plan, Error> {
        let mut request = self.request.clone();
        let companion = self.companion(header)?;
        if companion.is_some() && request.draft_max == 0 {
            request.draft_max = DRAFT_MAX;
        }
        let mut planner = Planner::new(profile, machine).request(request);
        if let Some(companion) = companion {
            planner = planner.beside(companion);
        }
        Ok(planner.plan_probed(&self.adapters.probe(header)?)?)
    }

    /// Threads for what the CPU of this machine computes of a draft.
    pub(super) fn threads_on(&self, machine: &Machine) -> u32 {
        self.threads.unwrap_or_else(|| threads::cores(&machine.host))
    }

    /// What is to be loaded beside the model, if anything is: checked to have the vocabulary of the main one.
    pub(super) fn companion(&self, main: &Header) -> Result<Option<Companion>, Error> {
        let Some(path) = &self.draft else {
            return Ok(None);
        };
        let companion = Companion::draft(&Header::open(path)?).map_err(plan::Error::from)?;
        companion.compatible_with(main).map_err(plan::Error::from)?;
        Ok(Some(companion))
    }
}

pub(super) enum Source {
    Here(Box<SavedPlan>),
    File(PathBuf),
}

impl Source {
    /// The plan, checked.
    pub(super) fn read(&self) -> Result<SavedPlan, SavedPlanError> {
        match self {
            Self::Here(saved) => {
                saved.check()?;
                Ok((**saved).clone())
            }
            Self::File(file) => SavedPlan::read(file),
        }
    }
}

/// Follows a saved plan: held against the model, the machine as it is, and what llama.cpp says now, it is followed,
/// refused, or made anew. Returns the plan to load by, the machine that it is for, and the lease on what it takes
/// there. `machine` is the one to believe instead of what is detected.
pub(super) fn follow(
    saved: &SavedPlan,
    replay: Replay,
    (header, profile, probe): (&Header, &ModelProfile, &NativeProbe),
    machine: Option<&Machine>,
    leases: &Leases,
) -> Result<(Plan, Machine, Lease), Error> {
    saved.check_model(header)?;
    // The model is the one; its layers then are those of the plan unless somebody has changed them.
    let (blocks, has) = (saved.plan.model.blocks, profile.n_layer());
    if blocks != has {
        return Err(SavedPlanError::Invalid {
            file: None,
            problem: format!("plan.model.blocks is {blocks}, and the model has {has}"),
        }
        .into());
    }
    let (machine, section) = leases.machine(|| match machine {
        Some(machine) => Ok(machine.clone()),
        // Asking a CUDA device for its memory opens a context there, for nothing if no layer may go to it.
        None if saved.plan.gpus().next().is_none() => Ok(Machine::new(Host::detect().0)),
        None => detect(),
    })?;
    let changes = changes(saved, profile, &machine, probe)?;
    if changes.is_empty() {
        let mut plan = saved.plan.clone();
        // Where the model is now.
        plan.model.path.clone_from(&profile.path);
        let lease = section.hold(&plan, &machine);
        return Ok((plan, machine, lease));
    }
    let companions = saved.plan.companions.iter();
    let companions: Vec<String> = companions.map(|one| one.name.clone()).collect();
    if replay == Replay::Refuse || !companions.is_empty() {
        return Err(SavedPlanError::Changed {
            model: saved.model.name.clone(),
            changes,
            companions: match replay {
                Replay::Refuse => Vec::new(),
                _ => companions,
            },
        }
        .into());
    }
    let mut plan =
        Planner::new(profile, &machine).request(saved.request.clone()).plan_probed(probe)?;
    let changes = MachineChange::list(&changes);
    plan.notes.push(format!("planned anew, as the saved plan cannot be followed: {changes}"));
    let lease = section.hold(&plan, &machine);
    Ok((plan, machine, lease))
}

/// What keeps the plan from being followed: by what it says of itself; if that is nothing, by the bytes of its weights
/// and caches; and last by what llama.cpp says of it, which may be another llama.cpp than the one it was planned with.
/// A file may say anything, and llama.cpp asked about a context of a billion tokens takes memory for each of its cells.
fn changes(
    saved: &SavedPlan,
    profile: &ModelProfile,
    machine: &Machine,
    probe: &NativeProbe,
) -> Result<Vec<MachineChange>, Error> {
    let changes = saved.changes(machine);
    if !changes.is_empty() {
        return Ok(changes);
    }
    let plan = &saved.plan;
    let gpus: Vec<&Gpu> = plan
        .gpus()
        .filter_map(|placement| {
            let has_name = |gpu: &&Gpu| gpu.device == placement.device;
            machine.gpus.iter().find(has_name)
        })
        .collect();
    let stored = stored(plan, profile, &gpus).map_err(plan::Error::from)?;
    let changes = saved.changes_by(machine, &stored);
    if !changes.is_empty() {
        return Ok(changes);
    }
    let footprints = probe
        .footprints(&gpus, &plan.context, &plan.split())
        .map_err(|source| plan::Error::Probe { n_gpu_layers: plan.n_gpu_layers, source })?;
    Ok(saved.changes_by(machine, &footprints))
}

/// What the plan's weights and caches take, and the logits that it makes room for: exact, and known without llama.cpp.
fn stored(plan: &Plan, profile: &ModelProfile, gpus: &[&Gpu]) -> Result<Footprints, memory::Error> {
    let estimate = Estimate::new(profile, gpus, &plan.context)?
        .tensor_split(&plan.tensor_split)?
        .overrides(&plan.overrides)?;
    let mut stored = estimate.stored(&estimate.assignment(plan.n_gpu_layers));
    let logits = 4_u64.saturating_mul(u64::from(profile.hparams.n_vocab));
    stored.output = logits.saturating_mul(estimate.sizes().output_rows);
    stored.host += Footprint::new(0, 0, stored.output);
    Ok(stored)
}

/// How far a load computes before it counts as done.
///
/// Drivers and their pools take memory when something is first computed, and no breakdown counts that. A warm-up makes
/// them take it while there still is somebody to back off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verify {
    /// Nothing is computed, and no number of threads tried. llama.cpp's own account is held against the
    /// plan, and no more.
    Off,
    /// The largest batch and one token after it, at the beginning of the context; with several sequences, one of them
    /// alone too. Where the plan uses no GPU there is no memory to measure, and no more is computed than the choice of
    /// [threads](super::Threads) takes.
    #[default]
    Quick,
    /// The whole context, up to its last position: takes as long as a prompt of `n_ctx` tokens.
    Full,
}

/// What to do where a load took more of a GPU than its plan left for it: its footprint and all of its headroom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnDifference {
    /// Release it, leave that much more free, and plan again; unless that comes to the same plan, because there is more
    /// room than the plan needs.
    #[default]
    BackOff,
    /// Release it: [`Error::Difference`](super::Error::Difference).
    Fail,
    /// Keep it. The report says so.
    Accept,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(super) verify: Verify,
    pub(super) on_difference: OnDifference,
    pub(super) attempts: NonZeroU32,
    pub(super) learn: Learn,
}

/// Where a load keeps what it learns of its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Learn {
    /// In the user's cache folder; of simulated GPUs nothing.
    User,
    /// In this folder, of simulated GPUs too.
    At(PathBuf),
    Nothing,
}

impl Terms {
    /// Four: the plan, one for memory that was taken since, and two for what nobody foresaw.
    const ATTEMPTS: NonZeroU32 = NonZeroU32::MIN.saturating_add(3);
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            verify: Verify::default(),
            on_difference: OnDifference::default(),
            attempts: Self::ATTEMPTS,
            learn: Learn::User,
        }
    }
}

impl Learn {
    /// The cache for what is learned of a GPU.
    pub(super) fn cache(&self, is_simulated: bool) -> Option<HeadroomCache> {
        match self {
            Self::User if !is_simulated => Some(HeadroomCache::user()),
            Self::At(folder) => Some(HeadroomCache::at(folder)),
            Self::User | Self::Nothing => None,
        }
    }
    /// The cache for what devices are measured to do; `None` where nothing is measured.
    pub(super) fn rates(&self) -> Option<RatesCache> {
        match self {
            Self::User => Some(RatesCache::user()),
            Self::At(folder) => Some(RatesCache::at(folder)),
            Self::Nothing => None,
        }
    }
}
