//! Parses JSON that is not trusted. The errors say what is wrong, and where. The memory is limited to a small multiple
//! of the body: each parameter stays text until a type reads it, and before a value becomes a tree, its parts are
//! counted.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error::ApiError;
use super::parameters::ALIASES;

/// Maximum number of parameters of a request, including unknown ones.
const MAX_NAMES: usize = 256;
/// Maximum number of JSON values in a request that become parts of trees. Each of them may need up to 500 bytes.
const MAX_VALUES: usize = 1 << 16;

/// The body of a request: an object with unparsed values. `null` counts as absent.
pub(super) struct Body<'a> {
    parameters: BTreeMap<String, &'a RawValue>,
    /// The aliases that the request uses, each with the name for which it stands.
    aliases: Vec<(&'static str, &'static str)>,
    /// How many more values may become parts of trees.
    values_left: Cell<usize>,
}

/// Splits a request into its parameters. Each alias is replaced by the name for which it stands.
///
/// # Errors
///
/// Status 400 if the body is not an object, or if a parameter has different values under two of its names.
pub(super) fn object(body: &[u8]) -> Result<Body<'_>, ApiError> {
    let mut body = object_as_given(body)?;
    for (alias, name) in ALIASES {
        let Some(value) = body.get(alias) else { continue };
        match body.get(name) {
            None => {
                body.parameters.insert(name.to_owned(), value);
                body.aliases.push((alias, name));
            }
            Some(other) if other.get() == value.get() => {}
            Some(_) => {
                let earlier = body.aliases.iter().find(|(_, of)| *of == name);
                return Err(ApiError::given_twice(alias, earlier.map_or(name, |(alias, _)| *alias)));
            }
        }
    }
    Ok(body)
}

/// Splits a request into its parameters. The names stay as they are in the request.
pub(super) fn object_as_given(body: &[u8]) -> Result<Body<'_>, ApiError> {
    let read: Result<Entries<&RawValue, MAX_NAMES>, _> = serde_json::from_slice(body);
    let Entries(mut parameters) = read.map_err(|error| match error.is_data() {
        true => ApiError::new(400, format!("the body: {error}")),
        false => ApiError::new(400, format!("the body is not JSON: {error}")),
    })?;
    parameters.retain(|_, value| value.get() != "null");
    Ok(Body { parameters, aliases: Vec::new(), values_left: Cell::new(MAX_VALUES) })
}

/// Converts numbers without a fraction to integers, if they are parameters themselves: `16.0` becomes 16. Numbers
/// inside lists and objects are not changed.
pub(super) fn with_integers(body: &[u8]) -> Cow<'_, [u8]> {
    let mut cut: Vec<std::ops::Range<usize>> = Vec::new();
    let (mut depth, mut in_text, mut is_escaped, mut at) = (0_usize, false, false, 0);
    while let Some(&byte) = body.get(at) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'.' if depth == 1 => {
                let zeros = body[at + 1..].iter().take_while(|digit| **digit == b'0').count();
                let end = at + 1 + zeros;
                let ends = body.get(end).is_none_or(|next| matches!(next, b',' | b'}' | b' ' | b'\t' | b'\r' | b'\n'));
                if zeros > 0 && ends {
                    cut.push(at..end);
                }
            }
            _ => {}
        }
        at += 1;
    }
    if cut.is_empty() {
        return Cow::Borrowed(body);
    }
    let mut whole = Vec::with_capacity(body.len());
    let mut from = 0;
    for range in cut {
        whole.extend_from_slice(&body[from..range.start]);
        from = range.end;
    }
    whole.extend_from_slice(&body[from..]);
    Cow::Owned(whole)
}

/// Replaces the parameter's name in an error by the name in the request.
pub(super) fn in_its_words(mut error: ApiError, aliases: &[(&str, &str)]) -> ApiError {
    if let Some((alias, name)) = aliases.iter().find(|(_, name)| error.param.as_deref() == Some(*name)) {
        error.message = error.message.replacen(name, alias, 1);
        error.param = Some((*alias).to_owned());
    }
    error
}

impl<'a> Body<'a> {
    pub(super) fn aliases(&self) -> &[(&'static str, &'static str)] {
        &self.aliases
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.parameters.iter().map(|(name, value)| (name.as_str(), *value))
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.parameters.get(name).copied()
    }

