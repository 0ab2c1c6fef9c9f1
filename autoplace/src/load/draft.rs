//! A small model that drafts for the main one: loaded beside it, where the plan has left room for it.
//!
//! In: a main model that is loaded and judged, and its plan. Out: the same with a [`Draft`], warmed up and compared
//! with what the plan left for it. Where it lacks memory, both are released and planned again.

use std::path::Path;
use std::sync::Arc;

use llama_sys::{Context, ContextParams, ModelParams, Token};

use super::carry_out::{Failure, Loaded};
use super::devices::{by_name, free, of_plan};
use super::error::Stage;
use super::placed::Prepared;
use super::progress::Progress;
use super::recipe::{OnDifference, Recipe, Verify};
use super::warm_up::{WarmedUp, warm_up};
use super::{Error, native};
use crate::gguf::Header;
use crate::machine::Bytes;
use crate::memory::companion::Role;
use crate::memory::{self, Companion, Footprint};
use crate::plan::{self, Placement, Plan};

impl Recipe {
    /// Loads the draft, if one was asked for. A plan that knows of none has left no room: then there is none.
    pub(super) fn add_draft(
        &self,
        mut loaded: Loaded,
        prepared: &Prepared,
        progress: &Progress,
    ) -> Result<Loaded, Box<Failure>> {
        let Some(path) = &self.draft else { return Ok(loaded) };
        let plan = &prepared.plan;
        if !plan.companions.iter().any(|one| one.role == Role::Draft) {
            tracing::warn!("the plan leaves no room for the draft, which is not loaded");
            return Ok(loaded);
        }
        let gpus = of_plan(plan).map_err(Failure::at(Stage::Check))?;
        let threads = self.threads_on(&prepared.machine);
        let (draft, companion, taken) = match self.make_draft(path, plan, threads, progress) {
            Ok(made) => made,
            Err(failure) => {
                // What is free then is what was free for both.
                drop(loaded);
                return Err(failure.freed(plan, &gpus));
            }
        };
        let gpu = plan.gpus().find(|gpu| gpu.companions > 0);
        let note = self.judge_draft(&companion, gpu, taken)?;
        Arc::make_mut(&mut loaded.placed.report).notes.push(note);
        loaded.drafts.model = Some(draft);
        Ok(loaded)
    }

    /// The draft, and how many bytes of its GPU it took.
    fn make_draft(
        &self,
        path: &Path,
        plan: &Plan,
        threads: u32,
        progress: &Progress,
    ) -> Result<(Draft, Companion, u64), Box<Failure>> {
        let header = Header::open(path).map_err(Failure::at(Stage::Check))?;
        let of_plan = |error| Failure::at(Stage::Check)(plan::Error::from(error));
        let companion = Companion::draft(&header).map_err(of_plan)?;
        let context = companion.draft_context(&plan.context).map_err(of_plan)?;
        let context = context.unwrap_or_else(|| plan.context.clone());
        // A draft goes to one GPU as a whole.
        let gpu = plan.gpus().find(|gpu| gpu.companions > 0);
        let names = gpu.iter().map(|gpu| (gpu.device.as_deref(), gpu.name.as_str()));
        let devices = by_name(names).map_err(Failure::at(Stage::Check))?;
        let before = free(&devices);
        let native = native::load(
            &header,
            ModelParams {
                n_gpu_layers: if devices.is_empty() { 0 } else { i32::MAX },
                devices: Some(devices.clone()),
                load_mode: native::load_mode(&context, gpu.iter().map(|gpu| gpu.backend.as_str())),
                use_extra_bufts: context.repack,
                ..ModelParams::default()
            },
        )
        .map_err(Failure::at(Stage::Weights))?;
        let params = computing_with(threads, native::context(&context));
        let mut draft = Draft::new(&native, params).map_err(Failure::at(Stage::Context))?;
        let run = warm_up(&mut draft.context, None, &devices, self.verify, progress);
        let run = run.map_err(Failure::at(Stage::WarmUp))?;
        let taken = taken(&run, before.first().copied().flatten(), self.verify);
        Ok((draft, companion, taken))
    }

