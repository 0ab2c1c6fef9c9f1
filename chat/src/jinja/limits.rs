//! Resource limits of templates. A template comes with a model, which may come from anybody.

/// Resource limits of a template. Exceeding one is an error.
///
/// The defaults are far above the needs of published templates with prompts of megabytes, and stop a hostile template
/// within seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum bytes of the template's source.
    pub source_bytes: usize,
    /// Maximum steps. A step is an instruction of the engine, 16 bytes of created text, or a list item that is created
    /// or visited. Each byte of the input permits two more steps, and each value of the input 2,000. Steps limit memory
    /// too: a step takes at most 70 bytes (measured).
    pub steps: u64,
    /// Maximum seconds, checked in every loop iteration and macro call.
    pub seconds: u64,
    /// Maximum bytes of the prompt.
    pub output_bytes: usize,
    /// Maximum nesting of loops and macro calls. A macro call counts as four.
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
    /// Nesting of values.
    #[error("{0} levels of nesting")]
    Nesting(u32),
}
