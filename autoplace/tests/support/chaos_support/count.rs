//! How many rounds ended how, so that 2,000 rounds are not 2,000 times the same.

use std::collections::BTreeMap;
use std::fmt;

use super::{Outcome, Text};

/// What there must be of, and in how many rounds of a thousand.
const LEAST: [(&str, u64); 6] = [
    ("loaded at attempt 1", 200),
    ("loaded at attempt 2", 150),
    ("loaded at attempt 3", 10),
    ("a failed generation, then the same text", 30),
    ("no plan at first", 15),
    ("all attempts failed", 5),
];

/// Counts of rounds.
#[derive(Default)]
pub(crate) struct Count(BTreeMap<String, u64>);

impl Count {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Loaded { attempts, text } => {
                self.one(format!("loaded at attempt {attempts}"));
                self.one(match text {
                    Text::Same => "the same text at once",
                    Text::FailedThenSame => "a failed generation, then the same text",
                    Text::FailedThenNoRoom => "a failed generation, then no room for another",
                });
            }
            Outcome::Refused(kind) => self.one(*kind),
        }
    }

    fn one(&mut self, kind: impl Into<String>) {
        *self.0.entry(kind.into()).or_default() += 1;
    }

    /// Kinds of which there were too few.
    pub(crate) fn lacking(&self, rounds: u64) -> Vec<&'static str> {
        let of = |name| self.0.get(name).copied().unwrap_or_default();
        LEAST
            .iter()
            .filter(|&&(name, least)| of(name) < least * rounds / 1000)
            .map(|&(name, _)| name)
            .collect()
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, count) in &self.0 {
            writeln!(f, "{count:5} {kind}")?;
        }
        Ok(())
    }
}
