//! The model's one context: lent to one generation at a time.

use std::sync::{Mutex, PoisonError};

use llama_sys::{Context, ContextParams};

/// Holds the context while nobody uses it.
#[derive(Debug)]
pub(crate) struct ContextSlot {
    state: Mutex<State>,
    model: llama_sys::Model,
    params: ContextParams,
}

#[derive(Debug)]
enum State {
    Ready(Context),
    Lent,
    /// It failed and could not be made again so far.
    Missing,
}

impl ContextSlot {
    pub(super) fn new(context: Context, params: ContextParams) -> Self {
        Self {
            model: context.model().clone(),
            state: Mutex::new(State::Ready(context)),
            params,
        }
    }

    /// Lends the context; `None` while it is lent already. One that failed is made anew.
    pub(crate) fn take(&self) -> Result<Option<Context>, llama_sys::Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Missing) {
            State::Lent => {
                *state = State::Lent;
                Ok(None)
            }
            State::Ready(mut context) if context.is_usable() => {
                // An abort that came too late for the last generation is not meant for this one.
                context.clear_abort();
                *state = State::Lent;
                Ok(Some(context))
            }
            unusable => {
                // Its memory first: there may be no room for two.
                drop(unusable);
                let context = Context::new(&self.model, self.params.clone())?;
                *state = State::Lent;
                Ok(Some(context))
            }
        }
    }

    /// Takes the context back.
    pub(crate) fn give_back(&self, context: Context) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Ready(context);
    }

    /// Says that the lent context will not come back.
    pub(crate) fn lost(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Missing;
    }

    /// Looks at the context, unless it is lent.
    pub(super) fn peek<T>(&self, look: impl FnOnce(&Context) -> T) -> Option<T> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ready(context) => Some(look(context)),
            State::Lent | State::Missing => None,
        }
    }
}
