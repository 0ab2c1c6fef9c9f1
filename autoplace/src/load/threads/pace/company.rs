//! Whether other work shares the processors. In: the system's counters, at the beginning and at the end of a prompt or
//! of a window. Out: yes or no.

use crate::machine::ConditionsWatch;

/// Whether other work shares the processors.
#[derive(Debug, Default)]
pub(super) enum Company {
    /// Nothing was computed yet.
    #[default]
    Unwatched,
    /// A prompt is being computed.
    Prompt(ConditionsWatch),
    /// The first window, after that prompt or of a size, is being generated.
    Window(ConditionsWatch),
    /// There was other work, or the system does not report the necessary counters.
    Possible,
    Absent,
}

impl Company {
    /// Returns whether no other work ran until the end of the first window. The first call decides.
    pub(super) fn is_absent(&mut self) -> bool {
        if let Self::Prompt(watch) | Self::Window(watch) = self {
            let seen = watch.so_far();
            let is_reported = seen.waited.is_some() || seen.others.is_some();
            *self = if is_reported && seen.is_quiet() { Self::Absent } else { Self::Possible };
        }
        matches!(self, Self::Absent)
    }
}

/// Starts to watch a window. Tests state the company instead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch(pub(super) fn() -> Company);

impl Default for Watch {
    fn default() -> Self {
        Self(|| Company::Window(ConditionsWatch::begin()))
    }
}
