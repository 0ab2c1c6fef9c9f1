//! Measures tokens per second over `n_gpu_layers` and compares them with the plan's predicted curve.

use anyhow::Result;
use autoplace::gguf::Header;
use autoplace::machine::{Gpu, Machine, mib};
use autoplace::plan::{GpuLayers, Planner, Request, Speed, Workload};
use autoplace::profile::ModelProfile;

use crate::child;
use crate::curve::{self, Point};
use crate::job::{Stage, Step};
use crate::measured;
use crate::models::{self, Written};
use crate::rig::Rig;
use crate::setting::{Setting, Size, Verdict, first};

/// The work at each point, and its context.
struct Shape {
    n_ctx: u32,
    prompt: usize,
    generated: usize,
    rounds: usize,
}

const fn shape(size: Size) -> Shape {
    match size {
        Size::Small => Shape { n_ctx: 256, prompt: 64, generated: 24, rounds: 3 },
        Size::Real => Shape { n_ctx: 4096, prompt: 512, generated: 32, rounds: 3 },
    }
}

pub(crate) fn run(setting: &Setting) -> Result<Verdict> {
    let model = match measured::model(setting, 1) {
        Ok(model) => model,
        Err(error) => return Ok(measured::nothing(&error)),
    };
    let shape = shape(setting.size);
    let rig = setting.rig("cliff", model.bytes * 2 + mib(32));
    let mut sweep = Sweep { layers: models::layers(&model.path)?, ..Sweep::default() };
    match predict(setting, &model, &shape) {
        Ok(speed) => sweep.predicted = speed,
        Err(error) => sweep.unpredicted = Some(format!("{error:#}")),
    }
    for n_gpu_layers in order(sweep.layers) {
        // Two points are always measured.
        let points = sweep.points.len();
        if let Some(why) = setting.ends(points).filter(|_| points > 1) {
            sweep.skipped.push(format!("{n_gpu_layers} layers: {why}"));
        } else {
            sweep.measure(setting, &rig, &model, &shape, n_gpu_layers)?;
        }
    }
    sweep.points.sort_by_key(|point| point.n_gpu_layers);
    setting.keep("cliff.csv", curve::csv(&sweep.points).as_bytes())?;
    let title = format!("{} on {}", model.name, sweep.gpus.join(", "));
    let picture = curve::svg(&title, &sweep.points, sweep.curve())?;
    setting.keep("cliff.svg", picture.as_bytes())?;
    Ok(sweep.verdict(&model, &shape))
}

/// Assumed read bandwidth of a host that computes for a simulated card, in bytes per second.
const SIMULATED: u64 = 20_000_000_000;

/// The plan's prediction for this machine's cards. A simulated card reads as fast as the host, which computes for it.
fn predict(setting: &Setting, model: &Written, shape: &Shape) -> Result<Option<Speed>> {
    let mut machine = Machine::detect();
    if setting.simulated {
        machine.host = machine.host.bandwidth(SIMULATED);
        let mut card = Gpu::new("simulated card").total(model.bytes * 4).free(model.bytes * 4);
        card.bandwidth = machine.host.bandwidth;
        machine.gpus = vec![card];
    }
    let profile = ModelProfile::from_header(&Header::open(&model.path)?)?;
    let planner = Planner::new(&profile, &machine).request(request(setting, shape)?);
    Ok(planner.plan()?.speed)
}

/// The request of each point, without its layers.
fn request(setting: &Setting, shape: &Shape) -> Result<Request> {
    let request = setting.request().n_ctx(shape.n_ctx);
    // Predicts the middle of the measured generation.
    let workload = Workload::new(u32::try_from(shape.prompt)?, u32::try_from(shape.generated)?);
    Ok(request.workload(workload))
}

/// Layer counts, the most informative about the cliff first.
fn order(layers: u32) -> Vec<u32> {
    let mut order: Vec<u32> = Vec::new();
    let near = [0, 1, 2, 4].map(|fewer| layers.checked_sub(fewer));
    let far = [layers / 2, 0, layers / 4 * 3, layers / 4].map(Some);
    let between = [3, 6, 8].map(|fewer| layers.checked_sub(fewer));
    for n in near.into_iter().chain(far).chain(between).flatten() {
        if !order.contains(&n) {
            order.push(n);
        }
    }
    order
}

#[derive(Default)]
struct Sweep {
    /// Layers of the model, the output layer included.
    layers: u32,
    gpus: Vec<String>,
    points: Vec<Point>,
    predicted: Option<Speed>,
    /// Why the prediction failed.
    unpredicted: Option<String>,
    skipped: Vec<String>,
}

