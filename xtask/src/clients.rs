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
use crate::selected::run_tests;
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

/// Tokens of context for a client.
const CONTEXT: u32 = 4096;
/// Tokens of context for a coding agent, which begins with a long prompt.
const CONTEXT_OF_CODERS: u32 = 65_536;

/// The environment variable that gives the test the list of programs.
pub(crate) const PROGRAMS: &str = "AUTOPLACE_CLIENTS";
/// The environment variable that gives the test the model's file.
pub(crate) const MODEL: &str = "AUTOPLACE_CLIENT_MODEL";
/// The environment variable that gives the test the file for its report.
const REPORT: &str = "AUTOPLACE_CLIENTS_REPORT";
/// The environment variable that gives the test the packages of the coding agents.
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

/// The words of the verb.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments<'a> {
    write: bool,
    model: Option<&'a str>,
    /// The names of the programs to run, such as `openai`. If the list is empty, all programs run.
    only: Vec<&'a str>,
}

impl<'a> Arguments<'a> {
    fn read(arguments: &'a [String]) -> Result<Self> {
        let mut read = Self::default();
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(word) = rest.next() {
            match word {
                "--write" => read.write = true,
                "--only" => read.only.push(rest.next().context("`--only` takes the name of a program")?),
                model if read.model.is_none() && !model.starts_with('-') => read.model = Some(model),
                _ => bail!("`clients` takes a model's file, `--write` and `--only PROGRAM`, not `{word}`"),
            }
        }
        Ok(read)
    }

    /// Whether the program is to run, that is, whether its name, or its name with its language (`openai.mjs`), is in
    /// the list of `--only`.
    fn is_wanted(&self, program: &Path) -> bool {
        let name = |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().replacen("use_", "", 1));
        let names = [name(program.file_stem()), name(program.file_name())];
        self.only.is_empty() || names.iter().flatten().any(|name| self.only.contains(&name.as_str()))
    }
}

/// Runs all clients, with a model or with the demo model. They need some hundred packages, so the CI does not run them.
pub(crate) fn clients(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let arguments = Arguments::read(arguments)?;
    let unknown = unknown_names(&arguments.only);
    ensure!(unknown.is_empty(), "no program is called {}", unknown.join(" or "));
    let is_wanted = |program: &Path| arguments.is_wanted(program);
    let mut programs = programs_in_python(workspace, &FEW, CONTEXT, &is_wanted)?;
    programs.extend(programs_in_python(workspace, &OTHERS, CONTEXT, &is_wanted)?);
    programs.extend(programs_in_javascript(workspace, &is_wanted)?);
    let coders = programs_in_python(workspace, &[CODERS], CONTEXT_OF_CODERS, &is_wanted)?;
    let packages = if coders.is_empty() { PathBuf::new() } else { packages_of_npm(workspace, "js-coders")? };
    let packages = packages.join("node_modules");
    programs.extend(coders);
    let report = workspace.target.join("clients.jsonl");
    let _ = fs::remove_file(&report);
    let mut test = workspace.cargo(&["test", "--package=autoplace-cli", "--test=program"]);
    test.args(["--", "--ignored", "--nocapture", "small_programs_of_clients"]);
    test.env(PROGRAMS, list(&programs)?).env(REPORT, &report).env(PACKAGES, packages);
    if let Some(model) = arguments.model {
        let model = fs::canonicalize(model).with_context(|| format!("there is no model `{model}`"))?;
        test.env(MODEL, model);
    }
    let outcome = run_tests(&mut test);
    // The table also lists failures. But a program that fails before its first report has no line, and with `--only`
    // its old line would stay.
    if arguments.write
        && (arguments.only.is_empty() || outcome.is_ok())
        && let Ok(report) = fs::read_to_string(&report)
    {
        let document = workspace.root.join(DOCUMENT);
        let mut rows = rows(&report)?;
        if !arguments.only.is_empty() {
            keep_others(&mut rows, &fs::read_to_string(&document)?);
        }
        document::replace(&document, MARKS, &table(&rows))?;
    }
    outcome
}

