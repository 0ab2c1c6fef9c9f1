//! Errors on their way from a worker to the application: those that can be sent keep their type, the others keep their
//! message.

use std::fmt::{Debug, Display};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::Error;

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

pub(crate) fn deserialize<'de, E, D>(from: D) -> Result<E, D::Error>
where
    E: DeserializeOwned + From<Error>,
    D: Deserializer<'de>,
{
    match Crossing::deserialize(from)? {
        Ok(error) => serde_json::from_str(error.get()).map_err(D::Error::custom),
        Err((kind, message)) => Ok(Error::Answered { kind, message }.into()),
    }
}

/// The result of a call of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(
    rename_all = "snake_case",
    bound(
        serialize = "T: Serialize, E: Serialize + Debug + Display",
        deserialize = "T: DeserializeOwned, E: DeserializeOwned + From<Error>"
    )
)]
pub(crate) enum Outcome<T, E> {
    Done(T),
    Failed(#[serde(with = "self")] E),
}

impl<T, E> Outcome<T, E> {
    pub(crate) fn into_result(self) -> Result<T, E> {
        match self {
            Self::Done(done) => Ok(done),
            Self::Failed(error) => Err(error),
        }
    }
}

impl<T, E> From<Result<T, E>> for Outcome<T, E> {
    fn from(result: Result<T, E>) -> Self {
        result.map_or_else(Self::Failed, Self::Done)
    }
}

/// The same for one that is in a box, or shared.
pub(crate) mod held {
    use std::ops::Deref;

    use super::*;

    pub(crate) fn serialize<P, S>(error: &P, to: S) -> Result<S::Ok, S::Error>
    where
        P: Deref<Target: Serialize + Debug + Display + Sized>,
        S: Serializer,
    {
        super::serialize(&**error, to)
    }

    pub(crate) fn deserialize<'de, P, D>(from: D) -> Result<P, D::Error>
    where
        P: Deref<Target: DeserializeOwned + From<Error> + Sized> + From<P::Target>,
        D: Deserializer<'de>,
    {
        Ok(P::from(super::deserialize::<P::Target, D>(from)?))
    }
}
