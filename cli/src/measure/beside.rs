//! Speeds of another measurement, to be drawn beside: `n_gpu_layers` and tokens per second of generation.

use std::collections::BTreeMap;
use std::path::Path;

use autoplace::measure::Measurement;
use serde_json::Value;

/// A curve and its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(u32, f64)>,
}

/// Reads what `measure --write` wrote, what llama-bench printed (`-o json`, `-o jsonl`), or a table whose first column
/// is `n_gpu_layers` and whose second is tokens per second, as in the published sweeps (Markdown or comma-separated).
pub(super) fn read(file: &Path) -> Result<Series, String> {
    let text = crate::read(file)?;
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let points = match Measurement::from_json(&text) {
        Ok(measurement) => of(&measurement),
        Err(_) => bench(&text).or_else(|| table(&text)).unwrap_or_default(),
    };
    if points.is_empty() {
        let error = "neither a measurement of autoplace, nor JSON of llama-bench with generations, nor a table of n_gpu_layers and tokens per second";
        return Err(crate::in_file(file, error));
    }
    Ok(Series { name, points })
}

/// Generation at the least depth, whole layers only: another placement of as many layers is another curve.
pub(super) fn of(measurement: &Measurement) -> Vec<(u32, f64)> {
    let points = measurement.points.iter().filter_map(|point| {
        let placement = point.placement.as_ref().filter(|it| it.overrides.is_empty())?;
        Some((placement.n_gpu_layers, point.generation()?.speed.median))
    });
    sorted(points)
}

/// Whether an axis can hold it: it may come from anybody.
pub(super) fn can_be_drawn((_, speed): &(u32, f64)) -> bool {
    (0.0..1e9).contains(speed)
}

fn sorted(points: impl Iterator<Item = (u32, f64)>) -> Vec<(u32, f64)> {
    // Keys in order, each once.
    let points: BTreeMap<u32, f64> = points.filter(can_be_drawn).collect();
    points.into_iter().collect()
}

fn bench(text: &str) -> Option<Vec<(u32, f64)>> {
    let rows: Vec<Value> = match serde_json::from_str(text) {
        Ok(Value::Array(rows)) => rows,
        _ => text.lines().map(serde_json::from_str).collect::<Result<_, _>>().ok()?,
    };
    let generation = rows.iter().filter(|row| row["n_gen"].as_u64().is_some_and(|n| n > 0));
    let points = generation
        .filter_map(|row| Some((u32::try_from(row["n_gpu_layers"].as_u64()?).ok()?, row["avg_ts"].as_f64()?)));
    Some(sorted(points))
}

/// Lines whose first two cells begin with numbers; all else is words.
fn table(text: &str) -> Option<Vec<(u32, f64)>> {
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.trim().trim_matches('|').split(['|', ',', '\t']).map(number);
        let (layers, speed) = (cells.next()??, cells.next()??);
        Some((layers as u32, speed))
    });
    let points = sorted(rows);
    (!points.is_empty()).then_some(points)
}

/// The number that a cell begins with: `43.18 tok/s`, `0 (all CPU)`.
fn number(cell: &str) -> Option<f64> {
    let first = cell.split_whitespace().next()?;
    first.parse().ok().filter(|number: &f64| (0.0..1e9).contains(number))
}

#[cfg(test)]
mod tests {
    use super::{bench, table};

    #[test]
    fn a_published_table_is_read() {
        let published = "\
| -ngl (layers on GPU) | Throughput | VRAM used |
|---|---|---|
| 0 (all CPU) | 2.89 tok/s | 265 MB |
| 40 | 12.5 tok/s | 7,593 MB |
| 99 (all 48) | 43.18 tok/s | 9,179 MB |";
        assert_eq!(table(published), Some(vec![(0, 2.89), (40, 12.5), (99, 43.18)]));
        assert_eq!(table("n_gpu_layers,tok/s\n8,3.58\n"), Some(vec![(8, 3.58)]));
        assert_eq!(table("no table"), None);
    }

    #[test]
    fn llama_benchs_generations_are_read_and_its_prompts_are_not() {
        let line = |ngl, gen_, ts| format!("{{\"n_gpu_layers\": {ngl}, \"n_gen\": {gen_}, \"avg_ts\": {ts}}}");
        let lines = [line(33, 0, 900.0), line(33, 128, 40.5), line(10, 128, 5.0)].join("\n");
        assert_eq!(bench(&lines), Some(vec![(10, 5.0), (33, 40.5)]));
        assert_eq!(bench("| a | b |"), None);
    }
}
