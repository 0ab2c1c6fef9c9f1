//! The result of a load: the native model, its context, its drafters and the placement, or else the failure.

use std::sync::Arc;

use llama_sys::{Context, ContextParams, Model, Token};

use super::adapters::Attached;
use super::error::Stage;
use super::expert_meter::ExpertMeter;
use super::in_use::UseMeter;
use super::media::MediaEncoder;
use super::moves::LoadTimes;
use super::options::Verify;
use super::placed::Placed;
use super::present::LoadedNotice;
use super::threads::BatchThreads;
use super::{Error, native};
use crate::memory;

/// A loaded model with its context and its placement.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) native: Native,
    pub(super) context: Context,
    pub(super) drafts: Drafts,
    pub(super) placed: Placed,
    /// Corrects the measured rates of the plan during use.
    pub(super) meter: Option<UseMeter>,
    /// Learns from the cache of experts.
    pub(super) experts: Option<ExpertMeter>,
    pub(super) times: Option<LoadTimes>,
}

/// The failure of an attempt, and the stage that it reached.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) error: Error,
}

impl Failure {
    pub(super) fn at<E: Into<Error>>(stage: Stage) -> impl FnOnce(E) -> Box<Self> {
        move |error| Box::new(Self { stage, error: error.into() })
    }
}

/// A model and the parameters of its context.
#[derive(Debug)]
pub(super) struct Native {
    pub(super) model: Model,
    pub(super) params: ContextParams,
    pub(super) attached: Attached,
    /// The projector for images and sound.
    pub(super) media: Option<Arc<MediaEncoder>>,
    pub(super) verify: Verify,
    /// The notice to other processes that the model is loaded.
    pub(super) said: Option<Arc<LoadedNotice>>,
}

/// The loaded drafters, which are lent together with the model's context.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    pub(crate) model: Option<Draft>,
    pub(crate) heads: Option<Heads>,
}

/// The context of a drafter, and what the drafter knows about each sequence.
#[derive(Debug)]
pub(crate) struct Drafter<T> {
    pub(crate) context: Context,
    /// What the drafter knows about each sequence.
    pub(crate) held: Vec<T>,
    pub(super) params: ContextParams,
}

/// A draft model.
pub(crate) type Draft = Drafter<Vec<Token>>;

/// The main model's own block for multi-token prediction.
pub(crate) type Heads = Drafter<Followed>;

/// What is known about a sequence that the block for multi-token prediction follows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Followed {
    /// Position of the first known token. Earlier tokens were computed while the block did not follow.
    pub(crate) first: usize,
    pub(crate) tokens: Vec<Token>,
    /// Number of known tokens that the context holds.
    pub(crate) computed: usize,
    /// Hidden states for the known tokens that the context does not hold yet, in order. There may be one more state at
    /// the end, for the next token.
    pub(crate) hidden: Vec<f32>,
}

/// These parameters, with this number of threads.
pub(super) fn computing_with(threads: u32, params: ContextParams) -> ContextParams {
    ContextParams { n_threads: Some(threads), n_threads_batch: Some(threads), ..params }
}

impl Heads {
    /// Creates the drafter that the plan contains; `None` if it contains no drafter.
    pub(super) fn planned(
        model: &Model,
        plan: &memory::ContextParams,
        threads: u32,
    ) -> Result<Option<Self>, llama_sys::Error> {
        plan.mtp.then(|| Self::new(model, computing_with(threads, native::heads(plan)))).transpose()
    }
}

impl<T: Clone + Default> Drafter<T> {
    pub(super) fn new(model: &Model, params: ContextParams) -> Result<Self, llama_sys::Error> {
        let context = Context::new(model, params.clone())?;
        let held = vec![T::default(); context.n_seq_max() as usize];
        Ok(Self { context, held, params })
    }

    /// Sets the threads of the next draft: at most as many as at the load.
    pub(crate) fn set_threads(&mut self, threads: BatchThreads) -> Result<(), llama_sys::Error> {
        let [one, several] = [self.params.n_threads, self.params.n_threads_batch].map(|most| most.unwrap_or(u32::MAX));
        threads.at_most(one, several).set(&mut self.context)
    }

    /// Creates the context again if it has failed.
    fn usable(self) -> Result<Self, Error> {
        if self.context.is_usable() {
            return Ok(self);
        }
        let model = self.context.model().clone();
        // Frees the memory first, because there may be no room for two contexts.
        drop(self.context);
        Ok(Self::new(&model, self.params)?)
    }
}

impl Drafts {
    pub(super) fn usable(self) -> Result<Self, Error> {
        let (model, heads) = (self.model.map(Drafter::usable), self.heads.map(Drafter::usable));
        Ok(Self { model: model.transpose()?, heads: heads.transpose()? })
    }

    /// The number of drafters that keep a reference to the main model.
    pub(crate) fn holders(&self) -> usize {
        usize::from(self.heads.is_some())
    }
}
