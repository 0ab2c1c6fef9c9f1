//! The speeds of another measurement, for comparison: numbers of layers on GPUs, with tokens per second of generation.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::measurement::Measurement;

/// A curve and its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name of the curve.
    pub name: String,
    /// Layers of the model, the output layer included; `None` if unknown.
    pub layers: Option<u32>,
    /// Layers on GPUs, and tokens per second of generation.
    pub points: Vec<(u32, f64)>,
}

/// A widely known sweep: Qwen2.5-Coder-14B (Q4_K_M, 48 blocks) on an RTX 5060 Ti with 16 GB in a PCIe 3.0 x8 slot, with
/// a Core i7-8700 and two channels of DDR4-2400. It was measured with llama.cpp (CUDA 12.4) and a context of 4096
/// tokens.
///
/// Source: InventiveHQ, local-llm-benchmarks, experiment vram-offload-cliff (CC BY 4.0).
pub(super) fn published() -> Series {
    let points = vec![(0, 2.89), (8, 3.58), (16, 4.24), (24, 5.61), (32, 7.26), (40, 12.5), (49, 43.18)];
    Series { name: "published: RTX 5060 Ti, 14B (InventiveHQ)".to_owned(), layers: Some(49), points }
}

impl Series {
    /// Reads a measurement ([`Measurement::to_json`]), output of llama-bench (`-o json`, `-o jsonl`), or a table
    /// (Markdown or comma-separated). A table has `n_gpu_layers` in the first column and tokens per second in the
    /// second, like the published sweeps.
    ///
    /// # Errors
    ///
    /// A text with the reason why `text` has none of these forms.
    pub fn read(name: &str, text: &str) -> Result<Self, String> {
        let series = match Measurement::from_json(text) {
            Ok(measurement) => Self::from_measurement(&measurement, name),
            Err(_) => {
                let points = bench(text).or_else(|| table(text)).unwrap_or_default();
                Self { name: name.to_owned(), layers: None, points }
            }
        };
        if series.points.is_empty() {
            let mut error = "neither a measurement of autoplace, nor JSON of llama-bench with generations, nor a table of n_gpu_layers and tokens per second".to_owned();
            if let (true, Err(problem)) = (text.trim_start().starts_with('{'), Measurement::from_json(text)) {
                error += &format!(": {problem}");
            }
            return Err(error);
        }
        Ok(series)
    }

    /// Generation speed at the smallest depth. Only placements of whole layers count, because other placements with the
    /// same number of layers would form another curve.
    pub fn from_measurement(measurement: &Measurement, name: &str) -> Self {
        let placements = || measurement.points.iter().filter_map(|point| Some((point, point.placement.as_ref()?)));
        let points = placements().filter(|(_, placement)| placement.overrides.is_empty());
        let points =
            points.filter_map(|(point, placement)| Some((placement.n_gpu_layers, point.generation()?.speed.median)));
        Self {
            name: name.to_owned(),
            layers: placements().map(|(_, placement)| placement.layers).max(),
            points: sorted(points),
        }
    }
}

fn sorted(points: impl Iterator<Item = (u32, f64)>) -> Vec<(u32, f64)> {
    // Sorted by layers, without duplicates.
    let points: BTreeMap<u32, f64> = points.filter(|(_, speed)| (0.0..1e9).contains(speed)).collect();
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

/// The lines of a table whose first two cells begin with numbers. All other lines count as text.
fn table(text: &str) -> Option<Vec<(u32, f64)>> {
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.trim().trim_matches('|').split(['|', ',', '\t']);
        let layers = first_word(cells.next()?)?.parse().ok()?;
        let speed = first_word(cells.next()?)?.parse().ok()?;
        Some((layers, speed))
    });
    let points = sorted(rows);
    (!points.is_empty()).then_some(points)
}

/// The first word of a cell: `43.18 tok/s`, `0 (all CPU)`.
fn first_word(cell: &str) -> Option<&str> {
    cell.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::{Series, bench, table};

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
        for nothing in ["no table", "-1,2\n", "1,NaN\n", "1,1e300\n", ""] {
            assert_eq!(table(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn llama_benchs_generations_are_read_and_its_prompts_are_not() {
        let line = |ngl, gen_, ts| format!("{{\"n_gpu_layers\": {ngl}, \"n_gen\": {gen_}, \"avg_ts\": {ts}}}");
        let lines = [line(33, 0, 900.0), line(33, 128, 40.5), line(10, 128, 5.0)].join("\n");
        assert_eq!(bench(&lines), Some(vec![(10, 5.0), (33, 40.5)]));
        assert_eq!(bench("| a | b |"), None);
    }

    #[test]
    fn a_series_is_read_in_each_of_its_forms_and_another_text_is_refused() {
        let points = |text: &str| Series::read("mine", text).map(|series| series.points);
        assert_eq!(points("n_gpu_layers,tok/s\n8,3.58\n"), Ok(vec![(8, 3.58)]));
        assert_eq!(points(r#"[{"n_gpu_layers": 10, "n_gen": 128, "avg_ts": 5.0}]"#), Ok(vec![(10, 5.0)]));
        for nothing in ["no table", "[]", r#"[{"n_gpu_layers": 10, "n_gen": 0, "avg_ts": 900.0}]"#] {
            assert!(points(nothing).unwrap_err().contains("nor JSON of llama-bench"), "{nothing}");
        }
        assert_eq!(Series::read("mine", "1,2\n").unwrap().name, "mine");
    }
}
