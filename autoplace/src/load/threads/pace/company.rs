//! Whether other work shares the processors, and how many cores it leaves free. In: the system's counters, at the
//! beginning and at the end of a prompt, of a window or of a look. Out: yes or no, and a number of cores.

use std::time::{Duration, Instant};

use crate::machine::{ConditionsWatch, FreeCoresWatch};

/// The time that a look covers. Over a second, the counters of the cores' time are right within a few percent.
const LOOK: Duration = Duration::from_secs(1);

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

/// Looks again and again how many cores other work leaves free.
#[derive(Debug, Default)]
pub(super) enum Looks {
    /// Nothing was generated yet.
    #[default]
    Unbegun,
    /// A look began at this time. The number of free cores is that of the look before it.
    Watching(FreeCoresWatch, Instant, Option<u32>),
    /// Tests state the number.
    Told(Option<u32>),
}

impl Looks {
    /// Called after each batch. When a look is over, the next one begins.
    pub(super) fn look(&mut self, now: Instant) {
        match self {
            Self::Unbegun => self.saw(None, now),
            Self::Watching(watch, begun, free) => {
                let took = now.saturating_duration_since(*begun);
                if took >= LOOK {
                    (*free, *begun) = (watch.free_cores(took), now);
                }
            }
            Self::Told(_) => {}
        }
    }

    /// Begins anew, with a number of free cores from elsewhere.
    pub(super) fn saw(&mut self, free: Option<u32>, now: Instant) {
        *self = match self {
            Self::Told(_) => Self::Told(free),
            Self::Unbegun | Self::Watching(..) => Self::Watching(FreeCoresWatch::begin(), now, free),
        };
    }

    /// The number of cores that other work leaves free; `None` if that is unknown.
    pub(super) const fn free(&self) -> Option<u32> {
        match *self {
            Self::Unbegun => None,
            Self::Watching(_, _, free) | Self::Told(free) => free,
        }
    }
}
