//! The model's one context: lent to one generation at a time.

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use llama_sys::{Context, ContextParams, Model, SeqId, Token};

use super::adapters::{Attached, Scales};
use super::draft::Drafts;
use super::recipe::Verify;
use super::{Error, warm_up};
use crate::lock;

/// Holds the model underneath, and its context while nobody uses it.
#[derive(Debug)]
pub(crate) struct ContextSlot {
    /// Read while somebody holds the model underneath or takes its context, written while it is re-placed.
    in_place: RwLock<()>,
    held: Mutex<Held>,
}

/// What a context is lent for: one yields logits, or embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Text,
    Embeddings,
}

#[derive(Debug, Default)]
struct Held {
    /// The model, and what its context is made with; `None` after a re-placement that failed.
    native: Option<Native>,
    context: State,
    /// What drafts while nobody uses it.
    drafts: Drafts,
}

/// A model, and what its context is made with.
#[derive(Debug)]
pub(super) struct Native {
    pub(super) model: Model,
    pub(super) params: ContextParams,
    pub(super) attached: Attached,
    pub(super) verify: Verify,
}

#[derive(Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "there is one of each model")]
enum State {
    Ready(Context, Contents),
    Lent,
    /// It failed and could not be made again so far.
    #[default]
    Missing,
}

/// What a context's memory holds while nobody uses it.
#[derive(Debug, Default)]
pub(crate) enum Contents {
    /// Unknown: it has to be cleared.
    #[default]
    Unknown,
    /// These sequences, the least recently used first, and nothing else; and what was kept of how some of them were
    /// before.
    Idle(Vec<Remembered>, Vec<Checkpoint>),
}

/// The tokens of a sequence that a context's memory holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Remembered {
    pub(crate) seq: SeqId,
    /// The adapters that they were computed with.
    pub(crate) scales: Scales,
    pub(crate) tokens: Vec<Token>,
}

/// What a memory cannot go back to by itself, as it was after these tokens.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// The adapters that they were computed with.
    pub(crate) scales: Scales,
    pub(crate) tokens: Vec<Token>,
    pub(crate) state: llama_sys::State,
}

impl ContextSlot {
    pub(super) fn new(native: Native, context: Context, drafts: Drafts) -> Self {
        let context = State::Ready(context, Contents::Unknown);
        Self { held: Mutex::new(Held { native: Some(native), context, drafts }), in_place: RwLock::default() }
    }

    /// Of a model that is not in this process.
    pub(super) fn empty() -> Self {
        Self { held: Mutex::default(), in_place: RwLock::default() }
    }

    /// The model stays where it is as long as this lives: the end of a re-placement is waited for. A thread has one at
    /// a time.
    pub(crate) fn in_place(&self) -> RwLockReadGuard<'_, ()> {
        self.in_place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody else holds the model underneath, or takes its context, as long as this lives: they wait.
    pub(crate) fn replacing(&self) -> RwLockWriteGuard<'_, ()> {
        self.in_place.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn native(&self) -> Option<Model> {
        lock(&self.held).native.as_ref().map(|native| native.model.clone())
    }

    /// How many of those that hold the model are the slot, its adapters, and what drafts and is not lent.
    pub(crate) fn holders(&self) -> usize {
        let held = lock(&self.held);
        let native = held.native.as_ref();
        let own = native.map_or(0, |native| 1 + native.attached.holders());
        own + held.drafts.holders()
    }

    /// Lends the context for this use, and what it holds; `None` while it is lent already. One that failed is made
    /// again.
    pub(crate) fn take_for(&self, purpose: Purpose) -> Result<Option<(Context, Contents)>, Error> {
        let _in_place = self.in_place();
        let embeds = match &lock(&self.held).native {
            Some(native) => native.params.embeddings,
            None => return Err(Error::NotLoaded),
        };
        match (purpose, embeds) {
            (Purpose::Text, true) => Err(Error::Embeds),
            (Purpose::Embeddings, false) => Err(Error::Generates),
            _ => self.take_any(),
        }
    }

    /// The same, whatever it is for.
    pub(super) fn take_any(&self) -> Result<Option<(Context, Contents)>, Error> {
        let mut held = lock(&self.held);
        match std::mem::take(&mut held.context) {
            State::Lent => {
                held.context = State::Lent;
                Ok(None)
            }
            State::Ready(mut context, contents) if context.is_usable() => {
                // An abort that came too late for the last generation is not meant for this one.
                context.clear_abort();
                held.context = State::Lent;
                Ok(Some((context, contents)))
            }
            unusable => {
                // Its memory first: there may be no room for two.
                drop(unusable);
                let native = held.native.as_ref().ok_or(Error::NotLoaded)?;
                let mut context = Context::new(&native.model, native.params.clone())?;
                native.attached.attach(&mut context)?;
                warm_up::reserve(&mut context, native.verify)?;
                held.context = State::Lent;
                Ok(Some((context, Contents::Unknown)))
            }
        }
    }

    /// Has a context that was lent compute with this set of adapters, if it does not yet. A change frees its compute
    /// buffers and reserves them again, for a few numbers of tokens only: a text waits for it.
    pub(crate) fn adapt(&self, context: &mut Context, scales: &Scales) -> Result<(), Error> {
        let held = lock(&self.held);
        let native = held.native.as_ref().ok_or(Error::NotLoaded)?;
        if native.attached.set(context, scales)? {
            warm_up::reserve(context, Verify::Quick)?;
        }
        Ok(())
    }

    pub(crate) fn give_back(&self, context: Context, contents: Contents) {
        lock(&self.held).context = State::Ready(context, contents);
    }

    /// Lends what drafts to whoever has the context.
    pub(crate) fn take_drafts(&self) -> Result<Drafts, Error> {
        let drafts = std::mem::take(&mut lock(&self.held).drafts);
        drafts.usable()
    }

    pub(crate) fn give_back_drafts(&self, drafts: Drafts) {
        lock(&self.held).drafts = drafts;
    }

    /// Lets go of the model underneath, whose context was lent and is no more. Nothing can be lent
    /// until it is refilled.
    pub(super) fn release(&self) {
        *lock(&self.held) = Held::default();
    }

    /// Takes another model; its context is lent.
    pub(super) fn refill(&self, native: Native, drafts: Drafts) {
        let mut held = lock(&self.held);
        held.drafts = drafts;
        held.native = Some(native);
        held.context = State::Lent;
    }
}
