//! Errors on their way from a worker to the application: those that can be sent keep their type, the others keep their
//! message.

use std::fmt::{Debug, Display};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Error;
use crate::worker;

/// An error as JSON, or its name and message. The JSON is a text: serde_json's `raw_value` would have serde compile all
/// that is ever written once more.
type Crossing = Result<String, (String, String)>;

pub(crate) fn serialize<E, S>(error: &E, to: S) -> Result<S::Ok, S::Error>
where
    E: Serialize + Debug + Display,
    S: Serializer,
{
    let crossing: Crossing = serde_json::to_string(error).map_err(|_| {
        let name = format!("{error:?}");
        let end = name.find(|c: char| !c.is_alphanumeric());
        (name[..end.unwrap_or(name.len())].to_owned(), error.to_string())
    });
    crossing.serialize(to)
}

/// Of an error of this room, in a box or shared too, or of a later room.
pub(crate) fn deserialize<'de, E, D>(from: D) -> Result<E, D::Error>
where
    E: DeserializeOwned + From<Error>,
    D: Deserializer<'de>,
{
    match Crossing::deserialize(from)? {
        Ok(error) => serde_json::from_str(&error).map_err(D::Error::custom),
        Err((kind, message)) => Ok(Error::Worker(worker::Error::Answered { kind, message }).into()),
    }
}
