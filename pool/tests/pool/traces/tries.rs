//! Scratch.
use super::ours::Ours;
use super::rivals::{LlamaSwap, Ollama, Router};
use super::sim::{self, Caching, Report, Rule};
use super::{Trace, random, slow_and_fast};

fn line(name: &str, report: &Report, best: f64) {
    println!(
        "  {name:12} {:6.0} {:.3} load {:5.0} queue {:4.0} slower {:4.0} shared {:4.0} loads {} moves {}",
        report.waited, report.waited / best, report.parts.load, report.parts.queue, report.parts.slower, report.parts.shared,
        report.loads, report.moves
    );
}

#[test]
#[ignore]
fn tries() {
    let seeds = std::env::var("SEEDS").unwrap_or("21..27".into());
    let (from, to) = seeds.split_once("..").unwrap();
    let kinds = std::env::var("KINDS").unwrap_or("sr".into());
    let names = std::env::var("VARIANTS").unwrap_or("base".into());
    for kind in kinds.chars() {
        for caching in [Caching::Nothing, Caching::Pages] {
            let mut sums = std::collections::BTreeMap::<String, Vec<f64>>::new();
            for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
                let Trace { machine, models, wishes, .. } = match kind {
                    's' => slow_and_fast(seed),
                    'r' => random(seed),
                    'a' => super::agent(seed),
                    'c' => super::chat_and_titles(seed),
                    _ => super::hundred_users(seed),
                };
                let trace = (&machine, &models[..], &wishes[..]);
                let rivals: [&mut dyn Rule; 3] = [&mut LlamaSwap, &mut Ollama::default(), &mut Router];
                let rivals = rivals.map(|rule| sim::run(trace, caching, rule));
                let best = rivals.iter().map(|report| report.waited).fold(f64::INFINITY, f64::min);
                println!("{kind} {caching:?} {seed}");
                line("swap", &rivals[0], best);
                line("ollama", &rivals[1], best);
                for name in names.split(',') {
                    let mut rule = Ours::new((&machine, &models), false);
                    rule.variant(name);
                    (0..16).for_each(|index| autoplace_pool::knobs::set(index, None));
                    for knob in name.split('+').filter_map(|part| part.strip_prefix('k')) {
                        let (index, value) = knob.split_once('=').unwrap();
                        autoplace_pool::knobs::set(index.parse().unwrap(), Some(value.parse().unwrap()));
                    }
                    let begun = std::time::Instant::now();
                    let report = sim::run(trace, caching, &mut rule);
                    line(name, &report, best);
                    if seed == from.parse::<u64>().unwrap() {
                        println!("    in {:.1} s", begun.elapsed().as_secs_f64());
                    }
                    sums.entry(name.to_owned()).or_default().push(report.waited / best);
                }
            }
            for (name, ratios) in sums {
                let over = ratios.iter().filter(|ratio| **ratio > 1.0).count();
                let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
                println!("== {kind} {caching:?} {name}: mean {mean:.3} over one {over} of {} {ratios:.2?}", ratios.len());
            }
        }
    }
}
