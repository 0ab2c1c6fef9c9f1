//! Checks crowded cards. With little memory left, it plans, loads, and computes to the last position of the context.
//! Then it tries additional layers, to show how much of the headroom was needed.

use anyhow::Result;
use autoplace::load::OnDifference;
use autoplace::machine::{gib, mib};
use autoplace::memory::Headroom;
use autoplace::plan::{Context, GpuLayers, Request};
use serde::{Deserialize, Serialize};

use crate::child::{self, Ballast, End, Outcome};
use crate::job::{Job, Stage, Step};
use crate::models::{self, Written};
use crate::rig::Rig;
use crate::setting::{Setting, Size, Verdict, first};

/// Free memory to leave on each card, in GiB; on a simulated card in MiB.
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
    /// The smallest free memory that this card reported at any stage.
    pub(crate) least_free: Option<u64>,
    /// Number of load attempts that failed for lack of memory.
    pub(crate) failed_attempts: usize,
    pub(crate) end: End,
    /// Number of additional whole layers, without any headroom, with which the end of the context was still reached.
    pub(crate) also_safe: u32,
    /// Outcome of the first additional layer that failed.
    pub(crate) one_more: Option<End>,
}

impl Row {
    /// How many times memory ran out although a plan had promised enough.
    pub(crate) fn events(&self) -> usize {
        self.failed_attempts + usize::from(matches!(self.end, End::OutOfMemory(_)))
    }
}

/// The sizes of context and graph; small on a simulated card of some megabytes.
fn request(setting: &Setting) -> Request {
    match setting.size {
        Size::Small => setting.request().n_ctx(512).n_ubatch(64),
        Size::Real => setting.request().n_ctx(4096),
    }
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

/// The sizes to leave free: all of [`LEFT`]. With limited time on a real card, only two: the largest size with which
/// the whole model cannot fit, and the smallest with which it may fit.
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
    let job = setting.job(rig, &model.path, request(setting), vec![Step::ToTheEnd]);
    let outcome = child::drive(&job, &setting.cache())?;
    let mut row = row(model, left, &job, &outcome);
    if row.end != End::Completed {
        return Ok(row);
    }
    // Adds layers beyond the plan's until one is too many.
    while row.n_gpu_layers + row.also_safe < row.layers && row.also_safe < MAX_MORE && setting.ends(0).is_none() {
        let more = row.n_gpu_layers + row.also_safe + 1;
        let end = child::drive(&bare(&job, more), &setting.cache())?.end;
        if end != End::Completed {
            row.one_more = Some(end);
            break;
        }
        row.also_safe += 1;
    }
    Ok(row)
}

/// A job with exactly `layers` layers, no headroom and no fallback.
fn bare(job: &Job, layers: u32) -> Job {
    let mut job = job.clone();
    job.request = job.request.n_gpu_layers(GpuLayers::Exactly(layers));
    job.request.headroom = Headroom::Bytes(0);
    (job.attempts, job.on_difference) = (1, OnDifference::Accept);
    job
}

fn row(model: &Written, left: u64, job: &Job, outcome: &Outcome) -> Row {
    let mut row = Row {
        model: model.name.clone(),
        model_bytes: model.bytes,
        n_ctx: 0,
        left,
        n_gpu_layers: 0,
        layers: 0,
        headroom: 0,
        least_free: None,
        failed_attempts: 0,
        end: outcome.end.clone(),
        also_safe: 0,
        one_more: None,
    };
    if let Context::Tokens(tokens) = job.request.context {
        row.n_ctx = tokens;
    }
    for stage in &outcome.stages {
        match stage {
            Stage::Loaded { report, free, .. } => {
                let plan = &report.plan;
                (row.n_gpu_layers, row.layers) = (plan.n_gpu_layers, plan.layers());
                row.headroom = report.gpus.first().map_or(0, |gpu| gpu.headroom.total());
                row.failed_attempts = report.tries() - 1;
                row.least_free = free.first().and_then(|free| free.ggml);
            }
            Stage::Done { free, .. } => {
                let now = free.first().and_then(|free| free.ggml);
                row.least_free = row.least_free.into_iter().chain(now).min();
            }
            Stage::Opened { .. } | Stage::Failed { .. } => {}
        }
    }
    row
}

fn verdict(rows: &[Row], skipped: &[String]) -> Verdict {
    let events: usize = rows.iter().map(Row::events).sum();
    let failed: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let why = row.end.failure()?;
            Some(format!("{}, {} bytes left: {why}", row.model, row.left))
        })
        .collect();
    let completed = rows.iter().filter(|row| row.end == End::Completed).count();
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
    use super::{Row, verdict};
    use crate::child::End;

    fn row(end: End) -> Row {
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
            end,
            also_safe: 2,
            one_more: None,
        }
    }

    #[test]
    fn a_load_that_first_lacks_memory_counts_even_if_the_next_attempt_works() {
        let mut backed_off = row(End::Completed);
        backed_off.failed_attempts = 1;
        assert!(verdict(&[row(End::Completed)], &[]).passed);
        let judged = verdict(&[row(End::Completed), backed_off], &[]);
        assert!(!judged.passed);
        assert!(judged.line.contains("1 out of memory"), "{}", judged.line);
    }

    #[test]
    fn a_refused_plan_is_not_an_event_but_refusals_alone_prove_nothing() {
        let refused = row(End::Refused("no room".to_owned()));
        assert!(!verdict(std::slice::from_ref(&refused), &[]).passed);
        assert!(verdict(&[refused, row(End::Completed)], &[]).passed);
    }

    #[test]
    fn the_line_names_the_cause_of_death() {
        let judged = verdict(&[row(End::OutOfMemory("cudaMalloc".to_owned()))], &[]);
        assert!(!judged.passed && judged.line.contains("cudaMalloc"));
    }
}
