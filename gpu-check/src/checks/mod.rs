//! The checks, one file each.

mod ballast;
mod bytes;
mod cliff;
mod identical;
mod peers;

use anyhow::Result;

pub(crate) use ballast::Row as BallastRow;
pub(crate) use bytes::Row as BytesRow;

use crate::setting::{Setting, Verdict};

/// One named check.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// The share of the time for this check, relative to the other checks.
    pub(crate) share: f64,
    pub(crate) run: fn(&Setting) -> Result<Verdict>,
}

/// All checks, in the order in which they run.
pub(crate) const CHECKS: [Check; 5] = [
    Check {
        name: "identical",
        what: "the demo model's text on the CPU and at every split",
        share: 1.0,
        run: identical::run,
    },
    Check {
        name: "bytes",
        what: "planned and measured bytes, and what no breakdown counts",
        share: 3.0,
        run: bytes::run,
    },
    Check {
        name: "ballast",
        what: "on a card of which others leave little, to the last position of the context",
        share: 3.0,
        run: ballast::run,
    },
    Check {
        name: "cliff",
        what: "tokens per second over n_gpu_layers, beside the predicted curve",
        share: 1.5,
        run: cliff::run,
    },
    Check { name: "peers", what: "beside llama.cpp's own loop and its own fit", share: 1.5, run: peers::run },
];
