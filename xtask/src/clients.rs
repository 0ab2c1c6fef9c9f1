//! `clients`: runs small programs of popular clients, in Python and JavaScript, against `autoplace serve`.
//!
//! In: lists of pinned packages (`xtask/clients`), and a model. The ignored test of `cli/tests/program/serve_client.rs`
//! runs each program of `xtask/clients/programs`. It reports each trial as a line of JSON. Out: the table in
//! docs/clients.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::document;
use crate::python;
use crate::workspace::{Workspace, run, succeeds};

/// Packages of OpenAI's own client and of the hub's test.
pub(crate) const OPENAI: &str = "xtask/clients/requirements.txt";
/// The package lists of the step `clients`, each with the programs of its clients. A program's name leaves out the
/// prefix `use_`.
const FEW: [(&str, &[&str]); 2] = [
    ("xtask/clients/few/requirements.txt", &["openai", "responses", "langchain", "litellm", "instructor"]),
    ("xtask/clients/messages/requirements.txt", &["anthropic"]),
];
/// The other clients in Python. Some of them need different versions of OpenAI's client.
const OTHERS: [(&str, &[&str]); 3] = [
    ("xtask/clients/agents/requirements.txt", &["agents", "pydantic_ai", "llm"]),
    ("xtask/clients/frameworks/requirements.txt", &["llama_index", "smolagents", "haystack"]),
    ("xtask/clients/crews/requirements.txt", &["dspy", "crewai"]),
];
const OF_JAVASCRIPT: [&str; 4] = ["openai", "anthropic", "langchain", "ai"];
/// Programs that drive coding agents. Two of the agents are packages of npm.
const CODERS: (&str, &[&str]) = ("xtask/clients/coders/requirements.txt", &["aider", "codex", "claude_code"]);

/// Tokens of context: for a client, and for a coding agent, which begins with a long prompt.
const CONTEXT: u32 = 4096;
const CONTEXT_OF_CODERS: u32 = 65_536;

/// The variables for the test: the programs, the model's file, the file for the report, and the packages of the coding
/// agents.
pub(crate) const PROGRAMS: &str = "AUTOPLACE_CLIENTS";
pub(crate) const MODEL: &str = "AUTOPLACE_CLIENT_MODEL";
const REPORT: &str = "AUTOPLACE_CLIENTS_REPORT";
const PACKAGES: &str = "AUTOPLACE_CODERS";

const DOCUMENT: &str = "docs/clients.md";
/// The marks around the table in the document.
const MARKS: [&str; 2] = ["<!-- the table of `cargo xtask clients` -->\n", "<!-- the end of the table -->"];

/// A program of a client.
pub(crate) struct Program {
    interpreter: PathBuf,
    file: PathBuf,
    context: u32,
}

/// Runs all clients with the given model or with the demo model. They need some hundred packages, so the CI does not
/// run them.
pub(crate) fn clients(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let (flags, models): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(|argument| &**argument).partition(|argument| argument.starts_with('-'));
    let (write, model) = match (&flags[..], &models[..]) {
        ([], models) if models.len() < 2 => (false, models.first()),
        (["--write"], models) if models.len() < 2 => (true, models.first()),
        _ => bail!("`clients` takes a model's file and `--write`"),
    };
    let (in_javascript, packages) = programs_in_javascript(workspace)?;
    let mut programs = of_few(workspace)?;
    programs.extend(programs_in_python(workspace, &OTHERS, CONTEXT)?);
    programs.extend(in_javascript);
    programs.extend(programs_in_python(workspace, &[CODERS], CONTEXT_OF_CODERS)?);
    let report = workspace.target.join("clients.jsonl");
    let _ = fs::remove_file(&report);
    let mut test = workspace.cargo(&["test", "--package=autoplace-cli", "--test=program"]);
    test.args(["--", "--ignored", "--nocapture", "small_programs_of_clients"]);
    test.env(PROGRAMS, list(&programs)?).env(REPORT, &report).env(PACKAGES, packages);
    if let Some(model) = model {
        let model = fs::canonicalize(model).with_context(|| format!("there is no model `{model}`"))?;
        test.env(MODEL, model);
    }
    let outcome = run(&mut test);
    // The table also lists failures.
    if write && let Ok(report) = fs::read_to_string(&report) {
        document::replace(&workspace.root.join(DOCUMENT), MARKS, &table(&report)?)?;
    }
    outcome
}

