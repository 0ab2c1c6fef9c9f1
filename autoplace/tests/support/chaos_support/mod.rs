//! A round of chaos, what may become of it, and how many there were of which kind.

mod count;
mod round;

pub(crate) use count::Count;
pub(crate) use round::Round;

/// What became of a round.
pub(crate) enum Outcome {
    /// Loaded after so many attempts.
    Loaded { attempts: usize, text: Text },
    /// A load that ended with this kind of error.
    Refused(&'static str),
}

/// What became of a generation.
pub(crate) enum Text {
    /// It is the CPU's.
    Same,
    /// A computation was told to fail, and did; the next generation gave the CPU's text.
    FailedThenSame,
    /// The same, but the next one found no room for a context.
    FailedThenNoRoom,
}
