//! Closures of the application: one that chooses tokens, and one that drafts them.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use llama_sys::{Candidates, Token};

use crate::lock;

/// A closure of which each text has a copy: what one copy remembers is not known to another. The lock is only for
/// copying it, so that a description of a generation can be shared.
pub(super) struct Custom<F: ?Sized>(Mutex<Box<F>>);

/// Chooses a token of these candidates, after the tokens so far.
pub(super) type CustomSampler = Custom<dyn Choose>;

/// Pushes the tokens that it expects after the tokens so far.
pub(super) type CustomDrafter = Custom<dyn Draft>;

impl<F: ?Sized> Custom<F> {
    pub(super) fn new(closure: Box<F>) -> Self {
        Self(Mutex::new(closure))
    }

    fn closure(&mut self) -> &mut F {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CustomSampler {
    pub(super) fn choose(&mut self, candidates: &mut Candidates, so_far: &[Token]) -> Token {
        self.closure()(candidates, so_far)
    }
}

impl CustomDrafter {
    pub(super) fn draft(&mut self, so_far: &[Token], draft: &mut Vec<Token>) {
        self.closure()(so_far, draft);
    }
}

impl<F: Copied + ?Sized> Clone for Custom<F> {
    fn clone(&self) -> Self {
        Self::new(lock(&self.0).copied())
    }
}

impl<F: ?Sized> fmt::Debug for Custom<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").finish_non_exhaustive()
    }
}

/// A closure behind a pointer that can be cloned.
pub(super) trait Copied {
    fn copied(&self) -> Box<Self>;
}

/// The bound of [`CustomSampler`].
pub(super) trait Choose: FnMut(&mut Candidates, &[Token]) -> Token + Send {
    fn boxed(&self) -> Box<dyn Choose>;
}

impl<F: FnMut(&mut Candidates, &[Token]) -> Token + Clone + Send + 'static> Choose for F {
    fn boxed(&self) -> Box<dyn Choose> {
        Box::new(self.clone())
    }
}

impl Copied for dyn Choose {
    fn copied(&self) -> Box<Self> {
        self.boxed()
    }
}

/// The bound of [`CustomDrafter`].
pub(super) trait Draft: FnMut(&[Token], &mut Vec<Token>) + Send {
    fn boxed(&self) -> Box<dyn Draft>;
}

impl<F: FnMut(&[Token], &mut Vec<Token>) + Clone + Send + 'static> Draft for F {
    fn boxed(&self) -> Box<dyn Draft> {
        Box::new(self.clone())
    }
}

impl Copied for dyn Draft {
    fn copied(&self) -> Box<Self> {
        self.boxed()
    }
}
