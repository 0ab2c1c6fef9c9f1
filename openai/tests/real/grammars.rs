//! Texts that follow llama.cpp's published grammars. They are compared with llama-server's, token by token, and
//! llama.cpp's own parser checks them.

use std::path::{Path, PathBuf};

use autoplace::Model;
use autoplace::generate::{Constraint, Prompt};
use autoplace::llama_sys::{self, Candidates, Sampler};
use serde_json::{Value, json};

use crate::greedy::{greedy, tokens};
use crate::rows::{Outcome, Row};
use crate::setting::Setting;
use crate::texts::PROMPTS;
use crate::tools::LlamaServer;

/// Maximum tokens of each text.
const TOKENS: usize = 48;

/// The context length for both sides.
const N_CTX: u32 = 4096;

/// Number of texts for each grammar.
const TEXTS: usize = 6;

/// Maximum tokens of a sampled text. Most texts are cut there.
const SAMPLED_TOKENS: usize = 96;

/// Without the grammars, nothing is compared. Without llama-server, only llama.cpp's own parser is used.
pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    let Some(folder) = setting.grammars.as_deref() else {
        return Ok(Vec::new());
    };
    let model = setting.load(N_CTX)?;
    let mut rows = Vec::new();
    for path in grammars(folder)? {
        rows.push(sampled(&model, &std::fs::read_to_string(&path)?, &name(&path))?);
    }
    let Some(server) = LlamaServer::start(setting)? else {
        return Ok(rows);
    };
    for path in grammars(folder)? {
        let grammar = std::fs::read_to_string(&path)?;
        let mut differ = Vec::new();
        for text in &PROMPTS[..TEXTS] {
            let prompt = model.tokenize(Prompt::text(*text))?;
            let generate = model.generate(prompt.as_slice()).constraint(Constraint::gbnf(&*grammar));
            let ours = greedy(&model, generate.max_tokens(TOKENS))?;
            let body = json!({
                "prompt": prompt, "n_predict": TOKENS, "temperature": 0, "grammar": grammar,
                "cache_prompt": false, "return_tokens": true,
            });
            let answer: Value = server.ask("/completion", &body)?;
            let native = model.native()?;
            let mut theirs: Vec<i32> = serde_json::from_value(answer["tokens"].clone())?;
            theirs.retain(|token| !native.vocab().is_eog(*token));
            if ours != theirs {
                let (ours, theirs) = (read(&native, &ours)?, read(&native, &theirs)?);
                differ.push(format!("{text:?}: {ours:?} here, {theirs:?} there"));
            }
        }
        rows.push(Row::compared(format!("texts of {}, beside llama-server", name(&path)), TEXTS, differ));
    }
    Ok(rows)
}

/// Samples texts with the grammar, and passes each to llama.cpp's own grammar parser.
fn sampled(model: &Model, grammar: &str, name: &str) -> Outcome<Row> {
    let native = model.native()?;
    let mut refused = Vec::new();
    let (mut whole, mut lengths) = (0, 0);
    for (seed, text) in (1..).zip(&PROMPTS[..TEXTS]) {
        let generate = model.generate(*text).constraint(Constraint::gbnf(grammar));
        let generate = generate.temp(1.0).seed(seed).max_tokens(SAMPLED_TOKENS);
        let text = tokens(model, generate)?;
        let is_whole = text.len() < SAMPLED_TOKENS;
        whole += usize::from(is_whole);
        lengths += text.len();
        if let Some(at) = first_refused(&native, grammar, &text, is_whole)? {
            refused.push(format!("seed {seed}: {:?} is refused at token {at}", read(&native, &text)?));
        }
    }
    let mut row = Row::compared(format!("sampled texts of {name}, by llama.cpp's parser"), TEXTS, refused);
    row.result += &format!("; {lengths} tokens, {whole} ended by themselves");
    Ok(row)
}

/// The index of the first token that llama.cpp's grammar does not allow. The index after the last token means that the
/// grammar does not allow the text to end there.
///
/// A token that ends within a character is checked together with the next one. llama.cpp refuses the first bytes of a
/// character if a negated class has any character that begins with these bytes (`llama_grammar_match_partial_char`):
/// `[^\x85]` then refuses a no-break space whose two bytes are two tokens.
fn first_refused(native: &llama_sys::Model, grammar: &str, text: &[i32], is_whole: bool) -> Outcome<Option<usize>> {
    let vocab = native.vocab();
    let mut parser = Sampler::chain(native)?.grammar(grammar, "root")?.greedy()?;
    let ends: Vec<i32> = (0..vocab.n_tokens() as i32).filter(|token| vocab.is_eog(*token)).collect();
    let mut candidates = Candidates::default();
    let logits = vec![0.0; vocab.n_tokens() as usize];
    let mut bytes = Vec::new();
    for at in 0..=text.len() {
        if let Some(token) = text.get(at) {
            vocab.append_piece(*token, true, &mut bytes)?;
            let is_cut = std::str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_none());
            if is_cut {
                parser.accept(*token)?;
                continue;
            }
        }
        let asked = match text.get(at) {
            Some(token) => std::slice::from_ref(token),
            None if is_whole => ends.as_slice(),
            None => return Ok(None),
        };
        // Only these tokens are checked against the grammar. To check the whole vocabulary would take a minute for each
        // text.
        let mut mask = vec![0_u32; logits.len().div_ceil(32)];
        asked.iter().for_each(|token| mask[*token as usize / 32] |= 1 << (token % 32));
        candidates.set(&logits, Some(&mask));
        parser.apply(&mut candidates)?;
        if candidates.iter().all(|candidate| candidate.logit() == f32::NEG_INFINITY) {
            return Ok(Some(at));
        }
        if let Some(token) = text.get(at) {
            parser.accept(*token)?;
        }
    }
    Ok(None)
}

fn read(native: &llama_sys::Model, tokens: &[i32]) -> Outcome<String> {
    let mut text = Vec::new();
    for token in tokens {
        native.vocab().append_piece(*token, true, &mut text)?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The files of the folder, sorted by name.
fn grammars(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<Outcome<Vec<PathBuf>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "gbnf"));
    files.sort();
    match files.len() {
        8.. => Ok(files),
        n => Err(format!("{} has {n} grammars", folder.display()).into()),
    }
}
