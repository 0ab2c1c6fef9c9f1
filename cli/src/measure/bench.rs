//! A measurement in llama-bench's words: a JSON object a line, with its keys in its order (tools/llama-bench, `-o
//! jsonl`).

use autoplace::machine::GpuKind;
use autoplace::measure::{Measured, Measurement, Row};
use autoplace::memory::{FlashAttention, Place};
use serde::Serialize;

/// A line for each row of each placement.
pub(super) fn jsonl(measurement: &Measurement) -> String {
    let lines = measurement.points.iter().filter_map(|point| {
        let placement = point.placement.as_ref()?;
        Some(point.rows.iter().map(|row| Line::of(measurement, placement, row)))
    });
    // Numbers, texts and lists: nothing that JSON cannot hold.
    let lines = lines.flatten().map(|line| serde_json::to_string(&line).unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

#[derive(Serialize)]
struct Line<'a> {
    build_commit: &'a str,
    build_number: u32,
    cpu_info: &'a str,
    gpu_info: String,
    backends: String,
    model_filename: String,
    model_type: &'a str,
    model_size: u64,
    model_n_params: u64,
    n_batch: u32,
    n_ubatch: u32,
    n_threads: u32,
    cpu_mask: &'a str,
    cpu_strict: bool,
    poll: u32,
    type_k: String,
    type_v: String,
    n_gpu_layers: u32,
    n_cpu_moe: u32,
    split_mode: &'a str,
    main_gpu: u32,
    no_kv_offload: bool,
    flash_attn: i32,
    devices: String,
    tensor_split: String,
    tensor_buft_overrides: String,
    use_mmap: bool,
    use_direct_io: bool,
    embeddings: bool,
    no_op_offload: u32,
    no_host: bool,
    repack: bool,
    fit_target: u32,
    fit_min_ctx: u32,
    n_prompt: u32,
    n_gen: u32,
    n_depth: u32,
    test_time: &'a str,
    avg_ns: u64,
    stddev_ns: u64,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ns: Vec<u64>,
    samples_ts: Vec<f64>,
}

impl<'a> Line<'a> {
    fn of(measurement: &'a Measurement, placement: &'a Measured, row: &'a Row) -> Self {
        let (machine, model) = (&measurement.machine, &measurement.model);
        let settings = &placement.settings;
        let on_gpus = || placement.devices.iter().filter(|device| device.device.is_some());
        let names = |of: fn(&autoplace::machine::Gpu) -> &str| {
            let used = machine
                .gpus
                .iter()
                .filter(|gpu| on_gpus().any(|device| device.device == gpu.device && gpu.kind != GpuKind::Remote));
            used.map(of).collect::<Vec<&str>>()
        };
        let mut backends = names(|gpu| &gpu.backend);
        backends.dedup();
        if backends.is_empty() {
            backends.push("CPU");
        }
        let devices: Vec<&str> = on_gpus().filter_map(|it| it.device.as_deref()).collect();
        let samples_ns: Vec<u64> = row.samples.iter().map(|sample| sample.ns).collect();
        let samples_ts: Vec<f64> = row.speeds().collect();
        let in_f64: Vec<f64> = samples_ns.iter().map(|&ns| ns as f64).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(&in_f64);
        let (avg_ts, stddev_ts) = mean_and_deviation(&samples_ts);
        let ty = |ty: autoplace::memory::KvType| ty.to_string().to_lowercase();
        Self {
            // Of the llama.cpp inside: `llama.cpp 0.6.0-dev`.
            build_commit: &measurement.made_by,
            build_number: 0,
            cpu_info: machine.host.cpu.as_deref().unwrap_or_default(),
            gpu_info: names(|gpu| &gpu.description).join(", "),
            backends: backends.join(","),
            model_filename: model.path.to_string_lossy().into_owned(),
            model_type: &model.description,
            model_size: model.tensor_bytes,
            model_n_params: model.n_params,
            n_batch: settings.n_batch,
            n_ubatch: settings.n_ubatch,
            n_threads: if row.n_gen > 0 { placement.threads } else { placement.threads_batch },
            cpu_mask: "0x0",
            cpu_strict: false,
            poll: 50,
            type_k: ty(settings.type_k),
            type_v: ty(settings.type_v),
            n_gpu_layers: placement.n_gpu_layers,
            n_cpu_moe: 0,
            split_mode: "layer",
            main_gpu: 0,
            no_kv_offload: !settings.offload_kqv,
            flash_attn: match settings.flash_attn {
                FlashAttention::On => 1,
                FlashAttention::Off => 0,
                _ => -1,
            },
            devices: if devices.is_empty() { "none".to_owned() } else { devices.join("/") },
            tensor_split: tensor_split(&placement.tensor_split),
            tensor_buft_overrides: overrides(placement),
            use_mmap: settings.mmap,
            use_direct_io: false,
            embeddings: false,
            no_op_offload: u32::from(!settings.op_offload),
            no_host: false,
            repack: settings.repack,
            fit_target: 0,
            fit_min_ctx: 0,
            n_prompt: row.n_prompt,
            n_gen: row.n_gen,
            n_depth: row.n_depth,
            test_time: &row.time,
            avg_ns: avg_ns as u64,
            stddev_ns: stddev_ns as u64,
            avg_ts,
            stddev_ts,
            samples_ns,
            samples_ts,
        }
    }
}

/// As it prints them: `0.00`, `20.00/13.00`.
fn tensor_split(shares: &[f32]) -> String {
    match shares {
        [] => "0.00".to_owned(),
        some => some.iter().map(|share| format!("{share:.2}")).collect::<Vec<_>>().join("/"),
    }
}

fn overrides(placement: &Measured) -> String {
    let gpus: Vec<&str> = placement.devices.iter().filter_map(|device| device.device.as_deref()).collect();
    let rules = placement.overrides.iter().map(|rule| {
        let at = match rule.place {
            Place::Host => "CPU",
            Place::Gpu(gpu) => gpus.get(gpu).copied().unwrap_or_default(),
        };
        format!("{}={at}", rule.pattern)
    });
    match rules.collect::<Vec<_>>() {
        none if none.is_empty() => "none".to_owned(),
        some => some.join(";"),
    }
}

/// The mean, and the deviation of a sample (of one: 0).
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
