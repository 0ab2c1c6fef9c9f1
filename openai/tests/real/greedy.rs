//! Greedy texts compared with llama.cpp's, token by token.

use autoplace::Model;
use autoplace::chat::Conversation;
use autoplace::generate::{GenerateRequest, Prompt};
use serde_json::{Value, json};

use crate::rows::{Outcome, Row};
use crate::setting::{Setting, THREADS};
use crate::texts::{PROMPTS, QUESTIONS};
use crate::tools::{LlamaServer, output};

/// Maximum tokens of each text.
const TOKENS: usize = 48;

/// The context length for both sides.
const N_CTX: u32 = 4096;

pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    let model = setting.load(N_CTX)?;
    let prompts = prompts(&model, setting)?;
    let mut ours = Vec::new();
    for prompt in &prompts {
        ours.push(greedy(&model, model.generate(prompt.as_slice()).max_tokens(TOKENS))?);
    }
    drop(model);
    let server = LlamaServer::start(setting)?;
    let mut bare = if server.is_none() { Some(setting.bare(N_CTX)?) } else { None };
    let mut differ = Vec::new();
    for (prompt, ours) in prompts.iter().zip(&ours) {
        let theirs = match (&server, &mut bare) {
            (Some(server), _) => by_llama_server(server, prompt)?,
            (_, Some(bare)) => bare.greedy(prompt, TOKENS)?,
            _ => return Err("there is no peer".into()),
        };
        if *ours != theirs {
            let same = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
            differ.push(format!(
                "the prompt {prompt:?} is gone on with the same {same} tokens, then {:?} here, {:?} there",
                ours.get(same..),
                theirs.get(same..)
            ));
        }
    }
    let peer = if server.is_some() { "llama-server" } else { "libllama" };
    let mut rows = vec![Row::compared(format!("texts of {TOKENS} tokens, beside {peer}"), prompts.len(), differ)];
    drop(server);
    if setting.is_whole() {
        rows.push(by_llama_completion(setting)?);
    }
    Ok(rows)
}

/// Some of the texts, from llama-completion. The program loads the model for each text.
fn by_llama_completion(setting: &Setting) -> Outcome<Row> {
    let model = setting.load(N_CTX)?;
    let (tokens, context, threads) = (TOKENS.to_string(), N_CTX.to_string(), THREADS.to_string());
    let (mut differ, mut compared) = (Vec::new(), 0);
    for prompt in PROMPTS.iter().step_by(3) {
        compared += 1;
        let ours = model.generate(*prompt).temp(0.0).max_tokens(TOKENS).text()?;
        let arguments = ["-p", prompt, "-n", &tokens, "-c", &context, "-t", &threads, "--temp", "0"];
        let arguments = [&arguments[..], &["-no-cnv", "--no-display-prompt", "--no-escape"]].concat();
        let (printed, _) = output(setting, "llama-completion", &arguments)?.ok_or("llama-completion is not there")?;
        // The program prints a mark at the end, which is not part of the text.
        let theirs = printed.trim_end().trim_end_matches("[end of text]");
        if ours.trim_end() != theirs.trim_end() {
            differ.push(format!("{prompt:?}: {ours:?} here, {printed:?} there"));
        }
    }
    Ok(Row::compared("texts, beside llama-completion", compared, differ))
}

/// Half of the prompts as plain text, half as chat messages.
fn prompts(model: &Model, setting: &Setting) -> Outcome<Vec<Vec<i32>>> {
    let count = if setting.is_whole() { PROMPTS.len() } else { PROMPTS.len() / 4 };
    let template = setting.template()?;
    let mut prompts = Vec::new();
    for text in &PROMPTS[..count] {
        prompts.push(model.tokenize(Prompt::text(*text))?);
    }
    for text in &QUESTIONS[..count] {
        let conversation = Conversation::from_json(vec![json!({"role": "user", "content": text})]);
        prompts.push(model.tokenize(&template.render(&conversation.add_generation_prompt(true))?)?);
    }
    Ok(prompts)
}

/// The likeliest tokens one after the other, up to the end of the text.
pub(crate) fn greedy(model: &Model, generate: GenerateRequest) -> Outcome<Vec<i32>> {
    tokens(model, generate.temp(0.0))
}

/// The tokens of a text, up to the text's end.
pub(crate) fn tokens(model: &Model, generate: GenerateRequest) -> Outcome<Vec<i32>> {
    let mut session = model.session()?;
    let sequence = session.begin(generate)?;
    let mut tokens = Vec::new();
    let vocab = model.native()?.vocab();
    loop {
        for piece in session.step()?.filter(|piece| piece.sequence == sequence) {
            tokens.extend(piece.token.filter(|token| !vocab.is_eog(*token)));
            if piece.end.is_some() {
                return Ok(tokens);
            }
        }
    }
}

fn by_llama_server(server: &LlamaServer, prompt: &[i32]) -> Outcome<Vec<i32>> {
    let body = json!({
        "prompt": prompt, "n_predict": TOKENS, "temperature": 0, "cache_prompt": false, "return_tokens": true,
    });
    let answer: Value = server.ask("/completion", &body)?;
    let mut tokens: Vec<i32> = serde_json::from_value(answer["tokens"].clone())?;
    // The server's list includes the token that ended the text.
    if answer["stop_type"] == "eos" && answer["tokens_predicted"] == tokens.len() {
        tokens.pop();
    }
    Ok(tokens)
}
