//! Errors on their way from a worker to the application: those that can be sent keep their type, the others keep their
//! message.

use std::fmt::{Debug, Display};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::Error;
use crate::worker;

/// An error, or its name and message.
type Crossing = Result<Box<RawValue>, (String, String)>;

pub(crate) fn serialize<E, S>(error: &E, to: S) -> Result<S::Ok, S::Error>
where
    E: Serialize + Debug + Display,
    S: Serializer,
{
    let crossing: Crossing = to_raw_value(error).map_err(|_| {
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
        Ok(error) => serde_json::from_str(error.get()).map_err(D::Error::custom),
        Err((kind, message)) => Ok(Error::Worker(worker::Error::Answered { kind, message }).into()),
    }
}
