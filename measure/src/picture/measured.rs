//! A measurement as a picture: measured speeds with their spread, predictions, published sweeps, and the planned and
//! the actual memory of each placement.

use autoplace::machine::Bytes;

use super::canvas::{
    Area, BESIDE, CHART, CHOSEN, COMPUTE, Curve, Drawn, EXPERTS, HEADROOM, Ink, KV, LINE, MARGIN, Mark, QUIET, TEXT,
    WEIGHTS, bar, chart, curve, document, heading, legend, legend_lines, line, mark,
};
use super::series::{Series, published};
use crate::measurement::{MeasuredDevice, Measurement, Point, Row};

const HEAD: i32 = 2 * LINE + 16;
/// The height of a bar. The next constant is the height of a bar with its line of text.
const BAR: i32 = 14;
const DEVICE: i32 = LINE + BAR + 10;
/// Colours for the curves of other files. If there are more curves than colours, the colours repeat.
const OTHERS: [Ink; 3] = [BESIDE, COMPUTE, HEADROOM];

/// A title, the name of the horizontal axis, and the curves.
type Chart = (String, String, Vec<Curve>);

/// Draws a measurement as an SVG document. The sweeps in `others` appear as curves in its charts.
///
/// # Errors
///
/// A text with the reason why the picture cannot be drawn.
pub fn svg(measurement: &Measurement, others: &[Series]) -> Result<String, String> {
    let charts: Vec<Chart> = [Some(cliff(measurement, others)), shares(measurement, others), by_depth(measurement)]
        .into_iter()
        .flatten()
        .collect();
    let bars = bars(measurement);
    let below = if bars.is_empty() { 0 } else { 3 * LINE + DEVICE * bars.len() as i32 };
    let total = HEAD as u32 + charts.iter().map(|(.., curves)| height(curves)).sum::<u32>() + below as u32;
    document(&format!("{}, measured", measurement.model.identity.name), total, |root| {
        let (top, mut rest) = root.split_vertically(HEAD);
        let machine = &measurement.machine;
        let gpus = machine.gpus.iter().map(|gpu| gpu.name.clone());
        let on: Vec<String> = gpus.chain(machine.host.cpu.clone()).collect();
        heading(&top, &measurement.model.identity.name, 10)?;
        line(&top, &on.join(", "), (MARGIN, 10 + LINE + 2), QUIET)?;
        for (title, x_name, curves) in &charts {
            let (area, below) = rest.split_vertically(height(curves));
            chart(&area, title, x_name, curves)?;
            rest = below;
        }
        draw_bars(&rest, &bars)
    })
}

fn height(curves: &[Curve]) -> u32 {
    let names: Vec<(String, Ink)> = curves.iter().map(|curve| (curve.name.clone(), curve.ink)).collect();
    CHART + (LINE * legend_lines(&names)) as u32
}

/// A row as a point at `x`, with its spread.
fn at(x: f64, row: &Row) -> Mark {
    Mark { x, y: row.speed.median, spread: Some((row.speed.least, row.speed.most)) }
}

/// Placements of whole layers, by the number of layers on GPUs.
fn whole(measurement: &Measurement) -> Vec<(u32, &Row)> {
    let of = |point: &'_ Point| {
        let placement = point.placement.as_ref().filter(|placement| placement.overrides.is_empty())?;
        Some(placement.n_gpu_layers)
    };
    let mut all: Vec<(u32, &Row)> =
        measurement.points.iter().filter_map(|point| Some((of(point)?, point.generation()?))).collect();
    all.sort_by_key(|(layers, _)| *layers);
    all
}

/// Measured and predicted speed, by layers on GPUs.
fn cliff(measurement: &Measurement, others: &[Series]) -> Chart {
    let whole = whole(measurement);
    let predicted = whole.iter().filter_map(|(n, row)| Some(Mark::new((*n).into(), row.predicted?))).collect();
    let measured = whole.iter().map(|(n, row)| at((*n).into(), row)).collect();
    let mut curves = vec![
        curve("predicted", QUIET, predicted, true, false),
        curve("measured, least to most", WEIGHTS, measured, false, true),
    ];
    let plan = measurement.point("plan");
    let plan = plan.and_then(|point| Some(at(point.placement.as_ref()?.n_gpu_layers.into(), point.generation()?)));
    curves.extend(plan.map(|mark| curve("the plan", CHOSEN, vec![mark], false, true)));
    let layers = measurement.points.iter().filter_map(|point| Some(point.placement.as_ref()?.layers)).max();
    for (series, ink) in others.iter().zip(OTHERS.into_iter().cycle()) {
        // People write 99 to mean all layers.
        let x = |n: u32| f64::from(layers.map_or(n, |layers| n.min(layers)));
        let points = series.points.iter().map(|&(n, speed)| Mark::new(x(n), speed)).collect();
        curves.push(curve(&series.name, ink, points, true, true));
    }
    ("Generation, tok/s".to_owned(), "layers on GPUs".to_owned(), curves)
}

