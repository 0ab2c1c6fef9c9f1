//! Measures tokens per second over `n_gpu_layers`, and compares them with the plan's prediction. The measurement is a
//! sweep of `autoplace_measure`, with its picture. Each placement is loaded in a worker, so a crash of a driver becomes
//! a point without a speed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Result, anyhow};
use autoplace::machine::{Bandwidth, BandwidthSource, Machine, mib};
use autoplace::plan::Workload;
use autoplace_measure::{Measurement, Point, Steps, picture};

use crate::measured;
use crate::models::Written;
use crate::setting::{Setting, Size, Verdict, first};

/// The texts at each placement. They are computed in this order. Each text is repeated or cut so that it has the
/// prompt's length.
const TEXTS: [&str; 3] = [
    "The placement of a model decides how fast it answers, and a layer too many on the host costs most.",
    "Once upon a time a card had room for all layers but one, and nobody knew why the model was slow.",
    "What a plan predicts stands beside what was measured, and where they differ the plan has to learn.",
];

/// Assumed read bandwidth of a host that computes for a simulated card, in bytes per second.
const SIMULATED: u64 = 20_000_000_000;

/// The work at each point, and the context for this work.
struct Shape {
    n_ctx: u32,
    n_prompt: u32,
    n_gen: u32,
}

const fn shape(size: Size) -> Shape {
    match size {
        Size::Small => Shape { n_ctx: 256, n_prompt: 64, n_gen: 24 },
        Size::Real => Shape { n_ctx: 4096, n_prompt: 512, n_gen: 32 },
    }
}

pub(crate) fn run(setting: &Setting) -> Result<Verdict> {
    let model = match measured::model(setting, 1) {
        Ok(model) => model,
        Err(error) => return Ok(measured::nothing(&error)),
    };
    let cliff = match sweep(setting, &model) {
        Ok(cliff) => cliff,
        Err(error) => return Ok(measured::nothing(&error)),
    };
    setting.keep("cliff.csv", cliff.csv().as_bytes())?;
    let svg = picture::measurement(&cliff.measurement, &[]);
    let svg = svg.map_err(|error| anyhow!("the sweep cannot be drawn: {error}"))?;
    setting.keep("cliff.svg", svg.as_bytes())?;
    Ok(cliff.verdict(&model))
}

/// Measures the placements until the time or the cases are over. Two placements are always measured.
fn sweep(setting: &Setting, model: &Written) -> Result<Cliff> {
    let Shape { n_ctx, n_prompt, n_gen } = shape(setting.size);
    let rig = setting.rig("cliff", model.bytes * 2 + mib(32)).open()?;
    let mut machine = rig.unmeasured()?;
    if setting.simulated {
        as_fast_as_the_host(&mut machine);
    }
    // The plan is for the middle of the measured generation.
    let request = setting.request().n_ctx(n_ctx).workload(Workload::new(n_prompt, n_gen));
    let load = setting.load_on(&rig)?;
    let mut tried = BTreeSet::new();
    let measure = setting.measure(&rig, &model.path, request)?;
    let measure = measure
        .protocol(|usual| {
            let texts = TEXTS.map(str::to_owned);
            usual.n_prompt(n_prompt).n_gen(n_gen).depths([0]).rounds(1).prompts(texts)
        })
        .load_with(|builder| load(builder).machine(machine.clone()))
        .progress(|progress| {
            if !tried.contains(progress.name) {
                let is_late = tried.len() > 1 && setting.until.is_some_and(|until| Instant::now() >= until);
                if is_late || setting.cases.is_some_and(|cases| tried.len() >= cases) {
                    return false;
                }
                tried.insert(progress.name.to_owned());
            }
            true
        });
    // Of a large model, most of the measured numbers of layers are near the largest number that fits.
    let measurement = measure.sweep(if setting.size == Size::Small { Steps::Full } else { Steps::Edge })?;
    Ok(Cliff { measurement, tried })
}

/// Gives simulated cards the read speed of the host, because the host computes for them.
fn as_fast_as_the_host(machine: &mut Machine) {
    machine.host = machine.host.clone().bandwidth(SIMULATED);
    for gpu in &mut machine.gpus {
        gpu.bandwidth = Some(Bandwidth::new(SIMULATED, BandwidthSource::Stated));
    }
}

/// A measured sweep.
struct Cliff {
    measurement: Measurement,
    /// The placements that were loaded.
    tried: BTreeSet<String>,
}

impl Cliff {
    /// The points with a speed, by layers on the GPUs. Placements with parts of blocks on the host are excluded.
    fn measured(&self) -> Vec<(u32, &Point)> {
        let points = self.measurement.points.iter();
        let mut points: Vec<(u32, &Point)> = points
            .filter(|point| point.failure.is_none() && point.generation().is_some())
            .filter_map(|point| {
                Some((point.placement.as_ref().filter(|placement| placement.overrides.is_empty())?.n_gpu_layers, point))
            })
            .collect();
        points.sort_by_key(|(layers, _)| *layers);
        points.dedup_by_key(|(layers, _)| *layers);
        points
    }

    /// Layers of the model, the output layer included.
    fn layers(&self) -> u32 {
        let placements = self.measurement.points.iter().filter_map(|point| point.placement.as_ref());
        placements.map(|placement| placement.layers).max().unwrap_or(0)
    }

    /// The generation speed with all layers on GPUs, divided by the speed with `fewer` layers less.
    fn drop_by(&self, fewer: u32) -> Option<f64> {
        let measured = self.measured();
        let at = |n: u32| {
            let (_, point) = measured.iter().find(|(layers, _)| *layers == n)?;
            Some(point.generation()?.speed.median)
        };
        Some(at(self.layers())? / at(self.layers().checked_sub(fewer)?)?)
    }

