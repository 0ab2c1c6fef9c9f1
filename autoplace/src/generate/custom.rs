//! A sampler of the application's own: a closure.

use std::fmt;

use llama_sys::{Candidates, Token};

/// What an application chooses a token with. Each text has a copy of its own, so that what one remembers is not the other's.
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

pub(super) struct Custom(Box<dyn Choose>);

impl Custom {
    pub(super) fn new(choose: impl Choose + 'static) -> Self {
        Self(Box::new(choose))
    }

    pub(super) fn choose(&mut self, candidates: &mut Candidates, so_far: &[Token]) -> Token {
        self.0.choose(candidates, so_far)
    }
}

impl Clone for Custom {
    fn clone(&self) -> Self {
        // Of what is in the box, not of the box.
        Self((*self.0).boxed())
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Custom")
    }
}
