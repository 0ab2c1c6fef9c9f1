//! What a template may take. Templates come with models, from anybody.

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
    /// over; two more for each byte that a rendering is given, and 2,000 for each value. They bound memory too: each
    /// comes to at most 70 bytes, measured.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Limit {
    /// [`Limits::source_bytes`].
    #[error("{0} bytes of source")]
    SourceBytes(usize),
    /// [`Limits::steps`].
    #[error("{0} steps")]
    Steps(u64),
    /// [`Limits::seconds`].
    #[error("{0} seconds")]
    Seconds(u64),
    /// [`Limits::output_bytes`].
    #[error("{0} bytes of prompt")]
    OutputBytes(usize),
    /// [`Limits::calls`].
    #[error("{0} calls within each other")]
    Calls(u32),
    /// Values within values.
    #[error("{0} levels of nesting")]
    Nesting(u32),
}
