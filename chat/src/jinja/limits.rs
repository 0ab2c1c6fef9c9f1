//! What a template may take. Templates come with models, from anybody.

use std::fmt;

/// What a template may take before it is stopped with an error.
///
/// The defaults are far above what published templates take with prompts of megabytes, and stop a hostile one within
/// seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of the template's source.
    pub source_bytes: usize,
    /// Instructions of the engine, each 16 bytes of text that are made, and each item of a list that is made or walked
    /// over.
    ///
    /// A rendering may take two more for each byte that it is given, and 2,000 for each value. They bound memory too:
    /// measured, each comes to at most 70 bytes.
    pub steps: u64,
    /// Seconds: looked at in every round of a loop and every call of a macro.
    pub seconds: u64,
    /// Bytes of the prompt that it makes.
    pub output_bytes: usize,
    /// Loops within each other, where a macro counts as four.
    pub calls: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { source_bytes: 1 << 20, steps: 1_000_000, seconds: 5, output_bytes: 64 << 20, calls: 100 }
    }
}

/// A limit that a template has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::source_bytes`].
    SourceBytes(usize),
    /// [`Limits::steps`].
    Steps(u64),
    /// [`Limits::seconds`].
    Seconds(u64),
    /// [`Limits::output_bytes`].
    OutputBytes(usize),
    /// [`Limits::calls`].
    Calls(u32),
    /// Values within values.
    Nesting(u32),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SourceBytes(bytes) => write!(f, "{bytes} bytes of source"),
            Self::Steps(steps) => write!(f, "{steps} steps"),
            Self::Seconds(seconds) => write!(f, "{seconds} seconds"),
            Self::OutputBytes(bytes) => write!(f, "{bytes} bytes of prompt"),
            Self::Calls(calls) => write!(f, "{calls} calls within each other"),
            Self::Nesting(levels) => write!(f, "{levels} levels of nesting"),
        }
    }
}
