//! `clients`: runs small programs of popular clients, in Python and JavaScript, against `autoplace serve`.
//!
//! In: lists of pinned packages (`xtask/clients`). Out: the ignored test of `cli/tests/program/serve_client.rs`, which
//! runs each program of `xtask/clients/programs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::python;
use crate::workspace::{Workspace, run, succeeds};

/// Packages of OpenAI's own client and of the hub's test.
pub(crate) const OPENAI: &str = "xtask/clients/requirements.txt";
/// Packages for the clients of the step `clients`, and the clients' programs, named without the prefix `use_`.
const FEW: [(&str, &[&str]); 2] = [
    ("xtask/clients/few/requirements.txt", &["openai", "responses", "langchain", "litellm", "instructor"]),
    ("xtask/clients/messages/requirements.txt", &["anthropic"]),
];
/// The other clients in Python. Some of them need different versions of OpenAI's client.
const OTHERS: [(&str, &[&str]); 3] = [
    (
        "xtask/clients/agents/requirements.txt",
        &["agents", "agents_responses", "pydantic_ai", "pydantic_ai_responses", "llm"],
    ),
    ("xtask/clients/frameworks/requirements.txt", &["llama_index", "smolagents", "haystack"]),
    ("xtask/clients/crews/requirements.txt", &["dspy", "crewai"]),
];
const OF_JAVASCRIPT: [&str; 4] = ["openai", "langchain", "ai", "ai_openai"];

/// Runs all clients. They need some hundred packages, so the CI does not run them.
pub(crate) fn clients(workspace: &Workspace) -> Result<()> {
    let mut programs = of_few(workspace)?;
    programs.extend(programs_in_python(workspace, &OTHERS)?);
    ensure!(succeeds("npm", &["--version"]), "npm is missing: install Node.js 20 or newer");
    let folder = workspace.target.join("clients-js");
    fs::create_dir_all(&folder)?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(workspace.root.join("xtask/clients/js").join(file), folder.join(file))?;
    }
    run(Command::new("npm").args(["ci", "--silent", "--no-audit", "--no-fund"]).current_dir(&folder))?;
    for name in OF_JAVASCRIPT {
        // A module looks for packages from its own folder.
        let file = folder.join(format!("use_{name}.mjs"));
        fs::copy(program(workspace, name, "mjs"), &file)?;
        programs.push((PathBuf::from("node"), file));
    }
    let mut test = workspace.cargo(&["test", "--package=autoplace-cli", "--test=program"]);
    test.args(["--", "--ignored", "--nocapture", "small_programs_of_clients"]);
    run(test.env(PROGRAMS, list(&programs)?))
}

/// The variable with the programs: an interpreter and a file on each line, separated by a tab.
pub(crate) const PROGRAMS: &str = "AUTOPLACE_CLIENTS";

/// The clients of the step `clients`.
pub(crate) fn of_few(workspace: &Workspace) -> Result<Vec<(PathBuf, PathBuf)>> {
    programs_in_python(workspace, &FEW)
}

/// The programs of these package lists, each with the interpreter that has the packages.
fn programs_in_python(workspace: &Workspace, lists: &[(&str, &[&str])]) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut programs = Vec::new();
    for (requirements, names) in lists {
        let python = python::environment(workspace, requirements)?;
        programs.extend(names.iter().map(|name| (python.clone(), program(workspace, name, "py"))));
    }
    Ok(programs)
}

fn program(workspace: &Workspace, name: &str, extension: &str) -> PathBuf {
    workspace.root.join(format!("xtask/clients/programs/use_{name}.{extension}"))
}

pub(crate) fn list(programs: &[(PathBuf, PathBuf)]) -> Result<String> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is no text");
    let lines = programs.iter().map(|(with, file)| Ok(format!("{}\t{}", text(with)?, text(file)?)));
    Ok(lines.collect::<Result<Vec<_>>>()?.join("\n"))
}
