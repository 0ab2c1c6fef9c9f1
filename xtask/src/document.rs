//! Generated parts of documents.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Replaces the text between two marks of a document.
pub(crate) fn replace(document: &Path, [begin, end]: [&str; 2], new: &str) -> Result<()> {
    let text = fs::read_to_string(document).with_context(|| document.display().to_string())?;
    let (before, rest) = text.split_once(begin).with_context(|| format!("{}: no `{begin}`", document.display()))?;
    let (_, after) = rest.split_once(end).with_context(|| format!("{}: no `{end}`", document.display()))?;
    fs::write(document, format!("{before}{begin}{new}{end}{after}"))?;
    Ok(())
}