impl Sweep {
    fn measure(
        &mut self,
        setting: &Setting,
        rig: &Rig,
        model: &Written,
        shape: &Shape,
        n_gpu_layers: u32,
    ) -> Result<()> {
        let request = request(setting, shape)?.n_gpu_layers(GpuLayers::Exactly(n_gpu_layers));
        let step = Step::Speed { prompt: shape.prompt, generated: shape.generated, rounds: shape.rounds };
        let job = setting.job(rig, &model.path, request, vec![step]);
        let outcome = child::drive(&job, &setting.cache())?;
        let mut point = Point {
            n_gpu_layers,
            end: outcome.end,
            prompt: None,
            generation: None,
            predicted: self.curve().get(n_gpu_layers as usize).copied(),
            rounds: Vec::new(),
        };
        for stage in outcome.stages {
            match stage {
                Stage::Loaded { report, .. } => {
                    let plan = &report.plan;
                    if self.gpus.is_empty() {
                        self.gpus = plan.gpus().map(|gpu| gpu.name.clone()).collect();
                    }
                }
                Stage::Done { speeds, .. } => point.rounds = speeds,
                Stage::Opened { .. } | Stage::Failed { .. } => {}
            }
        }
        (point.prompt, point.generation) = measured::medians(&point.rounds).unzip();
        self.points.push(point);
        Ok(())
    }

    /// Predicted tokens per second, indexed by `n_gpu_layers`.
    fn curve(&self) -> &[f64] {
        let speed = self.predicted.as_ref();
        speed.map_or(&[], |speed| speed.curve.as_slice())
    }

    /// The ratio of generation speed with all layers to that with `fewer` layers less.
    fn drop_by(&self, fewer: u32) -> Option<f64> {
        let at = |n: u32| {
            let point = self.points.iter().find(|point| point.n_gpu_layers == n);
            point?.generation
        };
        Some(at(self.layers)? / at(self.layers.checked_sub(fewer)?)?)
    }

    fn verdict(&self, model: &Written, shape: &Shape) -> Verdict {
        let failed: Vec<String> = self
            .points
            .iter()
            .filter_map(|point| {
                let why = point.end.failure()?;
                Some(format!("{} layers: {why}", point.n_gpu_layers))
            })
            .collect();
        let completed = || self.points.iter().filter(|point| point.generation.is_some());
        let ratios = || completed().filter_map(Point::ratio);
        let beside = match (ratios().reduce(f64::min), ratios().reduce(f64::max)) {
            (Some(least), Some(most)) => {
                format!("measured by predicted {least:.2} to {most:.2}")
            }
            _ => "no speed was predicted".to_owned(),
        };
        let drop = |fewer| self.drop_by(fewer).map_or("?".to_owned(), |by| format!("{by:.2}"));
        let first = first(&failed);
        let (one, two, four) = (drop(1), drop(2), drop(4));
        Verdict {
            // Fewer points show no cliff.
            passed: failed.is_empty() && completed().count() > 1,
            line: format!(
                "{}: {} of {} points measured, all layers are {one}, {two} and {four} times as fast as one, two and four fewer; {beside}{first}",
                model.name,
                completed().count(),
                self.points.len() + self.skipped.len(),
            ),
            json: serde_json::json!({
                "model": model.name,
                "model_bytes": model.bytes,
                "gpus": self.gpus,
                "layers": self.layers,
                "n_ctx": shape.n_ctx,
                "prompt_tokens": shape.prompt,
                "generated_tokens": shape.generated,
                "rounds": shape.rounds,
                "points": self.points,
                "predicted": self.predicted,
                "unpredicted": self.unpredicted,
                "all_by_fewer": { "one": self.drop_by(1), "two": self.drop_by(2), "four": self.drop_by(4) },
                "failed": failed,
                "skipped": self.skipped,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Sweep, order};
    use crate::child::End;
    use crate::curve::Point;

    #[test]
    fn the_points_near_the_cliff_come_first_and_none_twice() {
        let points = order(33);
        assert_eq!(points[..4], [33, 32, 31, 29]);
        assert_eq!(points.len(), 11);
        let mut few = order(3);
        few.sort_unstable();
        assert_eq!(few, [0, 1, 2, 3]);
    }

    #[test]
    fn the_drop_is_between_points_that_were_measured() {
        let point = |n_gpu_layers, generation| Point {
            n_gpu_layers,
            end: End::Completed,
            prompt: generation,
            generation,
            predicted: None,
            rounds: Vec::new(),
        };
        let sweep = Sweep {
            layers: 9,
            points: vec![point(9, Some(90.0)), point(8, Some(30.0)), point(7, None)],
            ..Sweep::default()
        };
        assert_eq!(sweep.drop_by(1), Some(3.0));
        assert_eq!((sweep.drop_by(2), sweep.drop_by(4)), (None, None));
    }
}
