//! The application's own sampler: a closure that chooses tokens.

use std::sync::{Mutex, PoisonError};

use llama_sys::{Candidates, Token};

use crate::lock;

/// Chooses a token of these candidates, after the tokens so far. Each text has a copy of the closure. The lock is only
/// for copying it, so that a description of a generation can be shared.
pub(super) struct CustomSampler(Mutex<Box<dyn Choose>>);

impl CustomSampler {
    pub(super) fn new(choose: impl FnMut(&mut Candidates, &[Token]) -> Token + Clone + Send + 'static) -> Self {
        Self(Mutex::new(Box::new(choose)))
    }

    pub(super) fn choose(&mut self, candidates: &mut Candidates, so_far: &[Token]) -> Token {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)(candidates, so_far)
    }
}

impl Clone for CustomSampler {
    fn clone(&self) -> Self {
        Self(Mutex::new(lock(&self.0).boxed()))
    }
}

debug_with!(CustomSampler:);

/// A closure behind a pointer that can be cloned.
trait Choose: FnMut(&mut Candidates, &[Token]) -> Token + Send {
    fn boxed(&self) -> Box<dyn Choose>;
}

impl<F: FnMut(&mut Candidates, &[Token]) -> Token + Clone + Send + 'static> Choose for F {
    fn boxed(&self) -> Box<dyn Choose> {
        Box::new(self.clone())
    }
}
