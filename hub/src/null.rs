//! Lists in other tools' JSON, which write `null` for an empty one, as Go's encoder does.

use serde::{Deserialize, Deserializer};

/// A list, or nothing where it is `null`. For a field that may be absent too, beside `#[serde(default)]`.
pub(crate) fn empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
