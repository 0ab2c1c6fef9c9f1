//! Compares our plan with llama.cpp's own fit, for the same model on the same card.

use anyhow::Result;
use autoplace::machine::{Bytes, mib};
use autoplace::memory::Split;
use autoplace_measure::{FreeBytes, Outcome};
use bare_llama::median;
use serde::{Deserialize, Serialize};

use super::{Shape, threads};
use crate::child;
use crate::measured::medians;
use crate::models::Written;
use crate::peer::{About, Question, Side, SplitQuestion, Stage};
use crate::rig::Rig;
use crate::setting::{SIM_HEADROOM, Setting};

/// The memory that llama.cpp's fit leaves free on each device by default (common/common.h, `fit_params_target`).
pub(super) const MARGIN: u64 = mib(1024);

/// For each side, the number of processes that only determine a split.
const ASKED: usize = 3;
/// Repetitions in each of these processes.
const AGAIN: usize = 3;

/// The explanation of the numbers in the result.
pub(super) const FIT: &str = "llama.cpp's fit is common/fit.cpp of the same source, asked for the same context and one row of logits, with its own \
default margin on a real card and our headroom on a simulated one. Both splits are loaded and computed with by llama.cpp's own calls. Times \
to a split begin when the devices are open.";

/// Our plan and llama.cpp's fit on one card.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Fit {
    pub(super) model: String,
    pub(super) model_bytes: u64,
    pub(super) n_ctx: u32,
    /// Bytes that llama.cpp's fit should leave free on each card.
    pub(super) margin: u64,
    pub(super) ours: Found,
    pub(super) theirs: Found,
}

/// The results of a side. Times are in milliseconds, from the question to the split; the devices are already open.
/// Sizes are in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Found {
    #[serde(rename = "end")]
    pub(super) outcome: Outcome,
    pub(super) split: Option<Split>,
    /// Planned free memory, over all cards.
    pub(super) headroom: u64,
    /// The time of the first question of each process.
    pub(super) fresh_ms: Vec<f64>,
    /// The times of the later questions.
    pub(super) warm_ms: Vec<f64>,
    /// Free memory of each card before the load.
    pub(super) opened: Vec<FreeBytes>,
    /// Free memory of each card after the load.
    pub(super) loaded: Vec<FreeBytes>,
    /// Free memory of each card when the context is full.
    pub(super) full: Vec<FreeBytes>,
    /// Tokens in the context at the end.
    pub(super) depth: usize,
    /// The speeds of each round, first of the prompt, then of the generation.
    pub(super) speeds: Vec<(f64, f64)>,
    pub(super) medians: Option<(f64, f64)>,
}

impl Fit {
    /// Runs both sides in turns: first only the questions, then the splits.
    pub(super) fn new(setting: &Setting, shape: &Shape, model: &Written, rig: &Rig) -> Result<Self> {
        let margin = if setting.simulated { SIM_HEADROOM } else { MARGIN };
        let (mut ours, mut theirs) = (Found::nothing(), Found::nothing());
        for round in 0..=ASKED {
            let mut sides = [(Side::Ours, &mut ours), (Side::Theirs, &mut theirs)];
            if round % 2 == 1 {
                sides.reverse();
            }
            for (side, found) in sides {
                let loads = round == ASKED;
                let about = About::Split(SplitQuestion {
                    side,
                    request: setting.request().n_ubatch(shape.n_ubatch),
                    n_ctx: shape.n_ctx,
                    margin,
                    again: if loads { 0 } else { AGAIN },
                    work: loads.then_some(shape.fit),
                });
                let (rig, path) = (rig.clone(), model.path.clone());
                let question = Question { rig, model: path, threads: threads(setting), about };
                let (stages, outcome) = child::peer(&question, &setting.cache())?;
                found.hear(stages, outcome);
            }
        }
        Ok(Self { model: model.name.clone(), model_bytes: model.bytes, n_ctx: shape.n_ctx, margin, ours, theirs })
    }

