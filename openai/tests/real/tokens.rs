//! The tokens of texts, and the text of each token, compared with those of llama.cpp.

use std::io::Write;

use autoplace::Model;
use autoplace::chat::{ChatTemplate, Conversation};
use autoplace::generate::Prompt;
use bare_llama::Bare;
use serde_json::{Value, json};

use crate::conversations::conversations;
use crate::rows::{Outcome, Row};
use crate::setting::Setting;
use crate::texts::texts;
use crate::tools::{LlamaServer, output};

/// How many texts are compared.
const TEXTS: usize = 2000;

/// How many texts llama-tokenize gets. The program loads the model for each of them.
const ALONE: usize = 20;

/// The program or library whose tokens ours are compared with.
enum Peer {
    Server(LlamaServer),
    Library(Bare),
}

impl Peer {
    fn start(setting: &Setting) -> Outcome<Self> {
        Ok(match LlamaServer::start(setting)? {
            Some(server) => Self::Server(server),
            None => Self::Library(setting.bare(512)?),
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Server(_) => "llama-server",
            Self::Library(_) => "libllama",
        }
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Outcome<Vec<i32>> {
        match self {
            Self::Server(server) => server.tokenize(text, add_special, parse_special),
            Self::Library(bare) => Ok(bare.tokenize(text, add_special, parse_special)),
        }
    }
}

pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    let model = setting.load(512)?;
    let peer = Peer::start(setting)?;
    let texts = texts(TEXTS, &controls(&model)?);
    let mut rows = vec![ways(&model, &peer, &texts)?, chats(&model, &setting.template()?, &peer)?];
    if let Peer::Server(server) = &peer {
        rows.push(pieces(&model, server)?);
        rows.push(alone(setting, &model, &texts)?);
    }
    Ok(rows)
}

/// The texts of all control tokens.
fn controls(model: &Model) -> Outcome<Vec<String>> {
    let vocab = model.native()?.vocab();
    let mut controls = Vec::new();
    for token in 0..vocab.n_tokens() as i32 {
        if vocab.is_control(token) {
            controls.push(String::from_utf8(vocab.piece(token, true)?)?);
        }
    }
    controls.retain(|text| !text.is_empty());
    Ok(controls)
}

/// Compares every text with every combination of tokenizer flags.
fn ways(model: &Model, peer: &Peer, texts: &[String]) -> Outcome<Row> {
    let mut differ = Vec::new();
    for text in texts {
        for add_special in [true, false] {
            for parse_special in [true, false] {
                let prompt = if parse_special { Prompt::markup(text) } else { Prompt::text(text) };
                let ours = model.tokenize(prompt.add_special(add_special));
                let theirs = peer.tokenize(text, add_special, parse_special)?;
                // For an empty text, llama.cpp's result is an empty list, and ours is BOS or an error.
                let is_same = match &ours {
                    _ if theirs.is_empty() => text.is_empty(),
                    Ok(ours) => *ours == theirs,
                    Err(_) => false,
                };
                if !is_same {
                    differ.push(format!(
                        "{:?} (add_special {add_special}, parse_special {parse_special}): {ours:?} here, {theirs:?} there",
                        text.chars().take(60).collect::<String>(),
                    ));
                }
            }
        }
    }
    let what = format!("{} texts in four ways, beside {}", texts.len(), peer.name());
    Ok(Row::compared(what, texts.len() * 4, differ))
}

/// Prompts of conversations. The messages contain no control tokens. A prompt can be split into the template's text and
/// the messages' texts. It must then have the same tokens as in one piece.
fn chats(model: &Model, template: &ChatTemplate, peer: &Peer) -> Outcome<Row> {
    let (mut differ, mut compared) = (Vec::new(), 0);
    for conversation in conversations().into_iter().filter(|conversation| conversation.control_tokens.is_none()) {
        let Ok(rendered) = template.render(&Conversation::from_json(conversation.messages).add_generation_prompt(true))
        else {
            continue;
        };
        compared += 1;
        let ours = model.tokenize(&rendered)?;
        let theirs = peer.tokenize(rendered.as_str(), false, true)?;
        if ours != theirs {
            differ.push(format!("{:?}: {ours:?} here, {theirs:?} there", rendered.as_str()));
        }
    }
    Ok(Row::compared(format!("prompts of conversations, beside {}", peer.name()), compared, differ))
}

/// The text of each token.
fn pieces(model: &Model, server: &LlamaServer) -> Outcome<Row> {
    let vocab = model.native()?.vocab();
    let mut differ = Vec::new();
    let step = (vocab.n_tokens() as usize / TEXTS).max(1);
    let tokens: Vec<i32> = (0..vocab.n_tokens() as i32).step_by(step).collect();
    for &token in &tokens {
        let ours = String::from_utf8_lossy(&vocab.piece(token, true)?).into_owned();
        let answer: Value = server.ask("/detokenize", &json!({"tokens": [token]}))?;
        let theirs = answer["content"].as_str().unwrap_or_default();
        // llama-server leaves out characters that are not complete.
        if ours != theirs && !ours.contains('\u{fffd}') {
            differ.push(format!("token {token}: {ours:?} here, {theirs:?} there"));
        }
    }
    Ok(Row::compared("texts of tokens, beside llama-server", tokens.len(), differ))
}

/// Some of the texts, from llama-tokenize, and all of them joined to one long text.
fn alone(setting: &Setting, model: &Model, texts: &[String]) -> Outcome<Row> {
    // llama-tokenize refuses an empty file.
    let fitting: Vec<&str> = texts.iter().filter(|text| !text.is_empty()).map(String::as_str).collect();
    let step = (fitting.len() / ALONE).max(1);
    let mut some: Vec<String> = fitting.iter().step_by(step).map(|&text| text.to_owned()).collect();
    some.push(fitting.join("\n"));
    let mut differ = Vec::new();
    for text in &some {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(text.as_bytes())?;
        let file = file.path().to_str().ok_or("the temporary folder's name is not valid text")?;
        // By default, llama-tokenize reads the two characters `\n` of a file as one line end.
        let arguments = ["-f", file, "--ids", "--log-disable", "--no-parse-special", "--no-escape"];
        let (listed, _) = output(setting, "llama-tokenize", &arguments)?.ok_or("llama-tokenize is not there")?;
        let theirs: Vec<i32> = serde_json::from_str(listed.trim())?;
        let ours = model.tokenize(Prompt::text(text))?;
        if ours != theirs {
            differ.push(format!("{:?}: {ours:?} here, {theirs:?} there", text.chars().take(60).collect::<String>()));
        }
    }
    Ok(Row::compared("texts of a file, one of them all others together, beside llama-tokenize", some.len(), differ))
}
