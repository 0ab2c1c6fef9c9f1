//! A place in the text of a grammar, for the errors about it.

use crate::decode::constraint::unenforced::Unenforced;

/// A place in the text of a grammar.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    line: usize,
    column: usize,
}

/// The line and the column of the byte `at`, both from 1.
pub(super) fn place(text: &str, at: usize) -> Place {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Place { line: 1 + before.matches('\n').count(), column: 1 + before[line_start..].chars().count() }
}

impl Place {
    /// The reason for a refusal, with this place in its text. The place is not reported as a parameter of the request,
    /// because it is a place in a grammar.
    pub(super) fn refused(self, reason: impl Into<String>) -> Unenforced {
        let Self { line, column } = self;
        format!("line {line}, column {column}: {}", reason.into()).into()
    }
}
