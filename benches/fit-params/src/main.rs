//! How long llama.cpp's own fit takes (`common_fit_params`, called through llama-cpp-2), beside `autoplace plan`, on the same files;
//! and how fast what it chooses for a mixture of experts would be, beside our plan.
//!
//! Two llama.cpps do not link into one program: the fit runs here, and `autoplace` is started as a program. Both are asked the same:
//! a context of 8192 tokens with one row of logits, on a simulated card of which the plan's own headroom stays free. They take turns,
//! round by round. Placements are compared without turns, and without the program: the planner itself is linked.

#[path = "../../../autoplace/tests/experts_support/mod.rs"]
mod experts_support;
#[path = "../../../autoplace/benches/files/mod.rs"]
mod files;

mod experts;
mod fit;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use llama_cpp_2::llama_backend::LlamaBackend;

use fit::Fitted;

/// Files, and the memory of the card in GiB, all of it free: first one of 24, then one on which a part of the file fits. What does
/// not fit must find room on the real host.
const CASES: [(files::Model, usize); 7] = [
    (files::LLAMA_8B, 24),
    (files::LLAMA_70B, 24),
    (files::QWEN3_30B_A3B, 24),
    (files::GEMMA3_27B, 24),
    (files::LLAMA_8B, 5),
    (files::QWEN3_30B_A3B, 12),
    (files::GEMMA3_27B, 12),
];
/// Tokens of context.
const CONTEXT: u32 = 8192;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, rounds] = arguments.as_slice() else {
        bail!("usage: autoplace-fit-params AUTOPLACE-PROGRAM ROUNDS");
    };
    // 0: the placements alone.
    let rounds: usize = rounds.parse().context("ROUNDS is a number")?;
    let program = std::path::absolute(program)?;
    let folder = tempfile::tempdir()?;

    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    if rounds > 0 {
        times(&program, folder.path(), rounds)?;
        println!();
    }
    experts::compare(folder.path())
}

fn times(program: &Path, folder: &Path, rounds: usize) -> Result<()> {
    println!(
        "| file | tokens | card | by arithmetic | with probe | program | llama.cpp's fit | loads | fit / probed | fit / program | layers |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (model, card) in CASES {
        let path = model.write(folder);
        fit::set_card(card << 30);
        let row = measure(program, &path, card, rounds)?.row();
        println!("| {} | {} | {card} GiB {row}", model.name, model.n_vocab());
    }
    Ok(())
}

/// Times in milliseconds, one per round, and what came out.
#[derive(Default)]
struct Pair {
    arithmetic: Vec<f64>,
    probed: Vec<f64>,
    program: Vec<f64>,
    fit: Vec<f64>,
    layers: u64,
    fitted: Fitted,
}

fn measure(program: &Path, path: &Path, card: usize, rounds: usize) -> Result<Pair> {
    // Unmeasured: the file is in the page cache afterwards, and the headroom is known.
    let first = plan(program, path, card, true)?;
    let mut pair = Pair::default();
    for round in 0..rounds {
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                let begin = Instant::now();
                let answer = plan(program, path, card, true)?;
                pair.program.push(milliseconds(begin));
                pair.probed.push(answer.took);
                pair.arithmetic.push(plan(program, path, card, false)?.took);
                pair.layers = answer.layers;
            } else {
                let begin = Instant::now();
                pair.fitted = fit::fit(path, CONTEXT, first.headroom)?;
                pair.fit.push(milliseconds(begin));
            }
        }
    }
    Ok(pair)
}

/// What `autoplace plan --json` says.
struct Answer {
    layers: u64,
    headroom: u64,
    took: f64,
}

fn plan(program: &Path, path: &Path, card: usize, probe: bool) -> Result<Answer> {
    let mut command = Command::new(program);
    command.arg("plan").arg(path).args([
        "--json",
        &format!("--ctx={CONTEXT}"),
        "--gpu",
        &format!("simulated card={card}GiB"),
    ]);
    if !probe {
        command.arg("--no-probe");
    }
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} failed: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let headroom = json["devices"][0]["headroom"].as_u64();
    Ok(Answer {
        layers: json["n_gpu_layers"].as_u64().context("n_gpu_layers")?,
        headroom: headroom.context("headroom")?,
        took: json["took_ms"]["total"].as_f64().context("took_ms")?,
    })
}

fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

impl Pair {
    /// The cells behind the file's name and vocabulary: medians (minima), the median of the ratios of pairs, layers ours and theirs.
    fn row(&self) -> String {
        let ratio = |ours: &[f64]| {
            let ratios: Vec<f64> = self
                .fit
                .iter()
                .zip(ours)
                .map(|(fit, ours)| fit / ours)
                .collect();
            median(&ratios)
        };
        let theirs = match self.fitted.layers {
            ..0 => "all".to_owned(),
            layers => layers.to_string(),
        };
        let how = match self.fitted.overrides[..] {
            [] => "",
            _ => ", experts on the host",
        };
        format!(
            "| {} | {} | {} | {} | {} | {:.0} | {:.0} | {}; {theirs}{how} |",
            cell(&self.arithmetic),
            cell(&self.probed),
            cell(&self.program),
            cell(&self.fit),
            self.fitted.loads,
            ratio(&self.probed),
            ratio(&self.program),
            self.layers,
        )
    }
}

fn cell(times: &[f64]) -> String {
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    format!("{:.1} ({least:.1}) ms", median(times))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
