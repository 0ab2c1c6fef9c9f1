//! `templates`: checks that chat templates render in the same way as in Hugging Face's transformers.
//!
//! transformers renders every template of a folder with every history of `chat/tests/chat_templates/histories.json`
//! (`render.py`, in a virtual environment). An ignored test of `chat/tests/chat/chat_templates.rs` compares the results
//! with ours. The test fails if texts differ, or if we refuse a template that transformers renders. Templates that only
//! transformers refuses are counted (docs/chat-templates.md lists them). `--fixtures` records transformers' results for
//! the templates of the tests, so that the tests need neither Python nor a network.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::python;
use crate::selected::run_tests;
use crate::workspace::{Workspace, run};

const FIXTURES: &str = "chat/tests/chat_templates";

/// One template with one history.
struct Case {
    template: String,
    history: String,
    request: Value,
}

/// Compares the templates of a folder.
pub(crate) fn compare(workspace: &Workspace, folder: &Path) -> Result<()> {
    let folder = fs::canonicalize(folder).with_context(|| folder.display().to_string())?;
    let rendered = workspace.target.join("templates.json");
    fs::write(&rendered, rendered_there(workspace, &folder)?)?;
    let mut test = workspace.cargo(&["test", "--package=autoplace-chat", "--test=chat"]);
    test.args(["--", "--ignored", "--nocapture", "a_folder_of_templates"]);
    run_tests(test.env("AUTOPLACE_TEMPLATES", folder).env("AUTOPLACE_TEMPLATES_RENDERED", rendered))
}

/// A package of published templates. They are not committed, because they have the licences of their models.
const PUBLISHED: &str = "@huggingface/ollama-utils@0.0.18";

/// Compares the different templates of a published package.
pub(crate) fn published(workspace: &Workspace) -> Result<()> {
    let folder = workspace.target.join("templates");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    let packed = Command::new(npm).args(["pack", "--silent", PUBLISHED]).current_dir(&folder).output();
    let packed = packed.context("cannot start npm")?;
    ensure!(packed.status.success(), "npm pack: {}", String::from_utf8_lossy(&packed.stderr));
    let archive = String::from_utf8(packed.stdout)?;
    run(Command::new("tar").args(["-xzf", archive.trim()]).current_dir(&folder))?;
    let source = fs::read_to_string(folder.join("package/src/chat-template-automap.ts"))?;
    let mut seen = Vec::new();
    for entry in source.split("gguf:").skip(1) {
        let text = literal(entry.trim_start()).context("a template is not a literal")?;
        if !seen.contains(&text) {
            fs::write(folder.join(format!("{:03}.jinja", seen.len())), &text)?;
            seen.push(text);
        }
    }
    println!("{} templates of {PUBLISHED}", seen.len());
    compare(workspace, &folder)
}

/// The value of the JavaScript literal at the start of `source`.
fn literal(source: &str) -> Option<String> {
    let mut chars = source.chars();
    let quote = chars.next().filter(|quote| "\"'`".contains(*quote))?;
    let mut text = String::new();
    loop {
        match chars.next()? {
            c if c == quote => return Some(text),
            '\\' => match chars.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    text.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                }
                c => text.push(c),
            },
            c => text.push(c),
        }
    }
}

/// Records the expected results of the tests.
pub(crate) fn fixtures(workspace: &Workspace) -> Result<()> {
    let root = workspace.root.join(FIXTURES);
    for set in ["families", "language"] {
        fs::write(root.join(format!("{set}.json")), rendered_there(workspace, &root.join(set))?)?;
    }
    Ok(())
}

/// The results of transformers for the templates of a folder as JSON, indexed by template and history.
fn rendered_there(workspace: &Workspace, folder: &Path) -> Result<String> {
    let cases = cases(workspace, folder)?;
    let requests: Vec<&Value> = cases.iter().map(|case| &case.request).collect();
    let mut rendered = Map::new();
    for (case, mut answer) in cases.iter().zip(transformers(workspace, &requests)?) {
        // The error messages of Python are not compared.
        if let Some(error) = answer.get_mut("error") {
            *error = true.into();
        }
        let of_template = rendered.entry(case.template.clone()).or_insert_with(|| json!({}));
        of_template[&case.history] = answer;
    }
    Ok(serde_json::to_string_pretty(&rendered)? + "\n")
}

fn read_json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

fn cases(workspace: &Workspace, folder: &Path) -> Result<Vec<Case>> {
    let data = workspace.root.join(FIXTURES);
    let histories = read_json(&data.join("histories.json"))?;
    let tools = read_json(&data.join("tools.json"))?;
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    ensure!(!files.is_empty(), "{} has no *.jinja", folder.display());
    let mut cases = Vec::new();
    for file in files {
        let source = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let template = file.file_stem().unwrap_or_default().to_string_lossy();
        for history in histories.as_array().into_iter().flatten() {
            let mut request = history.clone();
            if let Some(set) = history["tools"].as_str() {
                request["tools"] = tools[set].clone();
            }
            if let Some(fields) = request.as_object_mut() {
                fields.remove("name");
            }
            request["template"] = source.as_str().into();
            request["special_tokens"] = json!({"bos_token": "<s>", "eos_token": "</s>"});
            request["now"] = json!([2025, 7, 4, 16, 5, 9]);
            cases.push(Case {
                template: template.clone().into_owned(),
                history: history["name"].as_str().unwrap_or_default().to_owned(),
                request,
            });
        }
    }
    Ok(cases)
}

/// The results of transformers for these requests.
fn transformers(workspace: &Workspace, requests: &[&Value]) -> Result<Vec<Value>> {
    let program = python::environment(workspace, "xtask/templates/requirements.txt")?;
    let script = workspace.root.join("xtask/templates/render.py");
    answers(Command::new(program).arg(script), requests)
}

/// Runs a command that answers each request with one line.
fn answers(command: &mut Command, requests: &[&Value]) -> Result<Vec<Value>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let mut lines = String::new();
    for request in requests {
        lines.push_str(&format!("{request}\n"));
    }
    let mut stdin = child.stdin.take().context("no stdin")?;
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().ok().context("the writer has ended")??;
    let answers = std::str::from_utf8(&output.stdout)?.lines();
    let answers: Vec<Value> =
        answers.filter(|line| !line.is_empty()).map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(
        answers.len() == requests.len(),
        "{} answers to {} requests ({})",
        answers.len(),
        requests.len(),
        output.status
    );
    Ok(answers)
}
