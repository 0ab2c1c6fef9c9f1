//! The model's one context, lent to one user at a time.

use std::sync::{Arc, Mutex};

use llama_sys::{Context, Model, SeqId, Token};

use super::adapters::Scales;
use super::loaded::{Drafts, Native};
use super::media::{Marks, MediaEncoder};
use super::options::Verify;
use super::{Error, warm_up};
use crate::sync::lock;

/// Contains the native model, and also its context while the context is not lent.
#[derive(Debug)]
pub(crate) struct ContextSlot {
    held: Mutex<Held>,
}

/// The purpose of a context: to compute logits or embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Text,
    Embeddings,
}

#[derive(Debug, Default)]
struct Held {
    /// The model and the parameters of its context; `None` after a re-placement that failed.
    native: Option<Native>,
    context: State,
    /// The drafters, while they are not lent.
    drafts: Drafts,
}

#[derive(Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "there is one of each model")]
enum State {
    Ready(Context, Contents),
    Lent,
    /// The context has failed, and has not been created again.
    #[default]
    Missing,
}

/// The content of a context that is not lent.
#[derive(Debug, Default)]
pub(crate) enum Contents {
    /// The content is unknown, so the context must be cleared.
    #[default]
    Unknown,
    /// The content is known: exactly these sequences, the least recently used first, and the checkpoints of their
    /// tokens.
    Idle(Vec<Remembered>, Vec<Checkpoint>),
}

/// The tokens of an idle sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Remembered {
    pub(crate) seq: SeqId,
    /// The adapters with which the tokens were computed.
    pub(crate) scales: Scales,
    pub(crate) tokens: Vec<Token>,
    /// The pictures and sounds whose rows are among the tokens.
    pub(crate) marks: Marks,
    /// Whether the prompt store contains the sequence, or cannot store more of it.
    pub(crate) is_stored: bool,
}

/// The state after these tokens, saved because the memory of the model cannot return to it by itself.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// The adapters with which the tokens were computed.
    pub(crate) scales: Scales,
    pub(crate) tokens: Vec<Token>,
    /// The pictures and sounds whose rows are among the tokens.
    pub(crate) marks: Marks,
    pub(crate) state: Arc<llama_sys::State>,
}

impl ContextSlot {
    pub(super) fn new(native: Native, context: Context, drafts: Drafts) -> Self {
        let context = State::Ready(context, Contents::Unknown);
        Self { held: Mutex::new(Held { native: Some(native), context, drafts }) }
    }

    pub(super) fn native(&self) -> Option<Model> {
        lock(&self.held).native.as_ref().map(|native| native.model.clone())
    }

    /// The projector of the loaded model.
    pub(crate) fn media(&self) -> Option<Arc<MediaEncoder>> {
        lock(&self.held).native.as_ref()?.media.clone()
    }

    /// Number of objects in this slot that use the native model: the slot itself, the adapters, the projector, and the
    /// drafters that are not lent.
    pub(crate) fn holders(&self) -> usize {
        let held = lock(&self.held);
        let native = held.native.as_ref();
        let of = |native: &Native| 1 + native.attached.holders() + usize::from(native.media.is_some());
        let own = native.map_or(0, of);
        own + held.drafts.holders()
    }

    /// Lends the context with its content for this purpose; `None` if the context is already lent. If the context has
    /// failed, it is created again.
    pub(super) fn take_for(&self, purpose: Purpose) -> Result<Option<(Context, Contents)>, Error> {
        let embeds = match &lock(&self.held).native {
            Some(native) => native.params.embeddings,
            None => return Err(Error::NotLoaded),
        };
        match (purpose, embeds) {
            (Purpose::Text, true) => Err(Error::LoadedToEmbed),
            (Purpose::Embeddings, false) => Err(Error::LoadedToGenerate),
            _ => self.take_any(),
        }
    }

    pub(super) fn is_lent(&self) -> bool {
        matches!(lock(&self.held).context, State::Lent)
    }

    /// Lends the context for any purpose.
    pub(super) fn take_any(&self) -> Result<Option<(Context, Contents)>, Error> {
        let mut held = lock(&self.held);
        match std::mem::take(&mut held.context) {
            State::Lent => {
                held.context = State::Lent;
                Ok(None)
            }
            State::Ready(mut context, contents) if context.is_usable() => {
                // A late abort by the last user must not affect the present user.
                context.clear_abort();
                held.context = State::Lent;
                Ok(Some((context, contents)))
            }
            unusable => {
                // Frees the memory first, because there may be no room for two contexts.
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

    /// Applies this set of adapters to a lent context, unless it is applied already. A change frees the compute
    /// buffers. This method reserves them again for only a few numbers of tokens, because a text is waiting.
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

    /// Lends the drafters to the user of the context.
    pub(crate) fn take_drafts(&self) -> Result<Drafts, Error> {
        let drafts = std::mem::take(&mut lock(&self.held).drafts);
        drafts.usable()
    }

    pub(crate) fn give_back_drafts(&self, drafts: Drafts) {
        lock(&self.held).drafts = drafts;
    }

    /// Releases the native model after its lent context was dropped. Nothing can be lent until `refill`.
    pub(super) fn release(&self) {
        *lock(&self.held) = Held::default();
    }

    /// Takes another model, whose context counts as lent.
    pub(super) fn refill(&self, native: Native, drafts: Drafts) {
        let mut held = lock(&self.held);
        held.drafts = drafts;
        held.native = Some(native);
        held.context = State::Lent;
    }
}