/// The share of the top speed by the share of layers on GPUs. These shares can be compared between machines and models.
fn shares(measurement: &Measurement, others: &[Series]) -> Option<Chart> {
    let ours = Series::from_measurement(measurement, "measured here");
    // A curve needs two points.
    if ours.points.len() < 2 {
        return None;
    }
    let inks = [WEIGHTS, KV].into_iter().chain(OTHERS.into_iter().cycle());
    let all = [ours, published()].into_iter().chain(others.iter().cloned());
    let curves = all.zip(inks).map(|(series, ink)| {
        let fastest = series.points.iter().map(|(_, speed)| *speed).fold(f64::MIN_POSITIVE, f64::max);
        let most = series.points.last().map_or(1, |&(n, _)| n);
        let layers = series.layers.unwrap_or(most).max(1);
        let share = |(n, speed): &(u32, f64)| {
            Mark::new(100.0 * f64::from((*n).min(layers)) / f64::from(layers), 100.0 * speed / fastest)
        };
        curve(&series.name, ink, series.points.iter().map(share).collect(), true, true)
    });
    let title = "Beside a published sweep: % of the fastest".to_owned();
    Some((title, "% of the layers on GPUs".to_owned(), curves.collect()))
}

/// Generation speed by depth, for the plan or, if the plan was measured at only one depth, for the placement with the
/// most depths.
fn by_depth(measurement: &Measurement) -> Option<Chart> {
    let depths = |point: &&Point| point.rows.iter().filter(|row| row.n_gen > 0).count();
    let plan = measurement.point("plan").filter(|point| depths(point) > 1);
    let point = plan.or_else(|| measurement.points.iter().max_by_key(depths)).filter(|point| depths(point) > 1)?;
    let mut rows: Vec<&Row> = point.rows.iter().filter(|row| row.n_gen > 0).collect();
    rows.sort_by_key(|row| row.n_depth);
    let predicted = rows.iter().filter_map(|row| Some(Mark::new(row.n_depth.into(), row.predicted?))).collect();
    let measured = rows.iter().map(|row| at(row.n_depth.into(), row)).collect();
    let curves = vec![
        curve("predicted", QUIET, predicted, true, false),
        curve("measured, least to most", CHOSEN, measured, false, true),
    ];
    Some((format!("Generation by depth, {}: tok/s", point.name), "tokens in the context".to_owned(), curves))
}

/// The GPUs of each placement.
fn bars(measurement: &Measurement) -> Vec<(&Point, &MeasuredDevice)> {
    let placed = measurement.points.iter().filter_map(|point| Some((point, point.placement.as_ref()?)));
    placed
        .flat_map(|(point, placement)| placement.devices.iter().map(move |device| (point, device)))
        .filter(|(_, device)| device.device.is_some())
        .collect()
}

