//! Reads files that the user names. The errors contain the file's name.

use std::fmt::Display;
use std::fs::File;
use std::path::Path;

use autoplace::gguf::{Header, read_text};
use serde::de::DeserializeOwned;

/// The text of a file, without the byte order mark at its beginning. The error contains the file's name.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    let text = File::open(file).and_then(|open| read_text(open, u64::MAX)).map_err(|error| in_file(file, error))?;
    Ok(without_byte_order_mark(&text).to_owned())
}

/// The value in a file of JSON. The error contains the file's name, and the line and column of what is wrong.
/// `expected` says what the file should be; it ends the error.
pub(crate) fn json<T: DeserializeOwned>(file: &Path, expected: &str) -> Result<T, String> {
    let text = read(file).map_err(|error| format!("{error}; {expected}"))?;
    parsed(file, &text, expected)
}

/// The value in the text of a file of JSON, as [`json`] reads it.
pub(crate) fn parsed<T: DeserializeOwned>(file: &Path, text: &str, expected: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("{}; {expected}", in_file(file, error)))
}

/// Removes the byte order mark (U+FEFF), which some programs write. It is not a part of the text.
pub(crate) fn without_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// A note about a model that loads but has no tokens, so that `run`, `chat` and `serve` refuse it (llama-vocab.cpp,
/// `load`).
pub(crate) fn without_vocabulary(model: &Header) -> Option<&'static str> {
    let kind = model.str("tokenizer.ggml.model").ok()??;
    matches!(kind, "none" | "no_vocab")
        .then_some("the model has no vocabulary: `run`, `chat` and `serve` can neither read nor write text with it")
}

/// An error message that begins with the file's name.
pub(crate) fn in_file(file: &Path, error: impl Display) -> String {
    format!("{}: {error}", file.display())
}
