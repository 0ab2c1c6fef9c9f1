//! Compares a session with the loop of llama.cpp's llama-bench. Both use the same split in one process, and take turns.

use anyhow::Result;
use autoplace::machine::mib;
use autoplace::plan::GpuLayers;
use autoplace_measure::Outcome;
use serde::{Deserialize, Serialize};

use super::threads;
use crate::child;
use crate::measured::medians;
use crate::models::{self, Written};
use crate::peer::{About, Question, Stage, Work};
use crate::setting::Setting;

/// The explanation of the numbers in the result.
pub(super) const LOOP: &str = "llama.cpp's packaged source has no llama-bench: its protocol (test_prompt, test_gen, a warm-up, an empty memory for \
each) is carried out by the same library calls, in the same process, in turns with the session, on the same split, threads, batches and \
types. It chooses no tokens; the session looks for the likeliest.";

/// A session and llama.cpp's loop on the same split. Speeds are in tokens per second.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Loop {
    pub(super) model: String,
    pub(super) model_bytes: u64,
    pub(super) n_gpu_layers: u32,
    pub(super) layers: u32,
    pub(super) threads: u32,
    pub(super) work: Work,
    #[serde(rename = "end")]
    pub(super) outcome: Outcome,
    /// The speeds of each round, first of the prompt, then of the generation.
    pub(super) ours: Vec<(f64, f64)>,
    pub(super) theirs: Vec<(f64, f64)>,
    /// The medians of our speed divided by llama.cpp's, first for the prompt, then for the generation.
    pub(super) ours_by_theirs: Option<(f64, f64)>,
}

impl Loop {
    /// Runs with all layers on the card (`by` 1) or half of them (`by` 2).
    pub(super) fn new(setting: &Setting, model: &Written, by: u32, work: Work) -> Result<Self> {
        let threads = threads(setting);
        // The weights are loaded twice, once for each side.
        let rig = setting.rig(&format!("loop-{by}"), model.bytes * 3 + mib(64));
        let layers = models::layers(&model.path)?;
        let n_ctx = u32::try_from(work.prompt + work.generated)?;
        let request = setting.request().n_ctx(n_ctx).n_gpu_layers(GpuLayers::Exactly(layers / by));
        let about = About::Turns { request, work };
        let question = Question { rig, model: model.path.clone(), threads, about };
        let (stages, outcome) = child::peer(&question, &setting.cache())?;
        let mut row = Self {
            model: model.name.clone(),
            model_bytes: model.bytes,
            n_gpu_layers: layers / by,
            layers,
            threads,
            work,
            outcome,
            ours: Vec::new(),
            theirs: Vec::new(),
            ours_by_theirs: None,
        };
        for stage in stages {
            if let Stage::Turned { ours, theirs } = stage {
                (row.ours, row.theirs) = (ours, theirs);
            }
        }
        row.ours_by_theirs = medians(&by_pairs(&row.ours, &row.theirs));
        Ok(row)
    }
}

/// Our speed divided by llama.cpp's, for each round.
fn by_pairs(ours: &[(f64, f64)], theirs: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let pairs = ours.iter().zip(theirs);
    pairs.map(|(ours, theirs)| (ours.0 / theirs.0, ours.1 / theirs.1)).collect()
}

#[cfg(test)]
mod tests {
    use super::by_pairs;
    use crate::measured::medians;

    #[test]
    fn rounds_are_compared_in_pairs_so_that_a_slow_moment_hits_both() {
        let ours = [(100.0, 10.0), (50.0, 5.0), (100.0, 9.0)];
        let theirs = [(100.0, 10.0), (50.0, 5.0), (80.0, 10.0)];
        let pairs = by_pairs(&ours, &theirs);
        assert_eq!(pairs, [(1.0, 1.0), (1.0, 1.0), (1.25, 0.9)]);
        assert_eq!(medians(&pairs), Some((1.0, 1.0)));
    }
}