/// The names of this list that no program has, neither alone nor with its language.
fn unknown_names<'a>(only: &[&'a str]) -> Vec<&'a str> {
    let of_python = FEW.iter().chain(&OTHERS).chain([&CODERS]).flat_map(|(_, names)| names.iter().copied());
    let of_python = of_python.map(|name| (name, "py"));
    let programs: Vec<(&str, &str)> = of_python.chain(OF_JAVASCRIPT.map(|name| (name, "mjs"))).collect();
    let is_known =
        |only: &str| programs.iter().any(|(name, language)| only == *name || only == format!("{name}.{language}"));
    only.iter().copied().filter(|only| !is_known(only)).collect()
}

/// Installs the npm packages of a list. Returns the folder with the packages.
fn packages_of_npm(workspace: &Workspace, list: &str) -> Result<PathBuf> {
    ensure!(succeeds("npm", &["--version"]), "npm is missing: install Node.js 20 or newer");
    let folder = workspace.target.join(format!("clients-{list}"));
    fs::create_dir_all(&folder)?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(workspace.root.join("xtask/clients").join(list).join(file), folder.join(file))?;
    }
    run(Command::new("npm").args(["ci", "--silent", "--no-audit", "--no-fund"]).current_dir(&folder))?;
    Ok(folder)
}

/// The wanted programs in JavaScript, copied into the folder of their packages.
fn programs_in_javascript(workspace: &Workspace, is_wanted: &dyn Fn(&Path) -> bool) -> Result<Vec<Program>> {
    let programs = OF_JAVASCRIPT.map(|name| program(workspace, name, "mjs"));
    let wanted: Vec<&PathBuf> = programs.iter().filter(|file| is_wanted(file)).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    // A module looks for packages and for other modules from its own folder.
    let folder = packages_of_npm(workspace, "js")?;
    fs::copy(workspace.root.join("xtask/clients/programs/common.mjs"), folder.join("common.mjs"))?;
    let programs = wanted.into_iter().map(|from| {
        let file = folder.join(from.file_name().context("a program has a name")?);
        fs::copy(from, &file)?;
        Ok(Program { interpreter: PathBuf::from("node"), file, context: CONTEXT })
    });
    programs.collect()
}

/// The clients of the step `clients`.
pub(crate) fn of_few(workspace: &Workspace) -> Result<Vec<Program>> {
    programs_in_python(workspace, &FEW, CONTEXT, &|_| true)
}

/// The wanted programs of these package lists, each with the interpreter that has the packages.
fn programs_in_python(
    workspace: &Workspace,
    lists: &[(&str, &[&str])],
    context: u32,
    is_wanted: &dyn Fn(&Path) -> bool,
) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for (requirements, names) in lists {
        let files = names.iter().map(|name| program(workspace, name, "py"));
        let files: Vec<PathBuf> = files.filter(|file| is_wanted(file)).collect();
        if !files.is_empty() {
            let interpreter = python::environment(workspace, requirements)?;
            programs.extend(files.into_iter().map(|file| Program { interpreter: interpreter.clone(), file, context }));
        }
    }
    Ok(programs)
}

fn program(workspace: &Workspace, name: &str, extension: &str) -> PathBuf {
    workspace.root.join(format!("xtask/clients/programs/use_{name}.{extension}"))
}

/// The programs in the form that the test reads: an interpreter, a file and a context on each line, separated by tabs.
pub(crate) fn list(programs: &[Program]) -> Result<String> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is not valid text");
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

/// The lines of a table by client and API, in the order of the table.
type Rows = BTreeMap<(String, String), String>;