fn draw_bars(area: &Area<'_>, bars: &[(&Point, &MeasuredDevice)]) -> Drawn {
    let total = |(_, gpu): &(&Point, &MeasuredDevice)| gpu.planned.total().max(gpu.taken.unwrap_or(0));
    let Some(most) = bars.iter().map(total).max() else {
        return Ok(());
    };
    heading(area, "Memory of GPUs", 4)?;
    let names = [
        ("weights", WEIGHTS),
        ("keys and values", KV),
        ("compute", COMPUTE),
        ("cache of experts", EXPERTS),
        ("taken", CHOSEN),
    ];
    let has_cache = bars.iter().any(|(_, gpu)| gpu.planned.experts > 0);
    let names = names.into_iter().filter(|(_, ink)| has_cache || *ink != EXPERTS);
    let names: Vec<(String, Ink)> = names.map(|(name, ink)| (name.to_owned(), ink)).collect();
    let mut y = legend(area, &names, 4 + LINE + 4)?;
    for (point, gpu) in bars {
        let planned = gpu.planned;
        let taken = gpu.taken.map_or_else(|| "unknown".to_owned(), |bytes| Bytes(bytes).to_string());
        let label = format!("{}, {}: planned {}, taken {taken}", point.name, gpu.name, Bytes(planned.total()));
        line(area, &label, (MARGIN, y), TEXT)?;
        let cache = (planned.experts, EXPERTS);
        let parts = [(planned.weights, WEIGHTS), (planned.kv, KV), (planned.compute, COMPUTE), cache];
        bar(area, &parts, most, (y + LINE, BAR))?;
        gpu.taken.map_or(Ok(()), |taken| mark(area, taken, most, (y + LINE, BAR)))?;
        y += DEVICE;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::svg;
    use crate::measurement::Measurement;
    use crate::picture::canvas::tests::texts;
    use crate::picture::series::Series;

    /// A sweep of three placements of a model with 33 layers, in the format of `measure --write`.
    fn sweep() -> Value {
        let row = |n_gen: u32, depth: u32, speed: f64| {
            json!({"n_prompt": if n_gen > 0 { 0 } else { 512 }, "n_gen": n_gen, "n_depth": depth, "time": "2026-11-28T10:00:00Z",
                "speed": {"median": speed, "least": speed * 0.9, "most": speed * 1.1}, "predicted": speed * 1.05, "samples": []})
        };
        let bytes = json!({"weights": 4_000_000_000_u64, "kv": 500_000_000, "compute": 200_000_000});
        let point = |name: &str, layers: u32, speed: f64| {
            json!({"name": name, "failure": null, "conditions": {"temperature": null, "clock_mhz": null, "throttle": [],
                "least_free": null, "cpu_pressure": null, "memory_pressure": null, "swapped_in": null, "swapped_out": null},
                "placement": {"n_gpu_layers": layers, "layers": 33, "tensor_split": [], "overrides": [],
                    "settings": autoplace::memory::ContextParams::default(), "threads": 4, "threads_batch": 4,
                    "devices": [{"name": "RTX 4090", "device": "CUDA0", "kind": "gpu", "layers": layers, "planned": bytes,
                        "probed": null, "allocated": null, "taken": 4_800_000_000_u64, "headroom": 1, "free": null}]},
                "rows": [row(0, 0, 900.0), row(256, 512, speed), row(256, 2560, speed * 0.9)]})
        };
        let machine = autoplace::machine::Machine::new(autoplace::machine::Host::new(1 << 36));
        json!({"version": 1, "made_by": "autoplace", "machine": machine,
            "model": {"path": "m.gguf", "name": "m", "file_bytes": [1], "header": "", "description": "llama", "tensor_bytes": 1, "n_params": 1},
            "protocol": {"prompts": [], "n_prompt": 512, "n_gen": 256, "depths": [0], "rounds": 1},
            "points": [point("ngl 0", 0, 5.0), point("ngl 16", 16, 9.0), point("plan", 33, 80.0)], "notes": []})
    }

    fn measurement() -> Measurement {
        Measurement::from_json(&sweep().to_string()).unwrap()
    }

    #[test]
    fn a_measurement_shows_measured_predicted_and_published_speeds_and_taken_memory() {
        let picture = svg(&measurement(), &[]).unwrap();
        let texts = texts(&picture);
        let has = |part: &str| assert!(texts.iter().any(|text| text.contains(part)), "no {part:?} in {texts:#?}");
        for part in [
            "predicted",
            "measured, least to most",
            "the plan",
            "Beside a published sweep",
            "InventiveHQ",
            "by depth",
            "taken",
        ] {
            has(part);
        }
        // The first chart has three points with their spread and the plan's point. The second one has three and seven
        // points as shares. The third one has two depths.
        assert_eq!(picture.matches("<circle").count(), 3 + 1 + 3 + 7 + 2);
    }

    #[test]
    fn other_sweeps_are_drawn_beside_it_and_99_layers_mean_all() {
        let other = Series { name: "<other>".to_owned(), layers: None, points: vec![(0, 1.0), (99, 60.0)] };
        let picture = svg(&measurement(), &[other]).unwrap();
        assert!(texts(&picture).iter().any(|text| text == "<other>"));
    }

    #[test]
    fn numbers_and_names_of_a_file_may_be_anything() {
        let mut value = sweep();
        value["points"][0]["rows"][1]["speed"]["median"] = json!(1e300);
        value["points"][1]["rows"][1]["predicted"] = json!(-5.0);
        value["points"][2]["placement"]["devices"][0]["name"] = json!("</text><script>".repeat(40));
        value["points"][2]["placement"]["devices"][0]["taken"] = json!(u64::MAX);
        let measurement = Measurement::from_json(&value.to_string()).unwrap();
        texts(&svg(&measurement, &[]).unwrap());
        value["points"] = json!([]);
        texts(&svg(&Measurement::from_json(&value.to_string()).unwrap(), &[]).unwrap());
    }
}
