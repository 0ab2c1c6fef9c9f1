//! Tokens per second, beside llama-bench with the same number of threads and flash attention.
//!
//! The two sides take turns, and each turn gives a ratio of their speeds. A comparison fails only if the ratio is below
//! [`BAR`] in every turn. Other programs may disturb one side of a turn, but rarely the same side of all turns.

use autoplace::Model;
use autoplace::generate::{Prompt, Statistics};
use autoplace::llama_sys::Token;
use serde_json::Value;

use crate::rows::{Outcome, Row};
use crate::setting::{Setting, THREADS};
use crate::tools::output;

/// The number of tokens in the prompt, and in the generated text.
const PROMPT: usize = 512;
const GENERATED: usize = 128;

/// Number of turns. In each turn both sides are measured once.
const TURNS: usize = 3;

/// Our speed divided by llama-bench's must reach this in at least one turn.
const BAR: f64 = 0.9;

/// Tokens per second.
struct Speeds {
    prompt: f64,
    generation: f64,
}

pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    if setting.tool("llama-bench").is_none() {
        return Ok(Vec::new());
    }
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        // The order alternates, so that neither side always runs second.
        turns.push(if turn % 2 == 0 {
            let ours = measure_ours(setting)?;
            (ours, measure_theirs(setting)?)
        } else {
            let theirs = measure_theirs(setting)?;
            (measure_ours(setting)?, theirs)
        });
    }
    let row = |what: String, speed: fn(&Speeds) -> f64| {
        let all = |side: fn(&(Speeds, Speeds)) -> &Speeds| turns.iter().map(|turn| speed(side(turn))).collect();
        let (ours, theirs): (Vec<f64>, Vec<f64>) = (all(|turn| &turn.0), all(|turn| &turn.1));
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        let listed: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let (ours, theirs, ratio) = (median(ours), median(theirs), median(ratios.clone()));
        let result =
            format!("{ours:.1} tok/s here, {theirs:.1} there: {ratio:.2} times as fast (turns: {})", listed.join(", "));
        let row = Row::new(format!("{what}, beside llama-bench")).result(result);
        match ratios.iter().any(|ratio| *ratio >= BAR) {
            true => row,
            false => row.fails(format!("the ratio is below {BAR} in every turn")),
        }
    };
    Ok(vec![
        row(format!("a prompt of {PROMPT} tokens"), |speeds| speeds.prompt),
        row(format!("{GENERATED} tokens after one"), |speeds| speeds.generation),
    ])
}

fn measure_ours(setting: &Setting) -> Outcome<Speeds> {
    let model: Model = setting.load(1024)?;
    let mut tokens = model.tokenize(Prompt::text(include_str!("../../../docs/using.md")))?;
    tokens.truncate(PROMPT);
    let of_text = |prompt: &[Token], generated: usize| -> Outcome<Statistics> {
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
        match statistics.cached_tokens {
            0 => Ok(statistics),
            cached => Err(format!("{cached} tokens of the prompt were not computed").into()),
        }
    };
    let (prompt, generation) = (of_text(&tokens, 1)?, of_text(&tokens[..1], GENERATED)?);
    Ok(Speeds { prompt: prompt.prompt_tokens_per_second(), generation: generation.tokens_per_second() })
}

fn measure_theirs(setting: &Setting) -> Outcome<Speeds> {
    let (prompt, generated, threads) = (PROMPT.to_string(), GENERATED.to_string(), THREADS.to_string());
    let arguments = ["-p", &prompt, "-n", &generated, "-t", &threads, "-fa", "1", "-r", "1", "-o", "json"];
    let (listed, _) = output(setting, "llama-bench", &arguments)?.ok_or("llama-bench is not there")?;
    let rows: Vec<Value> = serde_json::from_str(&listed)?;
    let speed = |is_prompt: bool| -> Outcome<f64> {
        let row = rows.iter().find(|row| (row["n_gen"] == 0) == is_prompt);
        Ok(row.and_then(|row| row["avg_ts"].as_f64()).ok_or("llama-bench measures no speed")?)
    };
    Ok(Speeds { prompt: speed(true)?, generation: speed(false)? })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