    /// Compares what a draft took of its GPU with what the plan left for it. Returns what to say of it.
    fn judge_draft(&self, companion: &Companion, gpu: Option<&Placement>, taken: u64) -> Result<String, Box<Failure>> {
        let Some(gpu) = gpu else {
            return Ok(format!("{companion} is on the host"));
        };
        let headroom = gpu.headroom.total();
        let difference = taken.saturating_sub(gpu.companions.saturating_add(headroom));
        if difference == 0 || self.on_difference == OnDifference::Accept {
            let (name, taken, left) = (&gpu.name, Bytes(taken), Bytes(gpu.companions));
            return Ok(format!("{companion} is on {name}: it took {taken}, and {left} were left for it"));
        }
        Err(Failure::at(Stage::Verify)(Error::Difference {
            device: gpu.device.clone().unwrap_or_default(),
            name: gpu.name.clone(),
            planned: gpu.companions,
            headroom,
            taken,
            difference,
        }))
    }
}

/// What a draft took of its GPU: by llama.cpp's own account, or by the device's where that is more and
/// something was computed.
fn taken(run: &WarmedUp, before: Option<u64>, verify: Verify) -> u64 {
    let allocated = run.allocated.gpus.first().map_or(0, Footprint::total);
    let shrunk = before.zip(run.used.first().copied().flatten()).filter(|_| verify != Verify::Off);
    allocated.max(shrunk.map_or(0, |(before, used)| before.saturating_sub(used)))
}

/// What is loaded to draft, lent together with the model's context.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    pub(crate) model: Option<Draft>,
    pub(crate) heads: Option<Heads>,
}

/// A context that drafts.
#[derive(Debug)]
pub(crate) struct Drafter<T> {
    pub(crate) context: Context,
    /// What it holds of each sequence.
    pub(crate) held: Vec<T>,
    params: ContextParams,
}

/// A small model.
pub(crate) type Draft = Drafter<Vec<Token>>;

/// Blocks of the main model that predict further tokens.
pub(crate) type Heads = Drafter<Followed>;

/// The tokens of a sequence whose hidden states are known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Followed {
    /// The position of the first of them: what came before was computed while the block did not follow.
    pub(crate) first: usize,
    pub(crate) tokens: Vec<Token>,
    /// How many of them the context holds.
    pub(crate) computed: usize,
    /// The hidden states of the tokens before those that it does not hold, one after the other; at the end there may be
    /// one more, for the token that comes next.
    pub(crate) hidden: Vec<f32>,
}

fn computing_with(threads: u32, params: ContextParams) -> ContextParams {
    ContextParams { n_threads: Some(threads), n_threads_batch: Some(threads), ..params }
}

impl Heads {
    /// As the plan has them; `None` where it has none.
    pub(super) fn planned(
        model: &llama_sys::Model,
        plan: &memory::ContextParams,
        threads: u32,
    ) -> Result<Option<Self>, llama_sys::Error> {
        plan.mtp.then(|| Self::new(model, computing_with(threads, native::heads(plan)))).transpose()
    }
}

impl<T: Clone + Default> Drafter<T> {
    fn new(model: &llama_sys::Model, params: ContextParams) -> Result<Self, llama_sys::Error> {
        let context = Context::new(model, params.clone())?;
        let held = vec![T::default(); context.n_seq_max() as usize];
        Ok(Self { context, held, params })
    }

    /// With a context that works: one that has failed is made again.
    fn usable(self) -> Result<Self, Error> {
        if self.context.is_usable() {
            return Ok(self);
        }
        let model = self.context.model().clone();
        // Its memory first: there may be no room for two.
        drop(self.context);
        Ok(Self::new(&model, self.params)?)
    }
}

impl Drafts {
    pub(super) fn usable(self) -> Result<Self, Error> {
        let (model, heads) = (self.model.map(Drafter::usable), self.heads.map(Drafter::usable));
        Ok(Self { model: model.transpose()?, heads: heads.transpose()? })
    }

    /// How many of those that hold the main model are among them.
    pub(crate) fn holders(&self) -> usize {
        usize::from(self.heads.is_some())
    }
}
