//! The flags for sampling.

use super::Row;

pub(super) const ROWS: &[Row] = &[
    Row::flag(&["-s", "--seed"], &["--seed"]).usual(&["-1"]).library("`.seed(n)` of a request"),
    Row::flag(&["--temp", "--temperature"], &["--temp"]).library("`.temp(t)` of a request"),
    Row::flag(&["--top-k"], &["--top-k"]).library("`.top_k(k)` of a request"),
    Row::flag(&["--top-p"], &["--top-p"]).library("`.top_p(p)` of a request"),
    Row::flag(&["--min-p"], &["--min-p"]).library("`.min_p(p)` of a request"),
    Row::flag(&["--typical", "--typical-p"], &["--typical-p"]).library("`typical_p` of `Sampling`"),
    Row::flag(&["--top-nsigma", "--top-n-sigma"], &["--top-n-sigma"]).library("`top_n_sigma` of `Sampling`"),
    Row::flag(&["--dynatemp-range"], &["--dynatemp-range"]).library("`dynatemp_range` of `Sampling`"),
    Row::flag(&["--dynatemp-exp"], &["--dynatemp-exp"]).library("`dynatemp_exponent` of `Sampling`"),
    Row::flag(&["--xtc-probability"], &["--xtc-probability"]).library("`.xtc(probability, threshold)` of a request"),
    Row::flag(&["--xtc-threshold"], &["--xtc-threshold"]).library("the same"),
    Row::flag(&["--repeat-penalty"], &["--repeat-penalty"]).library("`.repeat_penalty(p)` of a request"),
    Row::flag(&["--repeat-last-n"], &["--repeat-last-n"]).library("`repeat_last_n` of `Sampling`"),
    Row::flag(&["--presence-penalty"], &["--presence-penalty"]).library("`.presence_penalty(p)` of a request"),
    Row::flag(&["--frequency-penalty"], &["--frequency-penalty"]).library("`.frequency_penalty(p)` of a request"),
    Row::flag(&["--dry-multiplier"], &["--dry-multiplier"]).library("`.dry(multiplier)` of a request"),
    Row::flag(&["--dry-base"], &["--dry-base"]).library("`dry_base` of `Sampling`"),
    Row::flag(&["--dry-allowed-length"], &["--dry-allowed-length"]).library("`dry_allowed_length` of `Sampling`"),
    Row::flag(&["--dry-penalty-last-n"], &["--dry-penalty-last-n"]).library("`dry_penalty_last_n` of `Sampling`"),
    Row::flag(&["--dry-sequence-breaker"], &["--dry-sequence-breaker"]).library("`dry_sequence_breakers` of `Sampling`"),
    Row::flag(&["--mirostat"], &["--mirostat"]).library("`.mirostat(m, tau)` of a request"),
    Row::flag(&["--mirostat-ent"], &["--mirostat-ent"]).library("the same"),
    Row::flag(&["--mirostat-lr"], &["--mirostat-lr"]).library("`mirostat_eta` of `Sampling`"),
    Row::flag(&["--adaptive-target"], &["--adaptive-target"]).library("`.adaptive_p(target)` of a request"),
    Row::flag(&["--adaptive-decay"], &["--adaptive-decay"]).library("`adaptive_decay` of `Sampling`"),
    Row::flag(&["--samplers"], &["--samplers"]).library("`.samplers(list)` of a request"),
    Row::reads(&["--sampler-seq", "--sampling-seq"], sampler_seq, "`--samplers`, by their names").library("`.samplers(list)` of a request"),
    Row::flag(&["-l", "--logit-bias"], &["--logit-bias"]).library("`.logit_bias(token, bias)` and `.logit_bias_text(text, bias)` of a request"),
    Row::switch(&["--ignore-eos"], "--ignore-eos").library("`.ignore_eos()` of a request, for measurements: an end token is a token like any other, as in vLLM; llama.cpp never chooses it, and neither does a request with a bias against it"),
    Row::flag(&["--grammar"], &["--grammar"]).library("`.constraint(c)` of a request: `Constraint::gbnf`, `Constraint::lark`, `Constraint::regex`"),
    Row::flag(&["--grammar-file"], &["--grammar-file"]).library("the same: `Constraint::grammar` tells GBNF from Lark"),
    Row::flag(&["-j", "--json-schema"], &["--json-schema"]).library("`.constraint(c)` of a request: `Constraint::json_schema`"),
    Row::flag(&["-jf", "--json-schema-file"], &["--json-schema-file"]).library("the same"),
    Row::refused_switch(&["-bs", "--backend-sampling"], "samplers on a device take memory that no plan counts"),
];

/// Translates a text in which each letter stands for a sampler (common/sampling.cpp, `common_sampler_type_to_chr`).
fn sampler_seq(letters: &str) -> Result<Vec<String>, String> {
    let name = |letter| match letter {
        'd' => Ok("dry"),
        'k' => Ok("top_k"),
        'y' => Ok("typ_p"),
        'p' => Ok("top_p"),
        's' => Ok("top_n_sigma"),
        'm' => Ok("min_p"),
        't' => Ok("temperature"),
        'x' => Ok("xtc"),
        'e' => Ok("penalties"),
        'a' => Ok("adaptive_p"),
        other => Err(format!("`{other}` is not a sampler; the samplers are d, k, y, p, s, m, t, x, e and a")),
    };
    let names: Vec<&str> = letters.chars().map(name).collect::<Result<_, _>>()?;
    Ok(vec![format!("--samplers={}", names.join(";"))])
}
