//! A reader for the body of a call.

use super::CallError;
use crate::ToolCall;

/// The text that was not read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a str);

impl<'a> Reader<'a> {
    /// Reads the next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> &'a str {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    /// Skips white space. If `mark` comes next, skips it too. Returns whether `mark` came next.
    pub(super) fn next_is(&mut self, mark: &str) -> bool {
        self.0 = self.0.trim_start();
        let behind = self.0.strip_prefix(mark);
        self.0 = behind.unwrap_or(self.0);
        behind.is_some()
    }

    pub(super) fn expect(&mut self, mark: &str) -> Result<(), CallError> {
        match self.next_is(mark) {
            true => Ok(()),
            false => Err(self.unexpected(mark)),
        }
    }

    /// Reads the text before `mark`, and skips the mark.
    pub(super) fn until(&mut self, mark: &str) -> Result<&'a str, CallError> {
        let (before, rest) = self.0.split_once(mark).ok_or_else(|| self.unexpected(mark))?;
        self.0 = rest;
        Ok(before)
    }

    pub(super) fn end(&self) -> Result<(), CallError> {
        match self.0.trim().is_empty() {
            true => Ok(()),
            false => Err(self.unexpected("the end of the call")),
        }
    }

    pub(super) fn unexpected(&self, expected: &str) -> CallError {
        CallError::unexpected(expected, self.0)
    }
}

/// Calls `read` again and again until the end of `text`. Between two calls, there may be white space and the characters
/// in `between`.
pub(super) fn each(
    text: &str,
    between: &str,
    mut read: impl FnMut(&mut Reader<'_>, &mut Vec<ToolCall>) -> Result<(), CallError>,
) -> Result<Vec<ToolCall>, CallError> {
    let mut reader = Reader(text.trim_start());
    if reader.0.is_empty() {
        return Err(CallError::NotACall);
    }
    let mut calls = Vec::new();
    while !reader.0.is_empty() {
        read(&mut reader, &mut calls)?;
        let is_between = |c: char| c.is_whitespace() || between.contains(c);
        reader.0 = reader.0.trim_start_matches(is_between);
    }
    Ok(calls)
}
