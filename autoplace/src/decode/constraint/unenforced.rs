//! The parts of a constraint that cannot be enforced, each with its place and the reason.

use std::fmt;

/// A part of a schema that is not enforced, and its place. Example: "properties.tags: `uniqueItems` is not enforced".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unenforced {
    /// Path of the subschema, such as `properties.tags.items`; empty for the root.
    pub place: String,
    /// The keyword, with a reason if one is needed.
    pub reason: String,
}

impl Unenforced {
    pub(super) fn new(place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { place: place.into(), reason: reason.into() }
    }
}

impl From<String> for Unenforced {
    fn from(reason: String) -> Self {
        Self::new("", reason)
    }
}

impl fmt::Display for Unenforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.is_empty() {
            true => f.write_str(&self.reason),
            false => write!(f, "{}: {}", self.place, self.reason),
        }
    }
}
