//! Reading JSON that people may have written: what is wrong is said with its place.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Deserialises a document, or says which field is wrong, or that its `version` is a later one than the latest known.
pub(crate) fn versioned<T: DeserializeOwned>(text: &str, latest: u64) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Version {
        version: Option<u64>,
    }
    match parse(text)? {
        Version { version: Some(version) } if !(1..=latest).contains(&version) => {
            Err(format!("version is {version}, and this program reads up to {latest}"))
        }
        _ => parse(text),
    }
}

/// Deserialises all of a text, or says which field is wrong.
fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner();
        if path == "." { problem.to_string() } else { format!("{path}: {problem}") }
    })?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(value)
}
