//! Reads lists and texts in JSON that other tools have written. They may write `null` for an empty list. Go's encoder
//! does so, and its decoder also takes `null` for an empty text.

use serde::{Deserialize, Deserializer};

/// Reads a list or a text. `null` counts as an empty one. Use it together with `#[serde(default)]` if the field may be
/// missing.
pub(crate) fn empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
