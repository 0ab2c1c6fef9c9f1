//! Sends errors from a worker to the application. A serializable error keeps its type; any other keeps its name and
//! message.

use std::fmt::{Debug, Display};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Error;
use crate::worker;

/// An error as the only content of a message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(
    serialize = "E: Serialize + DeserializeOwned + Debug + Display",
    deserialize = "E: DeserializeOwned + From<Error>"
))]
pub(crate) struct Failed<E = Error>(#[serde(with = "self")] pub(crate) E);

/// An encoded error, or its name and message.
type Encoded = Result<Vec<u8>, (String, String)>;

pub(crate) fn serialize<E, S>(error: &E, to: S) -> Result<S::Ok, S::Error>
where
    E: Serialize + DeserializeOwned + Debug + Display,
    S: Serializer,
{
    let mut bytes = Vec::new();
    let encoded: Encoded = worker::encode(&mut bytes, error).map(|()| bytes).map_err(|_| {
        let name = format!("{error:?}");
        let end = name.find(|c: char| !c.is_alphanumeric());
        (name[..end.unwrap_or(name.len())].to_owned(), error.to_string())
    });
    // If an enum skips a variant, serde numbers the variants after it in one way to encode, and in another way to
    // decode.
    let arrives =
        |bytes: &Vec<u8>| worker::decode::<E>(bytes).is_ok_and(|decoded| decoded.to_string() == error.to_string());
    debug_assert!(encoded.as_ref().map_or(true, arrives), "{error:?} arrives as another error");
    encoded.serialize(to)
}

/// Decodes an error of this room or of a later room.
pub(crate) fn deserialize<'de, E, D>(from: D) -> Result<E, D::Error>
where
    E: DeserializeOwned + From<Error>,
    D: Deserializer<'de>,
{
    match Encoded::deserialize(from)? {
        Ok(error) => worker::decode(&error).map_err(D::Error::custom),
        Err((kind, message)) => Ok(Error::Worker(worker::Error::Answered { kind, message }).into()),
    }
}