/// The report as lines of the table, one for each client on each API.
fn rows(report: &str) -> Result<Rows> {
    let mut tried: BTreeMap<[String; 3], BTreeMap<String, bool>> = BTreeMap::new();
    for line in report.lines() {
        let trial: Value = serde_json::from_str(line).with_context(|| format!("the report: {line}"))?;
        let [client, version, surface, name] = ["client", "version", "surface", "tried"].map(|name| {
            trial[name].as_str().map(str::to_owned).with_context(|| format!("the report: `{name}` is missing: {line}"))
        });
        tried.entry([client?, surface?, version?]).or_default().insert(name?, trial["error"].is_null());
    }
    let columns: BTreeSet<&str> = TRIED.iter().map(|(tried, _)| *tried).collect();
    let mut rows = Rows::new();
    for ([client, surface, version], trials) in tried {
        let mut row = format!("| {client} | {version} | {surface} |");
        for (tried, _) in TRIED {
            row += &format!(" {} |", outcome(trials.get(tried).copied()));
        }
        let besides = trials.iter().filter(|(tried, _)| !columns.contains(&***tried));
        let besides = besides.map(|(tried, works)| match works {
            true => tried.clone(),
            false => format!("{tried}: {}", outcome(Some(false))),
        });
        let besides = besides.collect::<Vec<_>>().join(", ");
        row += &format!(" {} |", if besides.is_empty() { outcome(None) } else { &besides });
        rows.insert((client, surface), row);
    }
    Ok(rows)
}

/// Adds the lines of the document's table for clients that were not run.
fn keep_others(rows: &mut Rows, document: &str) {
    let table =
        document.split_once(MARKS[0]).and_then(|(_, rest)| rest.split_once(MARKS[1])).map_or("", |(table, _)| table);
    for line in table.lines().skip(2) {
        if let [_, client, _, surface, ..] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            rows.entry((client.to_owned(), surface.to_owned())).or_insert_with(|| line.to_owned());
        }
    }
}

/// The table of these lines.
fn table(rows: &Rows) -> String {
    let mut table = String::from("| client | version | API |");
    TRIED.iter().for_each(|(_, head)| table += &format!(" {head} |"));
    table += " besides |\n|---|---|---|";
    table += &"---|".repeat(TRIED.len() + 1);
    table += "\n";
    rows.values().for_each(|row| table += &format!("{row}\n"));
    table
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
        let rows = rows(&report.join("\n")).unwrap();
        let table = table(&rows);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            ["| c | 1 | chat | – | – | – | **no** | – | x |", "| c | 1 | messages | yes | – | – | – | – | – |"]
        );
        assert!(super::rows("{}").is_err());
    }

    #[test]
    fn clients_that_were_not_run_keep_their_lines() {
        let line =
            |client: &str, version: &str| format!("| {client} | {version} | messages | yes | – | – | – | – | – |");
        let trial = r#"{"client":"b","version":"2","surface":"messages","tried":"text","error":null}"#;
        let table_of = |lines: &[String]| format!("head\nmarks\n{}\n", lines.join("\n"));
        let document = format!("x{}{}{}y", MARKS[0], table_of(&[line("a", "1"), line("b", "1")]), MARKS[1]);
        let mut rows = rows(trial).unwrap();
        keep_others(&mut rows, &document);
        assert_eq!(rows.into_values().collect::<Vec<_>>(), [line("a", "1"), line("b", "2")]);
    }

    #[test]
    fn a_program_is_chosen_by_its_name_with_or_without_its_language() {
        let words = ["m.gguf", "--only", "openai.mjs", "--only", "aider", "--write"].map(str::to_owned);
        let read = Arguments::read(&words).unwrap();
        assert_eq!((read.write, read.model), (true, Some("m.gguf")));
        let wanted = ["use_openai.mjs", "use_openai.py", "use_aider.py"].map(|file| read.is_wanted(Path::new(file)));
        assert_eq!(wanted, [true, false, true]);
        assert!(Arguments::default().is_wanted(Path::new("use_llm.py")));
        assert!(Arguments::read(&["--only".to_owned()]).is_err());
        assert_eq!(unknown_names(&["aider", "openai.mjs", "typo", "aider.mjs"]), ["typo", "aider.mjs"]);
    }
}
