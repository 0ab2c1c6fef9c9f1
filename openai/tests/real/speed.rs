//! Tokens per second. We and llama-bench are measured in turn, with the same number of threads. The ratio is not
//! asserted, because it is meaningful only on a quiet machine.

use autoplace::Model;
use autoplace::generate::Prompt;
use serde_json::Value;

use crate::rows::{Outcome, Row};
use crate::setting::{Setting, THREADS};
use crate::tools::output;

/// The number of tokens in the prompt, and in the generated text.
const PROMPT: usize = 512;
const GENERATED: usize = 128;

/// Number of rounds. In each round both sides are measured once.
const ROUNDS: usize = 3;

/// Tokens per second, for the prompt and for the generation.
#[derive(Default)]
struct Speeds {
    prompt: Vec<f64>,
    generation: Vec<f64>,
}

pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    if setting.tool("llama-bench").is_none() {
        return Ok(Vec::new());
    }
    let (mut ours, mut theirs) = (Speeds::default(), Speeds::default());
    for _ in 0..ROUNDS {
        measure_ours(setting, &mut ours)?;
        measure_theirs(setting, &mut theirs)?;
    }
    let row = |what: String, ours: Vec<f64>, theirs: Vec<f64>| {
        let (ours, theirs) = (median(ours), median(theirs));
        let result = format!("{ours:.1} tok/s here, {theirs:.1} there: {:.2} times as fast", ours / theirs);
        Row::new(what).result(result)
    };
    Ok(vec![
        row(format!("a prompt of {PROMPT} tokens, beside llama-bench"), ours.prompt, theirs.prompt),
        row(format!("{GENERATED} tokens behind one, beside llama-bench"), ours.generation, theirs.generation),
    ])
}

fn measure_ours(setting: &Setting, speeds: &mut Speeds) -> Outcome<()> {
    let model: Model = setting.load(1024)?;
    let mut tokens = model.tokenize(Prompt::text(include_str!("../../../docs/using.md")))?;
    tokens.truncate(PROMPT);
    for (prompt, generated) in [(&tokens[..], 1), (&tokens[..1], GENERATED)] {
        // The text is generated twice. The first time is a warm-up, which llama-bench does not count either.
        let mut statistics = None;
        for _ in 0..2 {
            let mut stream = model.generate(prompt).temp(0.0).ignore_eos().max_tokens(generated).stream()?;
            for piece in &mut stream {
                piece?;
            }
            statistics = Some(stream.statistics());
        }
        let statistics = statistics.ok_or("nothing was generated")?;
        if generated == 1 {
            speeds.prompt.push(statistics.prompt_tokens_per_second());
        } else {
            speeds.generation.push(statistics.tokens_per_second());
        }
    }
    Ok(())
}

fn measure_theirs(setting: &Setting, speeds: &mut Speeds) -> Outcome<()> {
    let (prompt, generated, threads) = (PROMPT.to_string(), GENERATED.to_string(), THREADS.to_string());
    let arguments = ["-p", &prompt, "-n", &generated, "-t", &threads, "-r", "1", "-o", "json"];
    let (listed, _) = output(setting, "llama-bench", &arguments)?.ok_or("llama-bench is not there")?;
    let rows: Vec<Value> = serde_json::from_str(&listed)?;
    for row in &rows {
        let speed = row["avg_ts"].as_f64().ok_or("llama-bench measures no speed")?;
        if row["n_gen"] == 0 {
            speeds.prompt.push(speed);
        } else {
            speeds.generation.push(speed);
        }
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
