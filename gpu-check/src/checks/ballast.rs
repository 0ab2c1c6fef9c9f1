//! Checks crowded cards. With little memory left, it plans, loads, and computes to the last position of the context.
//! Then it tries additional layers, to show how much of the headroom was needed.

use anyhow::Result;
use autoplace::load::OnDifference;
use autoplace::machine::{gib, mib};
use autoplace::memory::Headroom;
use autoplace::plan::{GpuLayers, Request};
use autoplace_measure::{Outcome, Stages, Step};
use serde::{Deserialize, Serialize};

use crate::child::Ballast;
use crate::models::{self, Written};
use crate::rig::{Opened, Rig};
use crate::setting::{Setting, Size, Verdict, first};

/// Free memory to leave on each card: in GiB on a real card, in MiB on a simulated card.
const LEFT: [u64; 6] = [1, 2, 4, 8, 16, 24];

/// Maximum number of additional layers.
const MAX_MORE: u32 = 4;

/// A model on a crowded card. Sizes in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) model: String,
    pub(crate) model_bytes: u64,
    pub(crate) n_ctx: u32,
    /// Free memory on each card before the load.
    pub(crate) left: u64,
    pub(crate) n_gpu_layers: u32,
    pub(crate) layers: u32,
    /// Free memory that the plan left on its first card.
    pub(crate) headroom: u64,
    /// The smallest free memory that the first card reported at any stage.
    pub(crate) least_free: Option<u64>,
    /// Number of load attempts that failed for lack of memory.
    pub(crate) failed_attempts: usize,
    #[serde(rename = "end")]
    pub(crate) outcome: Outcome,
    /// The number of additional whole layers with which the end of the context was still reached, without any headroom.
    pub(crate) also_safe: u32,
    /// Outcome of the first additional layer that failed.
    pub(crate) one_more: Option<Outcome>,
}

impl Row {
    /// How many times memory ran out although a plan had promised enough.
    pub(crate) fn events(&self) -> usize {
        self.failed_attempts + usize::from(matches!(self.outcome, Outcome::OutOfMemory(_)))
    }
}

/// The sizes of context and graph, with this number of tokens; small on a simulated card of some megabytes.
fn request(setting: &Setting) -> (Request, u32) {
    let (request, n_ctx) = match setting.size {
        Size::Small => (setting.request().n_ubatch(64), 512),
        Size::Real => (setting.request(), 4096),
    };
    (request.n_ctx(n_ctx), n_ctx)
}

pub(crate) fn run(setting: &Setting) -> Result<Verdict> {
    let unit = match setting.size {
        Size::Small => mib(1),
        Size::Real => gib(1),
    };
    let (mut rows, mut skipped): (Vec<Row>, Vec<String>) = (Vec::new(), Vec::new());
    for sketch in models::of_size(setting.size) {
        let Some(model) = models::written(setting, &sketch, rows.len(), &mut skipped) else { continue };
        for left in lefts(setting, model.bytes, unit) {
            if let Some(why) = setting.ends(rows.len()) {
                skipped.push(format!("{}, {left} bytes left: {why}", model.name));
                continue;
            }
            let total = LEFT[LEFT.len() - 1] * unit + unit;
            let rig = setting.rig(&format!("ballast-{}", rows.len()), total);
            match Ballast::hold(&rig, left, &setting.cache()) {
                Ok(_ballast) => rows.push(crowded(setting, &rig, &model, left)?),
                Err(error) => skipped.push(format!("{}: {error:#}", model.name)),
            }
        }
    }
    Ok(verdict(&rows, &skipped))
}

/// The sizes to leave free: all sizes of [`LEFT`]. On a real card with limited time, only two sizes: the largest size
/// with which the whole model cannot fit, and the smallest size with which it may fit.
fn lefts(setting: &Setting, model: u64, unit: u64) -> Vec<u64> {
    let all = LEFT.map(|left| left * unit);
    if setting.size == Size::Small || setting.until.is_none() {
        return all.to_vec();
    }
    let above = all.iter().position(|&left| left > model);
    let above = above.unwrap_or(all.len() - 1);
    all[above.saturating_sub(1)..=above].to_vec()
}

