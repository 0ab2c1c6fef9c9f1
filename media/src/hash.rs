//! Hashes that identify a picture or a sound.

use std::fmt;

use sha2::{Digest, Sha256};

/// The SHA-256 of a picture's size and pixels, or of a sound's rate and samples.
///
/// Two files that decode to the same values have the same hash, whatever their formats are. Nobody can make two
/// different pictures with the same hash. So the result of one user's picture may be used again for another user's
/// picture with the same hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MediaHash([u8; 32]);

impl MediaHash {
    /// The 32 bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Hashes `parts` one after the other. `kind` makes the hashes of pictures different from those of sounds.
    pub(crate) fn new<'a>(kind: &str, parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new_with_prefix(kind);
        parts.into_iter().for_each(|part| hash.update(part));
        Self(hash.finalize().into())
    }
}

/// 64 hexadecimal digits.
impl fmt::Display for MediaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for MediaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MediaHash({self})")
    }
}
