//! Reads files that the user names. The errors contain the file's name.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use autoplace::gguf::Header;
use serde::de::DeserializeOwned;

/// The text of a file, without the byte order mark at its beginning. The error contains the file's name.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    let text = text_of(file).map_err(|error| in_file(file, error))?;
    Ok(without_byte_order_mark(&text).to_owned())
}

/// The text of a file. A model may have many gigabytes, so a GGUF file is refused before it is read.
fn text_of(file: &Path) -> io::Result<String> {
    let mut open = File::open(file)?;
    let mut bytes = Vec::new();
    open.by_ref().take(4).read_to_end(&mut bytes)?;
    if bytes == *b"GGUF" {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is a GGUF file, not a text"));
    }
    open.read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map_err(|error| {
        let end = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("byte {end} is not text in UTF-8"))
    })
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
