//! Measures ggml's operations on this machine's devices, and describes the results.

use std::time::Duration;

use autoplace::load::{self, RatesRequest, build_name, measure_rates};
use autoplace::machine::{Machine, MatrixShape, MeasuredRates, MeasurementCache};

use crate::terminal::{bar, fact, line_to_stderr};

/// Measures the rates of all devices and stores them. If stderr is a terminal, shows a progress bar.
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
    let cache = MeasurementCache::user();
    cache.put_rates(machine, &build_name());
    if cache.host_rates(&machine.host, &build_name()).is_none() {
        line_to_stderr("note: the figures cannot be stored in the user's cache folder, so plans do not know them");
    }
    Ok(())
}

/// For each device, the figures that determine its generation speed: bytes of weights per second for each type, with
/// date and conditions. Of the other figures only the number is given, with date and method; the JSON contains their
/// values.
pub(crate) fn describe(rates: &MeasuredRates) -> impl Iterator<Item = String> {
    let how = match rates.threads {
        Some(1) => "with 1 thread".to_owned(),
        Some(threads) => format!("with {threads} threads"),
        None => "by ggml's operations".to_owned(),
    };
    let weights = rates.weights.iter().map(|rate| {
        let experts = if rate.experts { ", experts" } else { "" };
        let MatrixShape { n_in, n_out } = rate.shape;
        let shape = if n_in > 0 { format!(" {n_in} x {n_out}") } else { String::new() };
        let giga = |bytes: u64| bytes as f64 / 1e9;
        let used = rate.used.map(|used| format!(", {:.1} in use", giga(used.per_second))).unwrap_or_default();
        let taken = rate.conditions.as_ref().map(|taken| format!(", {taken}")).unwrap_or_default();
        let measured = giga(rate.bytes_per_second);
        format!("      {}{experts}{shape}: {measured:.1} GB/s of weights{used}{taken}", rate.tensor_type)
    });
    let mut others: Vec<(String, usize)> = Vec::new();
    for taken in rates.all_conditions().skip(rates.weights.len()).flatten() {
        let taken = taken.to_string();
        match others.iter_mut().find(|(known, _)| *known == taken) {
            Some((_, count)) => *count += 1,
            None => others.push((taken, 1)),
        }
    }
    let others = others.into_iter().map(|(taken, count)| {
        let s = if count == 1 { "" } else { "s" };
        format!("      {count} figure{s} of attention, prompts and links: {taken}")
    });
    [fact("measured", how)].into_iter().chain(weights).chain(others)
}
