//! Reads lists in the JSON of other tools. They may write `null` for an empty list, as Go's encoder does.

use serde::{Deserialize, Deserializer};

/// Reads a list, or an empty one for `null`. Use with `#[serde(default)]` for fields that may be absent.
pub(crate) fn empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
