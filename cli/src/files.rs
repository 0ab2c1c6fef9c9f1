//! Reads files that the user names. The errors contain the file's name.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use autoplace::gguf::Header;

/// The text of a file, without the byte order mark at its beginning. The error contains the file's name.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file).map_err(|error| in_file(file, error))?;
    Ok(without_byte_order_mark(&text).to_owned())
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
