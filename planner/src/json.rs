//! Reading JSON that people may have written: what is wrong is said with its place.

use serde::Deserialize;

/// Deserialises all of a text, or says which field is wrong.
pub(crate) fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner();
        if path == "." { problem.to_string() } else { format!("{path}: {problem}") }
    })?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(value)
}