/// Runs the model while another process takes all but `left` bytes.
fn crowded(setting: &Setting, rig: &Rig, model: &Written, left: u64) -> Result<Row> {
    let (request, n_ctx) = request(setting);
    let rig = rig.open()?;
    let stages = setting.measure(&rig, &model.path, request.clone())?.stages(&[Step::Fill]);
    // A plan without layers on a card leaves the card as it is.
    let now = || rig.free().ok()?.first()?.ggml;
    let mut row = Row {
        model: model.name.clone(),
        model_bytes: model.bytes,
        n_ctx,
        left,
        n_gpu_layers: stages.n_gpu_layers,
        layers: stages.layers,
        headroom: stages.gpus.first().map_or(0, |gpu| gpu.headroom),
        least_free: stages.least_free().or_else(now),
        failed_attempts: stages.failed_attempts,
        outcome: stages.outcome,
        also_safe: 0,
        one_more: None,
    };
    if row.outcome != Outcome::Completed {
        return Ok(row);
    }
    // Layers are added to the plan's layers until one is too many.
    while row.n_gpu_layers + row.also_safe < row.layers && row.also_safe < MAX_MORE && setting.ends(0).is_none() {
        let more = row.n_gpu_layers + row.also_safe + 1;
        let outcome = exactly(setting, &rig, model, request.clone(), more)?.outcome;
        if outcome != Outcome::Completed {
            row.one_more = Some(outcome);
            break;
        }
        row.also_safe += 1;
    }
    Ok(row)
}

/// Runs the model with exactly `layers` layers, no headroom and no fallback.
fn exactly(setting: &Setting, rig: &Opened, model: &Written, request: Request, layers: u32) -> Result<Stages> {
    let mut request = request.n_gpu_layers(GpuLayers::Exactly(layers));
    request.headroom = Headroom::Bytes(0);
    let load = setting.load_on(rig)?;
    let load = move |builder| load(builder).attempts(1).on_difference(OnDifference::Accept);
    Ok(setting.measure(rig, &model.path, request)?.load_with(load).stages(&[Step::Fill]))
}

fn verdict(rows: &[Row], skipped: &[String]) -> Verdict {
    let events: usize = rows.iter().map(Row::events).sum();
    let failed: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let why = row.outcome.failure()?;
            Some(format!("{}, {} bytes left: {why}", row.model, row.left))
        })
        .collect();
    let completed = rows.iter().filter(|row| row.outcome == Outcome::Completed).count();
    let also_safe: u32 = rows.iter().map(|row| row.also_safe).sum();
    let parted = rows.iter().filter(|row| row.n_gpu_layers > 0 && row.n_gpu_layers < row.layers);
    let first = first(&failed);
    Verdict {
        passed: events == 0 && failed.is_empty() && completed > 0,
        line: format!(
            "{completed} loads to the last position ({} of them split), {events} out of memory; {also_safe} layers more would have been safe{first}",
            parted.count()
        ),
        json: serde_json::json!({
            "rows": rows,
            "events": events,
            "also_safe": also_safe,
            "failed": failed,
            "skipped": skipped,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Row, verdict};

    fn row(outcome: Outcome) -> Row {
        Row {
            model: "a model".to_owned(),
            model_bytes: 1,
            n_ctx: 512,
            left: 2,
            n_gpu_layers: 3,
            layers: 9,
            headroom: 1,
            least_free: Some(1),
            failed_attempts: 0,
            outcome,
            also_safe: 2,
            one_more: None,
        }
    }

    #[test]
    fn a_load_that_first_lacks_memory_counts_even_if_the_next_attempt_works() {
        let mut backed_off = row(Outcome::Completed);
        backed_off.failed_attempts = 1;
        assert!(verdict(&[row(Outcome::Completed)], &[]).passed);
        let judged = verdict(&[row(Outcome::Completed), backed_off], &[]);
        assert!(!judged.passed);
        assert!(judged.line.contains("1 out of memory"), "{}", judged.line);
    }

    #[test]
    fn a_refused_plan_is_not_an_event_but_refusals_alone_prove_nothing() {
        let refused = row(Outcome::Refused("no room".to_owned()));
        assert!(!verdict(std::slice::from_ref(&refused), &[]).passed);
        assert!(verdict(&[refused, row(Outcome::Completed)], &[]).passed);
    }

    #[test]
    fn the_line_names_the_cause_of_death() {
        let judged = verdict(&[row(Outcome::OutOfMemory("cudaMalloc".to_owned()))], &[]);
        assert!(!judged.passed && judged.line.contains("cudaMalloc"));
    }
}
