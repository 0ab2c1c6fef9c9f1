//! The errors of decoding a file.

use std::io;
use std::time::Duration;

/// Why a picture or a sound was not decoded.
///
/// `name` is the path of the file. If the caller passed bytes, it is `image` or `sound`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum Error {
    /// The file cannot be read.
    #[error("{name}: cannot be read: {source}")]
    Io { name: String, source: io::Error },

    /// The bytes have none of the formats that this crate decodes.
    #[error("{name}: not {needed}: {found}")]
    Format { name: String, needed: &'static str, found: String },

    /// The file uses a feature of its format that this crate does not decode.
    #[error("{name}: {format}: not supported: {feature}")]
    Unsupported { name: String, format: &'static str, feature: String },

    /// The file breaks the rules of its format, or ends too early.
    #[error("{name}: damaged {format}: {problem}")]
    Damaged { name: String, format: &'static str, problem: String },

    /// The file needs more than a limit allows.
    #[error("{name}: {needed} {unit}, but at most {limit} are allowed")]
    TooLarge { name: String, needed: u64, unit: &'static str, limit: u64 },

    /// A value of the file is below a minimum, such as the sample rate.
    #[error("{name}: {found} {unit}, but at least {limit} are needed")]
    TooSmall { name: String, found: u64, unit: &'static str, limit: u64 },

    /// Decoding took longer than the limit allows.
    #[error("{name}: decoding was stopped: it took longer than {limit:?}")]
    TooSlow { name: String, limit: Duration },

    /// Pixels or samples that the application passed do not fit together.
    #[error("{name}: {problem}")]
    Values { name: &'static str, problem: String },
}
