//! A sampler of the application's own: a closure.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use llama_sys::{Candidates, Token};

/// What an application chooses a token with. Each text has a copy of its own, so that what one remembers is
/// not the other's.
pub(super) trait Choose: Send {
    fn choose(&mut self, candidates: &mut Candidates, so_far: &[Token]) -> Token;

    fn boxed(&self) -> Box<dyn Choose>;
}

impl<F> Choose for F
where
    F: FnMut(&mut Candidates, &[Token]) -> Token + Clone + Send + 'static,
{
    fn choose(&mut self, candidates: &mut Candidates, so_far: &[Token]) -> Token {
        self(candidates, so_far)
    }

    fn boxed(&self) -> Box<dyn Choose> {
        Box::new(self.clone())
    }
}

/// Locked only to be copied: so that a description of a generation can be shared.
pub(super) struct Custom(Mutex<Box<dyn Choose>>);

impl Custom {
    pub(super) fn new(choose: impl Choose + 'static) -> Self {
        Self(Mutex::new(Box::new(choose)))
    }

    pub(super) fn choose(&mut self, candidates: &mut Candidates, so_far: &[Token]) -> Token {
        let choose = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        choose.choose(candidates, so_far)
    }
}

impl Clone for Custom {
    fn clone(&self) -> Self {
        let choose = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Of what is in the box, not of the box.
        Self(Mutex::new((**choose).boxed()))
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Custom")
    }
}
