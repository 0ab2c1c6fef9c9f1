//! The number of split blocks in JSON, under its key and under the former one.
//!
//! Earlier builds know only `parted_blocks`, and would read a plan without that key as one without split blocks.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
struct Keys {
    #[serde(default, deserialize_with = "under_the_key")]
    split_blocks: Option<u32>,
    /// Without split blocks, this key is left out, because earlier builds then read 0.
    #[serde(default, deserialize_with = "under_the_former_key", skip_serializing_if = "Option::is_none")]
    parted_blocks: Option<u32>,
}

pub(super) fn serialize<S: Serializer>(split_blocks: &u32, to: S) -> Result<S::Ok, S::Error> {
    let keys =
        Keys { split_blocks: Some(*split_blocks), parted_blocks: Some(*split_blocks).filter(|blocks| *blocks > 0) };
    keys.serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let Keys { split_blocks, parted_blocks } = Keys::deserialize(from)?;
    Ok(split_blocks.or(parted_blocks).unwrap_or(0))
}

fn under_the_key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number(from, "split_blocks")
}

fn under_the_former_key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number(from, "parted_blocks")
}

/// These keys are read after all others. By then, the place of an error in the text would name another key.
fn number<'de, D: Deserializer<'de>>(from: D, key: &str) -> Result<Option<u32>, D::Error> {
    u32::deserialize(from).map(Some).map_err(|error| D::Error::custom(format_args!(".{key}: {error}")))
}
