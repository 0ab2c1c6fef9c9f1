//! Measuring what ggml's operations do on this machine's devices, and the figures in words.

use std::collections::BTreeSet;
use std::time::Duration;

use autoplace::gguf::TensorType;
use autoplace::load::{self, RatesRequest, build_name, measure_rates};
use autoplace::machine::{Machine, MeasuredRates, MeasurementCache};
use indicatif::{ProgressBar, ProgressStyle};

use crate::devices::{fact, line};

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
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The figures of one device, a line each.
pub(crate) fn describe(text: &mut String, rates: &MeasuredRates) {
    let how = match rates.threads {
        Some(1) => "with 1 thread".to_owned(),
        Some(threads) => format!("with {threads} threads"),
        None => "by ggml's operations".to_owned(),
    };
    fact(text, "measured", how);
    let mut say = |what: &str, values: &[String]| {
        let row: String = values.iter().map(|value| format!("{value:>9}")).collect();
        line(text, format_args!("      {what:<24}{row}"));
    };
    let heading = |tokens: u32| format!("{tokens} tok.");
    if !rates.weights.is_empty() {
        let batches: BTreeSet<u32> = rates.prompts.iter().map(|rate| rate.n_tokens).collect();
        let head: Vec<String> = ["GB/s".to_owned()].into_iter().chain(batches.iter().map(|&n| heading(n))).collect();
        say("weights", &head);
        for rate in &rates.weights {
            let of_type = |n: &u32| {
                let wanted = (rate.tensor_type, rate.experts, *n);
                let mut prompts = rates.prompts.iter();
                let found = prompts.find(|prompt| (prompt.tensor_type, prompt.experts, prompt.n_tokens) == wanted);
                found.map_or_else(String::new, |prompt| tera(prompt.flops))
            };
            let row: Vec<String> =
                [giga(rate.bytes_per_second)].into_iter().chain(batches.iter().map(of_type)).collect();
            let experts = if rate.experts { ", experts" } else { "" };
            say(&format!("{}{experts}", rate.tensor_type), &row);
        }
    }
    if !rates.attention.is_empty() {
        let heads = |ty: TensorType, size: u32, n_gqa: u32| format!("{ty}, head {size}, GQA {n_gqa}");
        say("attention", &["GB/s".to_owned()]);
        for rate in &rates.attention {
            say(&heads(rate.kv_type, rate.head_size, rate.n_gqa), &[giga(rate.bytes_per_second)]);
        }
        for rate in &rates.prompt_attention {
            let row = [String::new(), tera(rate.flops), heading(rate.n_tokens)];
            say(&heads(rate.kv_type, rate.head_size, rate.n_gqa), &row);
        }
    }
    let micro = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    say("rest of a block", &[micro(rates.layer_ns)]);
    if rates.routing_ns > 0 {
        say("choice of experts", &[micro(rates.routing_ns)]);
    }
    if rates.activations_per_second > 0 {
        say("rest of a prompt, G/s", &[giga(rates.activations_per_second)]);
    }
    if let Some(link) = &rates.link {
        say("to the device, GB/s", &[giga(link.upload)]);
        say("from the device, GB/s", &[giga(link.download)]);
        say("a token there and back", &[micro(link.crossing_ns)]);
    }
}

/// Billions.
fn giga(per_second: u64) -> String {
    format!("{:.1}", per_second as f64 / 1e9)
}

/// Billions or trillions of operations.
fn tera(flops: u64) -> String {
    if flops >= 1_000_000_000_000 {
        format!("{:.1} T", flops as f64 / 1e12)
    } else {
        format!("{:.0} G", flops as f64 / 1e9)
    }
}