    /// Parses the parameters that are fields of `T`, and ignores the others.
    pub(super) fn part<T: Deserialize<'a>>(&self) -> Result<T, ApiError> {
        let given = self.parameters.iter().map(|(name, value)| (name.as_str(), *value));
        located(serde_path_to_error::deserialize(MapDeserializer::new(given)), "")
    }

    /// Parses a parameter, if the request has it.
    pub(super) fn read<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.get(name).map(|given| value(given, name)).transpose()
    }

    /// Parses a parameter that becomes a tree.
    pub(super) fn tree<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.get(name).map(|given| self.counted(given, name)).transpose()
    }

    /// Parses a value that becomes a tree, at `place` of the request.
    pub(super) fn counted<T: Deserialize<'a>>(&self, given: &'a RawValue, place: &str) -> Result<T, ApiError> {
        self.count(given.get(), place)?;
        value(given, place)
    }

    /// Counts the values of a JSON text, and refuses it if the request then has too many.
    pub(super) fn count(&self, json: &str, place: &str) -> Result<(), ApiError> {
        let left = self.values_left.get().checked_sub(values(json)).ok_or_else(|| {
            let message =
                format!("{place}: with it the request has more than {MAX_VALUES} values in its lists and objects");
            ApiError::invalid(place, message)
        })?;
        self.values_left.set(left);
        Ok(())
    }

    /// The parameters of `below`. If this request has a parameter too, its value replaces the one in `below`.
    /// Parameters in `but` are not replaced.
    pub(super) fn over<'b>(&self, mut below: Body<'b>, but: &[&str]) -> Result<Body<'b>, ApiError>
    where
        'a: 'b,
    {
        for (name, value) in &mut below.parameters {
            if let Some(given) = self.get(name).filter(|_| !but.contains(&&**name)) {
                self.count(given.get(), name)?;
                *value = given;
            }
        }
        Ok(below)
    }
}

/// An upper bound for the number of values in a JSON text: one, and one more for each comma, list and object.
fn values(json: &str) -> usize {
    let (mut count, mut in_text, mut is_escaped) = (1, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

/// Parses the value at `place` of the request.
pub(super) fn value<'de, T: Deserialize<'de>>(value: &'de RawValue, place: &str) -> Result<T, ApiError> {
    located(serde_path_to_error::deserialize(value), place)
}

/// Parses a JSON text that was part of an earlier request or answer.
pub(super) fn json(text: &str) -> Result<&RawValue, ApiError> {
    serde_json::from_str(text)
        .map_err(|error| ApiError::new(500, format!("a stored part of a response is not valid JSON: {error}")))
}

/// A text. It is borrowed from the request's body if it contains no escapes.
pub(super) fn text<'a>(given: &'a RawValue, place: &str) -> Result<Cow<'a, str>, ApiError> {
    /// Serde copies the text of a `Cow`, except if the `Cow` is a field.
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    value(given, place).map(|Text(text)| text)
}

/// The texts of a value. The value may be a text, or a list of at most `MAX` texts.
pub(super) fn texts<const MAX: usize>(given: &RawValue, place: &str) -> Result<Vec<String>, ApiError> {
    if is_text(given) {
        return Ok(vec![value(given, place)?]);
    }
    value(given, place).map(|List::<String, MAX>(texts)| texts)
}

pub(super) fn is_text(value: &RawValue) -> bool {
    value.get().starts_with('"')
}

/// The first byte of the first entry of a list; `None` for an empty list, and for values that are not lists.
pub(super) fn first_of_list(value: &RawValue) -> Option<u8> {
    let entries = value.get().strip_prefix('[')?;
    entries.trim_start().bytes().next().filter(|byte| *byte != b']')
}

/// Adds the place in the request to an error.
fn located<T>(read: Result<T, serde_path_to_error::Error<serde_json::Error>>, place: &str) -> Result<T, ApiError> {
    read.map_err(|error| {
        let inner = error.path().to_string();
        let path = match (place, &*inner) {
            (place, ".") => place.to_owned(),
            ("", inner) => inner.to_owned(),
            (place, inner) if inner.starts_with('[') => format!("{place}{inner}"),
            (place, inner) => format!("{place}.{inner}"),
        };
        // This position counts from the parameter's beginning, and not from the request's.
        let error = error.inner();
        let position = format!(" at line {} column {}", error.line(), error.column());
        let reason = error.to_string();
        let reason = reason.strip_suffix(&position).unwrap_or(&reason);
        match path.is_empty() {
            true => ApiError::new(400, reason),
            false => ApiError::invalid(&path, format!("{path}: {reason}")),
        }
    })
}