    /// The points that failed although a plan had promised that the load fits.
    fn failed(&self) -> Vec<String> {
        let failed = self.measurement.points.iter().filter(|point| self.tried.contains(&point.name));
        failed.filter_map(|point| Some(format!("{}: {}", point.name, point.failure.as_ref()?))).collect()
    }

    /// One line for each measured point.
    fn csv(&self) -> String {
        let mut table = "n_gpu_layers,prompt_tokens_per_second,tokens_per_second,predicted_tokens_per_second,measured_by_predicted\n".to_owned();
        let cell = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
        for (layers, point) in self.measured() {
            let (prompt, generation) = (point.prompt(), point.generation());
            let predicted = generation.and_then(|row| row.predicted);
            let _ = writeln!(
                table,
                "{layers},{},{},{},{}",
                cell(prompt.map(|row| row.speed.median)),
                cell(generation.map(|row| row.speed.median)),
                cell(predicted),
                cell(ratio(point))
            );
        }
        table
    }

    fn verdict(&self, model: &Written) -> Verdict {
        let (measured, failed) = (self.measured(), self.failed());
        let ratios = || measured.iter().filter_map(|(_, point)| ratio(point));
        let beside = match (ratios().reduce(f64::min), ratios().reduce(f64::max)) {
            (Some(least), Some(most)) => format!("measured by predicted {least:.2} to {most:.2}"),
            _ => "no speed was predicted".to_owned(),
        };
        let drop = |fewer| self.drop_by(fewer).map_or("?".to_owned(), |by| format!("{by:.2}"));
        let (one, two, four) = (drop(1), drop(2), drop(4));
        let first = first(&failed);
        Verdict {
            // With fewer than two points there is no cliff.
            passed: failed.is_empty() && measured.len() > 1,
            line: format!(
                "{}: {} of {} points measured, all layers are {one}, {two} and {four} times as fast as one, two and four fewer; {beside}{first}",
                model.name,
                measured.len(),
                self.measurement.points.len(),
            ),
            json: serde_json::json!({
                "model": model.name,
                "model_bytes": model.bytes,
                "layers": self.layers(),
                "measurement": self.measurement,
                "tried": self.tried,
                "all_by_fewer": { "one": self.drop_by(1), "two": self.drop_by(2), "four": self.drop_by(4) },
                "failed": failed,
            }),
        }
    }
}

/// The measured generation speed divided by the predicted speed.
fn ratio(point: &Point) -> Option<f64> {
    let row = point.generation()?;
    Some(row.speed.median / row.predicted?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use autoplace::machine::{Host, Machine};
    use autoplace_measure::Measurement;
    use serde_json::{Value, json};

    use super::Cliff;

    /// A sweep of a model with 9 layers. Each point has its layers, and its speed or the reason why it failed.
    fn cliff(points: &[(u32, Result<f64, &str>)], tried: &[&str]) -> Cliff {
        let point = |&(layers, ref speed): &(u32, Result<f64, &str>)| -> Value {
            let row = |speed: f64| {
                json!([{"n_prompt": 0, "n_gen": 24, "n_depth": 64, "time": "2026-11-29T10:00:00Z", "samples": [],
                    "speed": {"median": speed, "least": speed, "most": speed}, "predicted": speed * 2.0}])
            };
            json!({"name": format!("ngl {layers}"), "failure": speed.err(), "rows": speed.map_or(json!([]), row),
                "placement": speed.ok().map(|_| json!({"n_gpu_layers": layers, "layers": 9, "tensor_split": [], "overrides": [],
                    "settings": autoplace::memory::ContextParams::default(), "threads": 1, "threads_batch": 1, "devices": []})),
                "conditions": {"temperature": null, "clock_mhz": null, "throttle": [], "least_free": null, "cpu_pressure": null,
                    "memory_pressure": null, "swapped_in": null, "swapped_out": null}})
        };
        let measurement = json!({"version": 1, "made_by": "a test", "machine": Machine::new(Host::new(1 << 36)),
            "model": {"path": "m.gguf", "name": "m", "file_bytes": [1], "header": "", "description": "llama", "tensor_bytes": 1, "n_params": 1},
            "protocol": {"prompts": [], "n_prompt": 64, "n_gen": 24, "depths": [0], "rounds": 1},
            "points": points.iter().map(point).collect::<Vec<_>>(), "notes": []});
        let tried: BTreeSet<String> = tried.iter().map(|name| (*name).to_owned()).collect();
        Cliff { measurement: Measurement::from_json(&measurement.to_string()).unwrap(), tried }
    }

    #[test]
    fn the_drop_is_between_measured_points() {
        let cliff = cliff(&[(9, Ok(90.0)), (8, Ok(30.0)), (7, Err("signal: 6"))], &["ngl 9", "ngl 8", "ngl 7"]);
        assert_eq!(cliff.drop_by(1), Some(3.0));
        assert_eq!((cliff.drop_by(2), cliff.drop_by(4)), (None, None));
        assert_eq!(cliff.failed(), ["ngl 7: signal: 6"]);
    }

    #[test]
    fn a_placement_that_was_refused_before_it_was_loaded_has_not_failed() {
        let cliff = cliff(&[(9, Err("no room")), (8, Ok(30.0))], &["ngl 8"]);
        assert!(cliff.failed().is_empty());
        let table = cliff.csv();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1..], ["8,,30.000,60.000,0.500"]);
    }
}
