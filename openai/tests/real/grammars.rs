//! Texts that llama.cpp's published grammars constrain, compared with llama-server's token by token.

use std::path::{Path, PathBuf};

use autoplace::generate::{Constraint, Prompt};
use serde_json::{Value, json};

use crate::greedy::greedy;
use crate::rows::{Outcome, Row};
use crate::setting::Setting;
use crate::texts::PROMPTS;
use crate::tools::LlamaServer;

/// Maximum tokens of each text.
const TOKENS: usize = 48;

/// The context of both sides.
const N_CTX: u32 = 4096;

/// Number of texts for each grammar.
const TEXTS: usize = 6;

/// Compares the texts. Without the grammars or llama.cpp's programs, there are no rows.
pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    let Some(folder) = setting.grammars.as_deref().filter(|_| setting.is_whole()) else {
        return Ok(Vec::new());
    };
    let model = setting.load(N_CTX)?;
    let server = LlamaServer::start(setting)?.ok_or("llama-server is not there")?;
    let mut rows = Vec::new();
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
            let vocab = model.native()?.vocab();
            let mut theirs: Vec<i32> = serde_json::from_value(answer["tokens"].clone())?;
            theirs.retain(|token| !vocab.is_eog(*token));
            if ours != theirs {
                let read = |tokens: &[i32]| -> Outcome<String> {
                    let mut text = Vec::new();
                    for token in tokens {
                        vocab.append_piece(*token, true, &mut text)?;
                    }
                    Ok(String::from_utf8_lossy(&text).into_owned())
                };
                differ.push(format!("{text:?}: {:?} here, {:?} there", read(&ours)?, read(&theirs)?));
            }
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        rows.push(Row::compared(format!("texts of {name}, beside llama-server"), TEXTS, differ));
    }
    Ok(rows)
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