    /// A sentence with our results, followed by llama.cpp's.
    pub(super) fn words(&self) -> String {
        let (ours, theirs) = (&self.ours, &self.theirs);
        let fresh = |found: &Found| median(found.fresh_ms.iter().copied());
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
        let speed = |found: &Found| or_none(found.medians.map(|(_, tg)| format!("{tg:.1}")));
        let time = |found: &Found| or_none(fresh(found).map(|ms| format!("{ms:.0}")));
        let spare = |found: &Found| or_none(found.unused().map(|bytes| Bytes(bytes).to_string()));
        let layers = |found: &Found| or_none(found.split.as_ref().map(|s| s.n_gpu_layers.to_string()));
        format!(
            "{}: {} and {} layers, {} and {} tok/s, {} and {} unused, {} and {} ms",
            self.model,
            layers(ours),
            layers(theirs),
            speed(ours),
            speed(theirs),
            spare(ours),
            spare(theirs),
            time(ours),
            time(theirs),
        ) + &theirs.trouble()
    }
}

impl Found {
    /// The results of a side that did not run.
    pub(super) const fn nothing() -> Self {
        Self {
            outcome: Outcome::Completed,
            split: None,
            headroom: 0,
            fresh_ms: Vec::new(),
            warm_ms: Vec::new(),
            opened: Vec::new(),
            loaded: Vec::new(),
            full: Vec::new(),
            depth: 0,
            speeds: Vec::new(),
            medians: None,
        }
    }

    /// The failure, or an empty text.
    fn trouble(&self) -> String {
        self.outcome.reason().map_or(String::new(), |why| format!(" (llama.cpp's: {why})"))
    }

    /// Unused bytes with a full context, over all cards; `None` if a card does not report them.
    fn unused(&self) -> Option<u64> {
        if self.full.is_empty() {
            return None;
        }
        self.full.iter().map(|free| free.ggml).sum()
    }

    /// Adds the stages of a process.
    fn hear(&mut self, stages: Vec<Stage>, outcome: Outcome) {
        // A later success does not undo a failure.
        if self.outcome == Outcome::Completed {
            self.outcome = outcome;
        }
        for stage in stages {
            match stage {
                Stage::Opened { free } => self.opened = free,
                Stage::Asked { milliseconds, split, headroom, .. } => {
                    let mut times = milliseconds.into_iter();
                    self.fresh_ms.extend(times.next());
                    self.warm_ms.extend(times);
                    (self.split, self.headroom) = (Some(split), headroom);
                }
                Stage::Loaded { free } => self.loaded = free,
                Stage::Measured { speeds } => {
                    self.speeds.extend(speeds);
                    self.medians = medians(&self.speeds);
                }
                Stage::Full { free, depth } => (self.full, self.depth) = (free, depth),
                Stage::Turned { .. } | Stage::Failed { .. } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use autoplace::memory::{ContextParams, Split};

    use super::{Found, Outcome, Stage};

    #[test]
    fn the_first_time_of_each_process_is_separate_and_a_failure_is_kept() {
        let asked = |milliseconds: &[f64]| Stage::Asked {
            milliseconds: milliseconds.to_vec(),
            split: Split::layers(9),
            headroom: 1,
            context: ContextParams::default(),
        };
        let mut found = Found::nothing();
        found.hear(vec![asked(&[9.0, 2.0, 1.0])], Outcome::Completed);
        found.hear(vec![], Outcome::Failed("signal: 6".to_owned()));
        found.hear(vec![asked(&[8.0, 3.0])], Outcome::Completed);
        assert_eq!(found.fresh_ms, [9.0, 8.0]);
        assert_eq!(found.warm_ms, [2.0, 1.0, 3.0]);
        assert!(found.outcome != Outcome::Completed && found.trouble().contains("signal: 6"));
        assert_eq!(found.unused(), None);
    }
}