/// Installs the packages of npm. Returns the programs, and the folder of the coding agents' packages.
fn programs_in_javascript(workspace: &Workspace) -> Result<(Vec<Program>, PathBuf)> {
    ensure!(succeeds("npm", &["--version"]), "npm is missing: install Node.js 20 or newer");
    let install = |list: &str| -> Result<PathBuf> {
        let folder = workspace.target.join(format!("clients-{list}"));
        fs::create_dir_all(&folder)?;
        for file in ["package.json", "package-lock.json"] {
            fs::copy(workspace.root.join("xtask/clients").join(list).join(file), folder.join(file))?;
        }
        run(Command::new("npm").args(["ci", "--silent", "--no-audit", "--no-fund"]).current_dir(&folder))?;
        Ok(folder)
    };
    let coders = install("js-coders")?.join("node_modules");
    let folder = install("js")?;
    // A module looks for packages and for other modules in its own folder.
    fs::copy(workspace.root.join("xtask/clients/programs/common.mjs"), folder.join("common.mjs"))?;
    let programs = OF_JAVASCRIPT.iter().map(|name| {
        let file = folder.join(format!("use_{name}.mjs"));
        fs::copy(program(workspace, name, "mjs"), &file)?;
        Ok(Program { interpreter: PathBuf::from("node"), file, context: CONTEXT })
    });
    Ok((programs.collect::<Result<_>>()?, coders))
}

/// The clients of the step `clients`.
pub(crate) fn of_few(workspace: &Workspace) -> Result<Vec<Program>> {
    programs_in_python(workspace, &FEW, CONTEXT)
}

/// The programs of these package lists, each with the interpreter for its packages.
fn programs_in_python(workspace: &Workspace, lists: &[(&str, &[&str])], context: u32) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for (requirements, names) in lists {
        let interpreter = python::environment(workspace, requirements)?;
        programs.extend(names.iter().map(|name| Program {
            interpreter: interpreter.clone(),
            file: program(workspace, name, "py"),
            context,
        }));
    }
    Ok(programs)
}

fn program(workspace: &Workspace, name: &str, extension: &str) -> PathBuf {
    workspace.root.join(format!("xtask/clients/programs/use_{name}.{extension}"))
}

/// The programs in the form that the test reads: an interpreter, a file and a context on each line, separated by tabs.
pub(crate) fn list(programs: &[Program]) -> Result<String> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is no text");
    let line = |program: &Program| {
        Ok(format!("{}\t{}\t{}", text(&program.interpreter)?, text(&program.file)?, program.context))
    };
    Ok(programs.iter().map(line).collect::<Result<Vec<_>>>()?.join("\n"))
}

/// The trials of most clients, with their column headings. The last column of the table lists all other trials.
const TRIED: [(&str, &str); 5] = [
    ("text", "text"),
    ("stream", "stream"),
    ("form", "structured output"),
    ("call", "forced call"),
    ("result", "result of a tool"),
];

/// The report as a table: a line for each client on each API.
fn table(report: &str) -> Result<String> {
    let mut rows: BTreeMap<[String; 3], BTreeMap<String, bool>> = BTreeMap::new();
    for line in report.lines() {
        let trial: Value = serde_json::from_str(line).with_context(|| format!("the report: {line}"))?;
        let [client, version, surface, tried] = ["client", "version", "surface", "tried"]
            .map(|name| trial[name].as_str().map(str::to_owned).with_context(|| format!("no `{name}`: {line}")));
        rows.entry([client?, version?, surface?]).or_default().insert(tried?, trial["error"].is_null());
    }
    let mut table = String::from("| client | version | API |");
    TRIED.iter().for_each(|(_, head)| table += &format!(" {head} |"));
    table += " besides |\n|---|---|---|";
    table += &"---|".repeat(TRIED.len() + 1);
    table += "\n";
    let columns: BTreeSet<&str> = TRIED.iter().map(|(tried, _)| *tried).collect();
    for ([client, version, surface], trials) in &rows {
        table += &format!("| {client} | {version} | {surface} |");
        for (tried, _) in TRIED {
            table += &format!(" {} |", outcome(trials.get(tried).copied()));
        }
        let besides = trials.iter().filter(|(tried, _)| !columns.contains(&***tried));
        let besides = besides.map(|(tried, works)| match works {
            true => tried.clone(),
            false => format!("{tried}: {}", outcome(Some(false))),
        });
        let besides = besides.collect::<Vec<_>>().join(", ");
        table += &format!(" {} |\n", if besides.is_empty() { outcome(None) } else { &besides });
    }
    Ok(table)
}

fn outcome(works: Option<bool>) -> &'static str {
    match works {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "–",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_a_line_for_each_client_and_api() {
        let trial = |surface: &str, tried: &str, error: &str| {
            format!(r#"{{"client":"c","version":"1","surface":"{surface}","tried":"{tried}","error":{error}}}"#)
        };
        let report = [trial("messages", "text", "null"), trial("chat", "call", "\"bad\""), trial("chat", "x", "null")];
        let table = table(&report.join("\n")).unwrap();
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            ["| c | 1 | chat | – | – | – | **no** | – | x |", "| c | 1 | messages | yes | – | – | – | – | – |"]
        );
        assert!(super::table("{}").is_err());
    }
}
