//! Reads lists in JSON that other tools have written. They may write `null` for an empty list. Go's encoder does so.

use serde::{Deserialize, Deserializer};

/// Reads a list. `null` counts as an empty list. Use it together with `#[serde(default)]` if the field may be missing.
pub(crate) fn empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
