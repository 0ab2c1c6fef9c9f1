//! Closures of the application that choose or draft tokens.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use llama_sys::{Candidates, Token};

use crate::sync::lock;

/// A closure of the application. Each text has its own copy with its own state. The lock is needed only while the
/// closure is copied. It allows threads to share a request.
pub(crate) struct Custom<F: ?Sized>(Mutex<Box<F>>);

/// A closure that chooses one of the candidates, given the tokens so far.
pub(crate) type CustomSampler = Custom<dyn Choose>;

/// A closure that pushes the tokens that it expects after the tokens so far.
pub(crate) type CustomDrafter = Custom<dyn Draft>;

impl<F: ?Sized> Custom<F> {
    pub(crate) fn new(closure: Box<F>) -> Self {
        Self(Mutex::new(closure))
    }

    fn closure(&mut self) -> &mut F {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CustomSampler {
    pub(crate) fn choose(&mut self, candidates: &mut Candidates, so_far: &[Token]) -> Token {
        self.closure()(candidates, so_far)
    }
}

impl CustomDrafter {
    pub(crate) fn draft(&mut self, so_far: &[Token], draft: &mut Vec<Token>) {
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

/// A closure that can be cloned although it is reached through a pointer.
pub(crate) trait Copied {
    fn copied(&self) -> Box<Self>;
}

/// The bound of [`CustomSampler`].
pub(crate) trait Choose: FnMut(&mut Candidates, &[Token]) -> Token + Send {
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
pub(crate) trait Draft: FnMut(&[Token], &mut Vec<Token>) + Send {
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
