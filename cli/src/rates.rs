//! Measuring what ggml's operations do on this machine's devices, and the figures in words.

use std::time::Duration;

use autoplace::load::{self, RatesRequest, build_name, measure_rates};
use autoplace::machine::{Machine, MeasuredRates, MeasurementCache};
use indicatif::{ProgressBar, ProgressStyle};

use crate::devices::fact;

/// Measures all devices, with a progress bar where stderr is a terminal, and keeps the figures.
pub(crate) fn measure(machine: &mut Machine, within: Option<Duration>) -> Result<(), load::Error> {
    let mut request = RatesRequest::full();
    request.within = within;
    let bar = bar(0, "measuring {msg} {wide_bar} {pos}/{len}");
    let measured = measure_rates(machine, &request, None, |progress| {
        bar.set_length(progress.total as u64);
        bar.set_message(progress.device.to_owned());
        bar.set_position(progress.done as u64);
    });
    bar.finish_and_clear();
    measured?;
    MeasurementCache::user().put_rates(machine, &build_name());
    Ok(())
}

/// Shows itself on a terminal only.
pub(crate) fn bar(steps: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    ProgressStyle::with_template(template).into_iter().fold(bar, ProgressBar::with_style)
}

/// What decides how fast a device generates: bytes of weights per second, by their type. The rest is in the JSON.
pub(crate) fn describe(rates: &MeasuredRates) -> impl Iterator<Item = String> {
    let how = match rates.threads {
        Some(1) => "with 1 thread".to_owned(),
        Some(threads) => format!("with {threads} threads"),
        None => "by ggml's operations".to_owned(),
    };
    let weights = rates.weights.iter().map(|rate| {
        let experts = if rate.experts { ", experts" } else { "" };
        let giga = rate.bytes_per_second as f64 / 1e9;
        format!("      {}{experts}: {giga:.1} GB/s of weights", rate.tensor_type)
    });
    [fact("measured", how)].into_iter().chain(weights)
}