/// A list of at most `MAX` entries. At one more entry, parsing stops with an error.
#[derive(Debug)]
pub(super) struct List<T, const MAX: usize>(pub(super) Vec<T>);

/// The entries of an object. There are at most `MAX`, and each name occurs once.
#[derive(Debug)]
pub(super) struct Entries<T, const MAX: usize>(pub(super) BTreeMap<String, T>);

impl<T, const MAX: usize> Default for Entries<T, MAX> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Self(Vec::new()))
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Entries<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while let Some(entry) = list.next_element()? {
            if self.0.len() == MAX {
                return Err(A::Error::custom(format!("at most {MAX} entries are allowed")));
            }
            self.0.push(entry);
        }
        Ok(self)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Entries<T, MAX> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<Self, A::Error> {
        while let Some((name, value)) = object.next_entry()? {
            if self.0.contains_key(&name) {
                return Err(A::Error::custom(format!("`{name}` is named twice")));
            }
            if self.0.len() == MAX {
                return Err(A::Error::custom(format!("at most {MAX} names are allowed")));
            }
            self.0.insert(name, value);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[derive(Debug, Deserialize)]
    struct Part {
        #[serde(default)]
        counts: Vec<u8>,
        name: Option<String>,
    }

    #[test]
    fn faults_are_named_and_null_counts_as_absent() {
        let read = |body: &str| object(body.as_bytes())?.part::<Part>();
        let fine = read(r#"{"counts": [1], "name": null, "other": {}}"#).unwrap();
        assert_eq!((fine.counts, fine.name), (vec![1], None));
        assert!(read(r#"{"counts": null}"#).unwrap().counts.is_empty());
        for (body, param, words) in [
            (r#"{"counts": [1, 256]}"#, Some("counts[1]"), "256"),
            (r#"{"name": 3}"#, Some("name"), "name: invalid type: integer `3`, expected a string"),
            ("[]", None, "expected an object"),
            (r#"{"counts": [1,}"#, None, "line 1 column 15"),
            (r#"{"name": "a", "name": "b"}"#, None, "`name` is named twice"),
            ("", None, "EOF"),
            ("\u{1}", None, "not JSON"),
        ] {
            let error = read(body).unwrap_err();
            assert_eq!(error.status, 400);
            assert_eq!(error.param.as_deref(), param, "{body}");
            assert!(error.message.contains(words), "{}", error.message);
        }
        let deep = format!(r#"{{"counts": {0}{1}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read(&deep).unwrap_err().param.as_deref(), Some("counts[0]"));
        let names: String = (0..257).map(|name| format!("\"{name}\": 0,")).collect();
        let many = read(&format!("{{{names} \"a\": 0}}")).unwrap_err();
        assert!(many.message.contains("at most 256 names are allowed"), "{many}");
    }

    #[test]
    fn a_parameter_under_two_names_has_one_value_or_the_error_names_both() {
        let same = object(br#"{"n_predict": 3, "max_tokens": 3, "max_output_tokens": 3}"#).unwrap();
        assert_eq!(same.read::<u8>("max_tokens").unwrap(), Some(3));
        for (body, second, first) in [
            (r#"{"n_predict": 3, "max_tokens": 4}"#, "n_predict", "max_tokens"),
            (r#"{"n_predict": 3, "max_output_tokens": 4}"#, "max_output_tokens", "n_predict"),
            (r#"{"repeat_penalty": 1.1, "repetition_penalty": 1.2}"#, "repetition_penalty", "repeat_penalty"),
        ] {
            let error = object(body.as_bytes()).map(|_| ()).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(second)), "{error}");
            assert!(error.message.starts_with(&format!("`{second}` is given in addition to `{first}`")), "{error}");
        }
    }

    #[test]
    fn only_values_that_become_trees_are_counted() {
        assert_eq!(values(r#"{"a": ["b,[{\"", {}], "c\\": 0}"#), 6);
        let half = format!("[{}0]", "0,".repeat(MAX_VALUES / 2));
        let body = format!(r#"{{"unknown": [{half}, {half}], "tools": {half}, "json_schema": {half}}}"#);
        let body = object(body.as_bytes()).unwrap();
        assert!(body.tree::<Value>("tools").unwrap().is_some());
        let error = body.tree::<Value>("json_schema").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("json_schema"));
        assert!(error.message.contains("65536 values"), "{error}");
    }
}
