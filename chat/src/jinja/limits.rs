//! Limits on the resources that a template uses. A template is a part of a model, and the model may come from anybody.

/// Limits on the resources that a template uses. If a limit is exceeded, the result is an error.
///
/// The defaults are far above what published templates need, even for prompts of megabytes. They stop a hostile
/// template within seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum bytes of the template's source.
    pub source_bytes: usize,
    /// Maximum number of steps. A step is an instruction of the engine, 16 bytes of text that is created, or an item of
    /// a list that is created or visited. For each byte of the input, two more steps are allowed, and for each value of
    /// the input 2,000 more. This limits memory too, because a step takes at most 70 bytes (measured).
    pub steps: u64,
    /// Maximum number of seconds. The time is checked in each iteration of a loop and at each call of a macro.
    pub seconds: u64,
    /// Maximum bytes of the prompt.
    pub output_bytes: usize,
    /// Maximum nesting of loops and macro calls. A call of a macro counts as four levels.
    pub calls: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { source_bytes: 1 << 20, steps: 1_000_000, seconds: 5, output_bytes: 64 << 20, calls: 100 }
    }
}

/// A limit that a template exceeded.
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
    /// Maximum nesting of values.
    #[error("{0} levels of nesting")]
    Nesting(u32),
}
