//! Compares the demo model's text on the CPU with its text at every split between CPU and card.

use anyhow::Result;
use autoplace::llama_sys::Token;
use autoplace::machine::mib;
use autoplace::memory::FlashAttention;
use autoplace::plan::GpuLayers;
use autoplace::{Model, ModelBuilder};
use autoplace_measure::{Error, Outcome};
use serde::{Deserialize, Serialize};

use crate::setting::{Setting, Verdict, first};

const PROMPT: &str = "Once upon a time";
const TOKENS: usize = 96;
/// Tokens of context for the prompt and the generated tokens.
const CONTEXT: u32 = 256;

/// A card rounds differently from a CPU. A single rounding can change the choice of a token, and thereby the rest of
/// the text.
const ROUNDING: &str = "A card adds up in another order than a CPU, so that results may differ in their last bits; where two tokens are \
about as likely, the other one may be chosen, and from there on the text is another one.";

/// The text at one split.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) n_gpu_layers: u32,
    pub(crate) flash_attention: bool,
    #[serde(rename = "end")]
    pub(crate) outcome: Outcome,
    /// Number of generated tokens.
    pub(crate) tokens: usize,
    /// The number of tokens before the first difference from the CPU's text; `None` if there is no difference.
    pub(crate) differs_at: Option<usize>,
}

pub(crate) fn run(setting: &Setting) -> Result<Verdict> {
    let (mut rows, mut skipped): (Vec<Row>, Vec<String>) = (Vec::new(), Vec::new());
    for flash in [false, true] {
        let mut of_cpu = Vec::new();
        let (mut n_gpu_layers, mut layers) = (0, 0);
        while n_gpu_layers <= layers {
            // The CPU and one split are always measured.
            if let Some(why) = setting.ends(rows.len()).filter(|_| rows.len() > 1) {
                skipped.push(format!("{n_gpu_layers} layers and more, flash attention {flash}: {why}"));
                break;
            }
            let text = text(setting, n_gpu_layers, flash)?;
            if n_gpu_layers == 0 {
                (of_cpu, layers) = (text.tokens.clone(), text.layers);
            }
            rows.push(Row {
                n_gpu_layers,
                flash_attention: flash,
                tokens: text.tokens.len(),
                differs_at: first_difference(&of_cpu, &text.tokens).filter(|_| text.outcome == Outcome::Completed),
                outcome: text.outcome,
            });
            n_gpu_layers += 1;
        }
    }
    Ok(verdict(setting.simulated, &rows, &skipped))
}

struct Text {
    tokens: Vec<Token>,
    /// All layers of the model, the output layer included; 0 if it was not loaded.
    layers: u32,
    outcome: Outcome,
}

fn text(setting: &Setting, n_gpu_layers: u32, flash: bool) -> Result<Text> {
    let request = setting
        .request()
        .n_ctx(CONTEXT)
        .flash_attn(if flash { FlashAttention::On } else { FlashAttention::Off })
        .n_gpu_layers(GpuLayers::Exactly(n_gpu_layers));
    let rig = setting.rig("identical", mib(64)).open()?;
    let load = setting.load_on(&rig)?;
    let mut text = Text { tokens: Vec::new(), layers: 0, outcome: Outcome::Completed };
    if let Err(error) = text.generate(load(Model::builder(&setting.demo).request(request))) {
        text.outcome = Outcome::from_error(&error);
    }
    Ok(text)
}

impl Text {
    fn generate(&mut self, builder: ModelBuilder) -> Result<(), Error> {
        let model = builder.load()?;
        self.layers = model.placement().layers();
        let request = model.generate(PROMPT).temp(0.0).cache_prompt(false).ignore_eos().max_tokens(TOKENS);
        for piece in request.stream()?.pieces() {
            self.tokens.extend(piece?.token);
        }
        Ok(())
    }
}

/// The length of the common prefix; `None` if the texts are equal.
fn first_difference(one: &[i32], other: &[i32]) -> Option<usize> {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    (same < one.len().max(other.len())).then_some(same)
}

fn verdict(simulated: bool, rows: &[Row], skipped: &[String]) -> Verdict {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let what = match (row.outcome.reason(), row.differs_at) {
                (Some(why), _) => why.to_owned(),
                (None, Some(at)) if simulated && !row.flash_attention => {
                    format!("differs from the CPU's after {at} tokens, with the CPU's own arithmetic")
                }
                (None, _) if row.tokens < TOKENS => format!("{} tokens instead of {TOKENS}", row.tokens),
                (None, _) => return None,
            };
            let flash = if row.flash_attention { "on" } else { "off" };
            Some(format!("{} layers, flash attention {flash}: {what}", row.n_gpu_layers))
        })
        .collect();
    let of_splits = || rows.iter().filter(|row| row.n_gpu_layers > 0);
    let splits = of_splits().count();
    let same = of_splits().filter(|row| row.outcome == Outcome::Completed && row.differs_at.is_none()).count();
    let soonest = of_splits().filter_map(|row| row.differs_at).min();
    let soonest =
        soonest.map_or(String::new(), |at| format!("; the first difference after {at} tokens: rounding may differ"));
    let first = first(&wrong);
    Verdict {
        passed: wrong.is_empty() && splits > 0,
        line: format!("{same} of {splits} splits give the CPU's {TOKENS} tokens{soonest}{first}"),
        json: serde_json::json!({
            "prompt": PROMPT,
            "tokens": TOKENS,
            "rows": rows,
            "wrong": wrong,
            "skipped": skipped,
            "note": ROUNDING,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Row, TOKENS, first_difference, verdict};

    #[test]
    fn the_first_difference_is_after_the_common_prefix() {
        assert_eq!(first_difference(&[1, 2, 3], &[1, 2, 3]), None);
        assert_eq!(first_difference(&[1, 2, 3], &[1, 9, 3]), Some(1));
        assert_eq!(first_difference(&[1, 2, 3], &[1, 2]), Some(2));
        assert_eq!(first_difference(&[], &[]), None);
    }

    fn row(n_gpu_layers: u32, flash_attention: bool, differs_at: Option<usize>) -> Row {
        Row { n_gpu_layers, flash_attention, outcome: Outcome::Completed, tokens: TOKENS, differs_at }
    }

    #[test]
    fn the_cpu_must_give_the_same_text_but_a_card_may_round_differently() {
        let rows = [row(0, false, None), row(1, false, Some(5))];
        let simulated = verdict(true, &rows, &[]);
        assert!(!simulated.passed && simulated.line.contains("after 5 tokens"));
        assert!(verdict(false, &rows, &[]).passed);
        let fused = [row(0, true, None), row(1, true, Some(5))];
        assert!(verdict(true, &fused, &[]).passed);
    }

    #[test]
    fn a_split_that_generates_nothing_always_fails() {
        let mut dead = row(1, true, None);
        dead.outcome = Outcome::Failed("signal: 6".to_owned());
        let judged = verdict(false, &[row(0, true, None), dead], &[]);
        assert!(!judged.passed && judged.line.contains("signal: 6"));
        assert!(!verdict(false, &[row(0, true, None)], &[]).passed);
    }
}
