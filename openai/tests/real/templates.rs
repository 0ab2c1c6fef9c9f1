//! Renderings of the model's own template, compared with those of transformers and llama-server.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use autoplace::chat::{ChatTemplate, Conversation};
use autoplace::gguf::Header;
use serde_json::{Value, json};

use crate::conversations::conversations;
use crate::rows::{Outcome, Row};
use crate::setting::Setting;
use crate::tools::LlamaServer;

/// A script that renders requests with transformers. Each request is a line of JSON.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../xtask/templates/render.py");

/// For each model, transformers' renderings of the conversations. `cargo xtask real --write` records them.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/templates.json");

pub(crate) fn check(setting: &Setting) -> Outcome<Vec<Row>> {
    let header = Header::open(&setting.path)?;
    let template = setting.template()?;
    let all: Vec<Vec<Value>> = conversations().into_iter().map(|conversation| conversation.messages).collect();
    let ours: Vec<Option<String>> = all.iter().map(|messages| rendered(&template, messages)).collect();

    let mut rows = Vec::new();
    match &setting.python {
        Some(python) => {
            let theirs = by_transformers(python, &header, &template, &all)?;
            rows.push(compared("conversations, beside transformers", &all, &ours, &theirs));
            if std::env::var_os("AUTOPLACE_REAL_WRITE").is_some() {
                record(&setting.name, &theirs)?;
            }
        }
        None => rows.push(beside_the_record(setting, &all, &ours)?),
    }
    if let Some(server) = LlamaServer::start(setting)? {
        rows.push(beside_llama_server(&server, &all, &ours)?);
    }
    Ok(rows)
}

/// Our rendering; `None` if the template refuses the conversation.
fn rendered(template: &ChatTemplate, messages: &[Value]) -> Option<String> {
    let conversation = Conversation::from_json(messages.to_vec()).add_generation_prompt(true);
    template.render(&conversation).ok().map(autoplace::chat::Rendered::into_string)
}

/// A row that compares two lists.
fn compared(what: &str, all: &[Vec<Value>], ours: &[Option<String>], theirs: &[Option<String>]) -> Row {
    let differ = all.iter().zip(ours).zip(theirs).filter(|((_, ours), theirs)| ours != theirs);
    let differ =
        differ.map(|((messages, ours), theirs)| format!("{}: {ours:?} here, {theirs:?} there", json!(messages)));
    Row::compared(what, all.len(), differ.collect())
}

fn by_transformers(
    python: &Path,
    header: &Header,
    template: &ChatTemplate,
    all: &[Vec<Value>],
) -> Outcome<Vec<Option<String>>> {
    let source = template.source_for(false).ok_or("the model ships no template")?;
    let vocabulary = header.array("tokenizer.ggml.tokens")?.ok_or("the model has no vocabulary")?;
    let special = |name: &str| -> Outcome<Option<String>> {
        let Some(id) = header.uint(&format!("tokenizer.ggml.{name}_token_id"))? else { return Ok(None) };
        let text = vocabulary.strings()?.nth(usize::try_from(id)?).transpose()?;
        Ok(text.map(String::from_utf8).transpose()?)
    };
    let tokens = json!({"bos_token": special("bos")?, "eos_token": special("eos")?});
    let mut child = Command::new(python).arg(SCRIPT).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    let mut answers = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
    let mut rendered = Vec::new();
    for messages in all {
        let request = json!({
            "messages": messages, "template": source, "special_tokens": tokens, "add_generation_prompt": true,
        });
        writeln!(stdin, "{request}")?;
        stdin.flush()?;
        let answer: Value = serde_json::from_str(&answers.next().ok_or("transformers has ended")??)?;
        rendered.push(answer["text"].as_str().map(str::to_owned));
    }
    drop(stdin);
    child.wait()?;
    Ok(rendered)
}

/// Hashes (XXH3) in hexadecimal; null for a conversation that was refused.
fn hashes(rendered: &[Option<String>]) -> Vec<Value> {
    let hash = |text: &String| json!(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes())));
    rendered.iter().map(|text| text.as_ref().map_or(Value::Null, hash)).collect()
}

fn recorded() -> Outcome<Value> {
    match std::fs::read_to_string(RECORDED) {
        Ok(text) => Ok(serde_json::from_str(&text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(json!({})),
        Err(error) => Err(error.into()),
    }
}

fn record(name: &str, theirs: &[Option<String>]) -> Outcome<()> {
    let mut all = recorded()?;
    all[name] = hashes(theirs).into();
    Ok(std::fs::write(RECORDED, serde_json::to_string_pretty(&all)? + "\n")?)
}

fn beside_the_record(setting: &Setting, all: &[Vec<Value>], ours: &[Option<String>]) -> Outcome<Row> {
    let what = "conversations, beside what transformers has made of them";
    let recorded = recorded()?;
    let Some(theirs) = recorded[&setting.name].as_array() else {
        return Ok(
            Row::new(what).fails(format!("{RECORDED} does not have {}: `cargo xtask real --write`", setting.name))
        );
    };
    if theirs.len() != all.len() {
        return Ok(Row::new(what).fails(format!("{RECORDED} has other conversations: `cargo xtask real --write`")));
    }
    let differ = all.iter().zip(hashes(ours)).zip(theirs).zip(ours).filter(|(((_, ours), theirs), _)| ours != *theirs);
    let differ = differ.map(|(((messages, _), _), text)| format!("{}: {text:?} here", json!(messages)));
    Ok(Row::compared(what, all.len(), differ.collect()))
}

/// Compares our renderings with llama-server's. Two kinds of conversations are left out: those that end with an
/// assistant's message, because llama-server continues it, and those with a message in parts, because llama-server
/// joins the parts before the template sees them (common/chat.cpp, `concat_content_parts`). llama-server also removes
/// the BOS token at the beginning, because its tokenizer adds it again.
fn beside_llama_server(server: &LlamaServer, all: &[Vec<Value>], ours: &[Option<String>]) -> Outcome<Row> {
    let without_bos = |text: &str| text.strip_prefix("<bos>").unwrap_or(text).to_owned();
    let (mut differ, mut compared) = (Vec::new(), 0);
    for (messages, ours) in all.iter().zip(ours) {
        let is_in_parts = messages.iter().any(|message| message["content"].is_array());
        if is_in_parts || messages.last().is_some_and(|last| last["role"] == "assistant") {
            continue;
        }
        compared += 1;
        let answer: Outcome<Value> = server.ask("/apply-template", &json!({"messages": messages}));
        let theirs = answer.ok().and_then(|answer| answer["prompt"].as_str().map(without_bos));
        if ours.as_deref().map(without_bos) != theirs {
            differ.push(format!("{}: {ours:?} here, {theirs:?} there", json!(messages)));
        }
    }
    Ok(Row::compared("conversations, beside llama-server", compared, differ))
}
