//! A model that is placed anew by itself: smaller under pressure, larger where room is gained.

use super::event::{Event, Resize};
use crate::load::{Model, Replacement, WeakModel};

/// Does what events advise.
#[derive(Debug)]
pub(super) struct AutoReplace {
    model: WeakModel,
    min_gain: f64,
}

impl AutoReplace {
    pub(super) fn new(model: &Model, min_gain: f64) -> Self {
        Self {
            model: model.downgrade(),
            min_gain,
        }
    }

    /// Places the model anew if the event advises to: at once while nobody generates, before the next token otherwise.
    pub(super) fn follow(&self, event: &Event) {
        let (Some(advised), Some(model)) = (event.advises(), self.model.upgrade()) else {
            return;
        };
        let replacement = match advised {
            Resize::Smaller => Replacement::Anew,
            Resize::Larger => Replacement::Better {
                min_gain: self.min_gain,
            },
        };
        if let Err(error) = model.replace_soon(replacement) {
            tracing::warn!("the model is not placed anew: {error}");
        }
    }
}
