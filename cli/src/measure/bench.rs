//! A measurement in the format of llama-bench: one JSON object on each line, with the keys in llama-bench's order
//! (tools/llama-bench, `-o jsonl`).

use std::borrow::Borrow;

use autoplace::machine::{Gpu, GpuKind};
use autoplace::memory::FlashAttention;
use autoplace_measure::{Measured, Measurement, Row};
use serde_json::{Value, json};

use crate::emit::kv_type;
use crate::plan::json::override_tensor;

/// One line for each row of each placement.
pub(super) fn jsonl(measurement: &Measurement) -> String {
    let rows = measurement.points.iter().filter_map(|point| Some((point.placement.as_ref()?, &point.rows)));
    let lines = rows.flat_map(|(placement, rows)| rows.iter().map(move |row| line(measurement, placement, row)));
    lines.map(|line| line.to_string()).collect::<Vec<_>>().join("\n")
}

/// One row, with its keys in llama-bench's order. If autoplace does not have a setting, the row contains llama-bench's
/// default.
fn line(measurement: &Measurement, placement: &Measured, row: &Row) -> Value {
    let (machine, model) = (&measurement.machine, &measurement.model);
    let settings = &placement.settings;
    let devices: Vec<&str> = placement.devices.iter().filter_map(|gpu| gpu.device.as_deref()).collect();
    let is_used = |gpu: &&Gpu| {
        gpu.kind != GpuKind::Remote && gpu.device.as_deref().is_some_and(|device| devices.contains(&device))
    };
    let gpus = || machine.gpus.iter().filter(is_used);
    let mut backends: Vec<&str> = gpus().map(|gpu| &*gpu.backend).collect();
    backends.dedup();
    let descriptions: Vec<&str> = gpus().map(|gpu| &*gpu.description).collect();
    let split: Vec<String> = placement.tensor_split.iter().map(|share| format!("{share:.2}")).collect();
    let overrides: Vec<String> = placement.overrides.iter().map(|rule| override_tensor(rule, &devices)).collect();
    let samples_ns: Vec<u64> = row.samples.iter().map(|sample| sample.ns).collect();
    let samples_ts: Vec<f64> = row.speeds().collect();
    let in_f64: Vec<f64> = samples_ns.iter().map(|&ns| ns as f64).collect();
    let (avg_ns, stddev_ns) = mean_and_deviation(&in_f64);
    let (avg_ts, stddev_ts) = mean_and_deviation(&samples_ts);
    let n_threads = if row.n_gen > 0 { placement.threads } else { placement.threads_batch };
    let flash_attn = match settings.flash_attn {
        FlashAttention::On => 1,
        FlashAttention::Off => 0,
        FlashAttention::Auto => -1,
    };
    let keys = [
        // autoplace and the llama.cpp that was measured, such as `autoplace 0.1.0, llama.cpp 0.8.0 (CPU)`.
        ("build_commit", json!(measurement.made_by)),
        ("build_number", json!(0)),
        ("cpu_info", json!(machine.host.cpu.as_deref().unwrap_or_default())),
        ("gpu_info", json!(descriptions.join(", "))),
        ("backends", json!(joined(&backends, ",", "CPU"))),
        ("model_filename", json!(model.path.to_string_lossy())),
        ("model_type", json!(model.description)),
        ("model_size", json!(model.tensor_bytes)),
        ("model_n_params", json!(model.n_params)),
        ("n_batch", json!(settings.n_batch)),
        ("n_ubatch", json!(settings.n_ubatch)),
        ("n_threads", json!(n_threads)),
        ("cpu_mask", json!("0x0")),
        ("cpu_strict", json!(false)),
        ("poll", json!(50)),
        ("type_k", json!(kv_type(settings.type_k))),
        ("type_v", json!(kv_type(settings.type_v))),
        ("n_gpu_layers", json!(placement.n_gpu_layers)),
        ("n_cpu_moe", json!(0)),
        ("split_mode", json!("layer")),
        ("main_gpu", json!(0)),
        ("no_kv_offload", json!(!settings.offload_kqv)),
        ("flash_attn", json!(flash_attn)),
        ("devices", json!(joined(&devices, "/", "none"))),
        ("tensor_split", json!(joined(&split, "/", "0.00"))),
        ("tensor_buft_overrides", json!(joined(&overrides, ";", "none"))),
        ("use_mmap", json!(settings.mmap)),
        ("use_direct_io", json!(false)),
        ("embeddings", json!(false)),
        ("no_op_offload", json!(u32::from(!settings.op_offload))),
        ("no_host", json!(false)),
        ("repack", json!(settings.repack)),
        ("fit_target", json!(0)),
        ("fit_min_ctx", json!(0)),
        ("n_prompt", json!(row.n_prompt)),
        ("n_gen", json!(row.n_gen)),
        ("n_depth", json!(row.n_depth)),
        ("test_time", json!(row.time)),
        ("avg_ns", json!(avg_ns as u64)),
        ("stddev_ns", json!(stddev_ns as u64)),
        ("avg_ts", json!(avg_ts)),
        ("stddev_ts", json!(stddev_ts)),
        ("samples_ns", json!(samples_ns)),
        ("samples_ts", json!(samples_ts)),
    ];
    keys.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}

/// A list in llama-bench's format, such as `20.00/13.00`. An empty list is written as `none`.
fn joined<T: Borrow<str>>(all: &[T], mark: &str, none: &str) -> String {
    if all.is_empty() { none.to_owned() } else { all.join(mark) }
}

/// The mean and the sample standard deviation, which is 0 for a single value.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::mean_and_deviation;

    #[test]
    fn the_example_of_llama_benchs_own_readme_comes_out() {
        let ns = [71_551_000.0, 71_222_800.0, 70_364_100.0, 69_439_100.0, 69_909_100.0];
        let (mean, deviation) = mean_and_deviation(&ns);
        assert_eq!((mean as u64, deviation as u64), (70_497_220, 883_196));
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
    }
}
