//! A small model that drafts for the main one: loaded beside it, where the plan has left room for it.
//!
//! In: a main model that is loaded and judged, and its plan. Out: the same with a [`Draft`], a context that is warmed
//! up, and whose bytes are held against what the plan left for it. It is as much a part of a load as the model itself:
//! where it lacks memory, all is released and planned anew.

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
use crate::memory;
use crate::memory::companion::Role;
use crate::memory::{Companion, Footprint};
use crate::plan::{self, Placement, Plan};

impl Recipe {
    /// Loads the draft, if one was asked for. A plan that knows of none has left no room: then there is none.
    pub(super) fn add_draft(
        &self,
        mut loaded: Loaded,
        prepared: &Prepared,
        progress: &Progress,
    ) -> Result<Loaded, Box<Failure>> {
        let Some(path) = &self.draft else {
            return Ok(loaded);
        };
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
        let names = gpu.iter();
        let names = names.map(|gpu| (gpu.device.as_deref(), gpu.name.as_str()));
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
        let params =
            ContextParams { n_threads: Some(threads), n_threads_batch: Some(threads), ..native::context(&context) };
        let mut made = Context::new(&native, params.clone()).map_err(Failure::at(Stage::Context))?;
        let verify = self.terms.verify;
        let run = warm_up(&mut made, None, &devices, verify, progress).map_err(Failure::at(Stage::WarmUp))?;
        let taken = taken(&run, &before, verify);
        Ok((Draft::new(made, params), companion, taken))
    }

    /// Holds what a draft took of its GPU against what the plan left for it. Returns what to say of it.
    fn judge_draft(&self, companion: &Companion, gpu: Option<&Placement>, taken: u64) -> Result<String, Box<Failure>> {
        let Some(gpu) = gpu else {
            return Ok(format!("{companion} is on the host"));
        };
        let headroom = gpu.headroom.total();
        let difference = taken.saturating_sub(gpu.companions.saturating_add(headroom));
        if difference == 0 || self.terms.on_difference == OnDifference::Accept {
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
fn taken(run: &WarmedUp, before: &[Option<u64>], verify: Verify) -> u64 {
    let told = run.allocated.gpus.first();
    let told = told.map_or(0, Footprint::total);
    let shrunk = match (before.first(), run.used.first()) {
        (Some(Some(before)), Some(Some(used))) if verify != Verify::Off => before.saturating_sub(*used),
        _ => 0,
    };
    told.max(shrunk)
}

/// What is loaded to draft, lent together with the model's context.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    pub(crate) model: Option<Draft>,
    pub(crate) heads: Option<Heads>,
}

#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) context: Context,
    /// What the context holds of each sequence.
    pub(crate) held: Vec<Vec<Token>>,
    params: ContextParams,
}

/// Blocks that predict further tokens, with their context.
#[derive(Debug)]
pub(crate) struct Heads {
    pub(crate) context: Context,
    /// What is known of each sequence.
    pub(crate) followed: Vec<Followed>,
    params: ContextParams,
}

/// The tokens of a sequence whose hidden states are known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Followed {
    /// The position of the first of them: what came before was computed while nobody listened.
    pub(crate) first: usize,
    pub(crate) tokens: Vec<Token>,
    /// How many of them the context holds.
    pub(crate) computed: usize,
    /// The hidden states of the tokens before those that it does not hold, one after the other; at the end there may be
    /// one more, for the token that comes next.
    pub(crate) hidden: Vec<f32>,
}

impl Heads {
    /// As the plan has them; `None` where it has none.
    pub(super) fn new(
        model: &llama_sys::Model,
        plan: &memory::ContextParams,
        threads: u32,
    ) -> Result<Option<Self>, llama_sys::Error> {
        if !plan.mtp {
            return Ok(None);
        }
        let params = ContextParams { n_threads: Some(threads), n_threads_batch: Some(threads), ..native::heads(plan) };
        let context = Context::new(model, params.clone())?;
        Ok(Some(Self::of(context, params)))
    }

    fn of(context: Context, params: ContextParams) -> Self {
        let sequences = context.n_seq_max() as usize;
        Self { context, followed: vec![Followed::default(); sequences], params }
    }
}

impl Draft {
    pub(super) fn new(context: Context, params: ContextParams) -> Self {
        let sequences = context.n_seq_max() as usize;
        Self { context, held: vec![Vec::new(); sequences], params }
    }
}

impl Drafts {
    /// With contexts that work: one that has failed is made anew.
    pub(super) fn usable(self) -> Result<Self, Error> {
        let Self { mut model, mut heads } = self;
        if let Some(draft) = model.take_if(|draft| !draft.context.is_usable()) {
            model = Some(Draft::new(renewed(draft.context, &draft.params)?, draft.params));
        }
        if let Some(failed) = heads.take_if(|heads| !heads.context.is_usable()) {
            heads = Some(Heads::of(renewed(failed.context, &failed.params)?, failed.params));
        }
        Ok(Self { model, heads })
    }

    /// How many of those that hold the main model are among them.
    pub(crate) fn holders(&self) -> usize {
        usize::from(self.heads.is_some())
    }
}

/// Another context of the same model in place of one that has failed.
fn renewed(context: Context, params: &ContextParams) -> Result<Context, Error> {
    let model = context.model().clone();
    // Its memory first: there may be no room for two.
    drop(context);
    Ok(Context::new(&model, params.clone())?)
}
