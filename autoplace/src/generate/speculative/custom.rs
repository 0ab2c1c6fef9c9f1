//! Guesses of the application's own: a closure.

use std::fmt;

use llama_sys::Token;

/// What an application guesses tokens with. Each text has a copy of its own, so that what one remembers is
/// not the other's.
trait Draft: Send {
    fn draft(&mut self, so_far: &[Token], draft: &mut Vec<Token>);

    fn boxed(&self) -> Box<dyn Draft>;
}

impl<F> Draft for F
where
    F: FnMut(&[Token], &mut Vec<Token>) + Clone + Send + 'static,
{
    fn draft(&mut self, so_far: &[Token], draft: &mut Vec<Token>) {
        self(so_far, draft);
    }

    fn boxed(&self) -> Box<dyn Draft> {
        Box::new(self.clone())
    }
}

pub(in crate::generate) struct CustomDrafter(Box<dyn Draft>);

impl CustomDrafter {
    pub(in crate::generate) fn new(
        draft: impl FnMut(&[Token], &mut Vec<Token>) + Clone + Send + 'static,
    ) -> Self {
        Self(Box::new(draft))
    }

    pub(super) fn draft(&mut self, so_far: &[Token], draft: &mut Vec<Token>) {
        self.0.draft(so_far, draft);
    }
}

impl Clone for CustomDrafter {
    fn clone(&self) -> Self {
        // Of what is in the box, not of the box.
        Self((*self.0).boxed())
    }
}

impl fmt::Debug for CustomDrafter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomDrafter")
    }
}
