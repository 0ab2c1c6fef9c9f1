//! `templates`: whether chat templates render here as Hugging Face's transformers renders them.
//!
//! Every template of a folder x every history of `chat/tests/chat_templates/histories.json` goes through transformers
//! (`render.py`, in a virtual environment that this makes) and through `autoplace template --batch`. It fails where
//! texts differ, or where we refuse what transformers renders; what we render and transformers refuses is counted
//! (docs/chat-templates.md says which). `--fixtures` writes what transformers makes of the tests' own templates, so
//! that the tests need neither Python nor a network.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::python;
use crate::workspace::{Workspace, run};

const FIXTURES: &str = "chat/tests/chat_templates";

/// Differences that are shown whole.
const SHOWN: usize = 10;

/// One template with one history.
struct Case {
    template: String,
    history: String,
    request: Value,
}

/// Compares the templates of a folder.
pub(crate) fn compare(workspace: &Workspace, folder: &Path) -> Result<()> {
    let cases = cases(workspace, folder)?;
    let requests: Vec<&Value> = cases.iter().map(|case| &case.request).collect();
    let theirs = transformers(workspace, &requests)?;
    run(&mut workspace.cargo(&["build", "--workspace", "--bin=autoplace"]))?;
    let program = format!("autoplace{}", std::env::consts::EXE_SUFFIX);
    let program = workspace.target.join("debug").join(program);
    let ours = |requests: &[&Value]| answers(Command::new(&program).args(["template", "--batch"]), requests);
    let mut answered = ours(&requests)?;
    // Where a template shows no tools, transformers leaves them out and says nothing.
    let is_told = |answer: &Value| answer["error"].as_str().is_some_and(|it| it.contains("shows no tools"));
    let told: Vec<usize> = (0..answered.len()).filter(|&it| is_told(&answered[it])).collect();
    let without: Vec<Value> = told
        .iter()
        .map(|&index| {
            let mut request = requests[index].clone();
            request["tools"] = Value::Null;
            request
        })
        .collect();
    let again = ours(&without.iter().collect::<Vec<_>>())?;
    for (index, answer) in told.into_iter().zip(again) {
        answered[index] = answer;
    }
    let ours = answered;

    let mut differences = Vec::new();
    let mut all_lenient = 0;
    println!("{:<60} equal  both refuse  rendered here, refused there  differs", "template");
    let mut all = cases.iter().zip(theirs.iter().zip(&ours)).peekable();
    while let Some((first, _)) = all.peek() {
        let name = first.template.as_str();
        let (mut equal, mut refused, mut lenient, mut differs) = (0, 0, 0, 0);
        while let Some((case, (theirs, ours))) = all.next_if(|(case, _)| case.template == name) {
            match (theirs.get("text"), ours.get("text")) {
                (Some(theirs), Some(ours)) if theirs == ours => equal += 1,
                (None, None) => refused += 1,
                (None, Some(_)) => lenient += 1,
                _ => {
                    differs += 1;
                    differences.push(difference(case, theirs, ours));
                }
            }
        }
        all_lenient += lenient;
        println!("{name:<60} {equal:>5}  {refused:>11}  {lenient:>28}  {differs:>7}");
    }
    println!(
        "\n{} renderings, {} differ, {all_lenient} are refused by transformers alone",
        cases.len(),
        differences.len()
    );
    for difference in differences.iter().take(SHOWN) {
        println!("\n{difference}");
    }
    ensure!(
        differences.is_empty(),
        "{} of {} renderings are not those of transformers",
        differences.len(),
        cases.len()
    );
    Ok(())
}

/// A difference in words, from where it begins.
fn difference(case: &Case, theirs: &Value, ours: &Value) -> String {
    let said = |answer: &Value| match (answer["text"].as_str(), answer["error"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, error) => format!("(refused) {}", error.unwrap_or_default()),
    };
    let (theirs, ours) = (said(theirs), said(ours));
    let same = theirs.chars().zip(ours.chars()).take_while(|(a, b)| a == b).count();
    let excerpt = |text: &str| -> String { text.chars().skip(same.saturating_sub(30)).take(90).collect() };
    format!(
        "{} with `{}`, at character {same}:\n  transformers {:?}\n  autoplace    {:?}",
        case.template,
        case.history,
        excerpt(&theirs),
        excerpt(&ours)
    )
}

/// Writes what the tests compare with.
pub(crate) fn fixtures(workspace: &Workspace) -> Result<()> {
    let root = workspace.root.join(FIXTURES);
    for set in ["families", "language"] {
        let cases = cases(workspace, &root.join(set))?;
        let requests: Vec<&Value> = cases.iter().map(|case| &case.request).collect();
        let mut expected = Map::new();
        for (case, mut answer) in cases.iter().zip(transformers(workspace, &requests)?) {
            // What Python says of a failure is its own.
            if let Some(error) = answer.get_mut("error") {
                *error = true.into();
            }
            let of_template = expected.entry(case.template.clone()).or_insert_with(|| json!({}));
            of_template[&case.history] = answer;
        }
        let text = serde_json::to_string_pretty(&expected)? + "\n";
        fs::write(root.join(format!("{set}.json")), text)?;
    }
    Ok(())
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
            request["control_tokens"] = json!([]);
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

/// What transformers makes of these requests.
fn transformers(workspace: &Workspace, requests: &[&Value]) -> Result<Vec<Value>> {
    let program = python::environment(workspace, "xtask/templates/requirements.txt")?;
    let script = workspace.root.join("xtask/templates/render.py");
    answers(Command::new(program).arg(script), requests)
}

/// One answer per request, each a line.
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
