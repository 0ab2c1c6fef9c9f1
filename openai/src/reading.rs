//! JSON from anybody, read so that what is wrong is named.

use serde::Deserialize;
use serde::de::value::MapDeserializer;
use serde_json::{Map, Value};

use super::error::ApiError;

/// The body of a request: an object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let wrong = |message| Err(ApiError::new(400, message));
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => wrong("the body is JSON, but no object".to_owned()),
        Err(error) => wrong(format!("the body is no JSON: {error}")),
    }
}

/// A type's part of an object, the rest of which is another's. `null` is as if it were not there. Nothing is copied but
/// what the type keeps: a body may be megabytes of messages.
pub(super) fn part<'de, T: Deserialize<'de>>(
    object: &'de Map<String, Value>,
) -> Result<T, ApiError> {
    let given = object.iter().filter(|(_, value)| !value.is_null());
    let given = given.map(|(name, value)| (name.as_str(), value));
    told(serde_path_to_error::deserialize(MapDeserializer::new(given)), "")
}

/// A value that is in the request at `place`.
pub(super) fn value<'de, T: Deserialize<'de>>(
    value: &'de Value,
    place: &str,
) -> Result<T, ApiError> {
    told(serde_path_to_error::deserialize(value), place)
}

/// What is wrong, named from the request on.
fn told<T>(
    read: Result<T, serde_path_to_error::Error<serde_json::Error>>,
    place: &str,
) -> Result<T, ApiError> {
    read.map_err(|error| {
        let inner = error.path().to_string();
        let path = match (place, &*inner) {
            (place, ".") => place.to_owned(),
            ("", inner) => inner.to_owned(),
            (place, inner) if inner.starts_with('[') => format!("{place}{inner}"),
            (place, inner) => format!("{place}.{inner}"),
        };
        let reason = error.inner();
        match path.is_empty() {
            true => ApiError::new(400, reason.to_string()),
            false => ApiError::invalid(&path, format!("{path}: {reason}")),
        }
    })
}

/// Refuses what would change the meaning of a request and is not done here.
pub(super) fn refuse(object: &Map<String, Value>, names: &[&str]) -> Result<(), ApiError> {
    let is_asked_for = |name: &str| {
        object.get(name).is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
    };
    match names.iter().find(|name| is_asked_for(name)) {
        Some(name) => Err(ApiError::unsupported(*name, format!("`{name}` is not supported"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Part {
        #[serde(default)]
        counts: Vec<u8>,
        name: Option<String>,
    }

    #[test]
    fn what_is_wrong_is_named_and_null_is_nothing() {
        let read = |body: &str| part::<Part>(&object(body.as_bytes())?);
        let fine = read(r#"{"counts": [1], "name": null, "other": {}}"#).unwrap();
        assert_eq!((fine.counts, fine.name), (vec![1], None));
        assert!(read(r#"{"counts": null}"#).unwrap().counts.is_empty());
        for (body, param, words) in [
            (r#"{"counts": [1, 256]}"#, Some("counts[1]"), "256"),
            (r#"{"name": 3}"#, Some("name"), "expected a string"),
            ("[]", None, "no object"),
            (r#"{"counts": [1,}"#, None, "line 1 column 15"),
            ("", None, "EOF"),
            ("\u{1}", None, "no JSON"),
        ] {
            let error = read(body).unwrap_err();
            assert_eq!(error.status, 400);
            assert_eq!(error.param.as_deref(), param, "{body}");
            assert!(error.message.contains(words), "{}", error.message);
        }
        let deep = "[".repeat(100_000);
        assert!(read(&deep).unwrap_err().message.contains("recursion"));
    }

    #[test]
    fn what_is_inside_a_value_is_named_from_the_request_on() {
        let error = value::<Vec<u8>>(&serde_json::json!([true]), "prompt").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("prompt[0]"));
        let error = value::<u8>(&serde_json::json!("x"), "prompt").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("prompt"));
    }

    #[test]
    fn only_what_is_asked_for_is_refused() {
        let body = object(br#"{"suffix": null, "audio": {}, "echo": false}"#).unwrap();
        assert!(refuse(&body, &["suffix", "echo", "best_of"]).is_ok());
        let error = refuse(&body, &["suffix", "audio"]).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("audio"));
        assert_eq!(error.code, Some("unsupported_parameter"));
    }
}
