//! `fuzz`: coverage-guided fuzzing of every parser of untrusted bytes: `fuzz/src/targets.rs`.
//!
//! In: the time for each target. Out: a table of the runs and, for each finding, the input and the command that repeats
//! the failure. The corpora grow in `target/fuzz/corpus`. Stable compilers support the instrumentation, so neither a
//! nightly compiler nor cargo-fuzz is needed.

use std::fs::{self, File};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::{Workspace, output, run};
use crate::{sanitize, setup};

/// The flags of cargo-fuzz, but without a sanitizer, because the Rust code of all targets is safe and llama.cpp is not
/// instrumented.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
                     -Ccodegen-units=1";

/// The limits: seconds for an input, MiB of the process, and bytes of an input.
const LIMITS: [&str; 3] = ["-timeout=20", "-rss_limit_mb=2048", "-max_len=65536"];

/// Runs the named targets or, without names, all targets.
pub(crate) fn fuzz(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let (mut seconds, mut named) = (60_u32, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => {
                let given = arguments.next().and_then(|number| number.parse().ok());
                seconds = given.context("`--seconds` needs a number")?;
            }
            name => named.push(name),
        }
    }
    setup::native()?;
    let host = sanitize::host()?;
    let folder = workspace.target.join("fuzz");
    let mut build = workspace.cargo(&["build", "--release", "--locked", "--target", &host]);
    build.args(["--manifest-path", "fuzz/Cargo.toml"]);
    run(build.env("CARGO_TARGET_DIR", &folder).env("RUSTFLAGS", FLAGS))?;
    let program = folder.join(host).join("release/autoplace-fuzz");
    let targets = output(&mut Command::new(&program))?;
    if let Some(unknown) = named.iter().find(|name| targets.lines().all(|target| target != **name)) {
        bail!("there is no target `{unknown}`; there are:\n{targets}");
    }

    let mut table = String::from("| target | seconds | executions | edges | inputs |\n|---|---|---|---|---|\n");
    let mut findings = Vec::new();
    for target in targets.lines().filter(|line| named.is_empty() || named.contains(line)) {
        println!("fuzz: {target}, {seconds} s");
        let (corpus, log) = (folder.join("corpus").join(target), folder.join(format!("{target}.log")));
        fs::create_dir_all(&corpus)?;
        let mut fuzzer = Command::new(&program);
        fuzzer.env("FUZZ_TARGET", target).arg(&corpus).args(LIMITS);
        fuzzer.arg(format!("-max_total_time={seconds}"));
        fuzzer.arg(format!("-artifact_prefix={}/{target}-", folder.display()));
        let is_sound = fuzzer.stderr(File::create(&log)?).status()?.success();
        let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !is_sound {
            let tail: Vec<&str> = said.lines().rev().take(40).collect();
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
            findings.push(format!("{target}: see {}", log.display()));
        }
        let [executions, edges, inputs] = last(&said);
        table.push_str(&format!("| {target} | {seconds} | {executions} | {edges} | {inputs} |\n"));
    }
    println!("\n{table}");
    ensure!(
        findings.is_empty(),
        "the fuzzer has found failing inputs; `FUZZ_TARGET=NAME {} INPUT` runs one again:\n{}",
        program.display(),
        findings.join("\n")
    );
    Ok(())
}

/// Executions, edges and corpus size from libFuzzer's last status line: `#2097152 pulse cov: 12 ft: 14 corp: 6/9b ...`.
fn last(log: &str) -> [&str; 3] {
    let status = log.lines().rev().find(|line| line.starts_with('#') && line.contains("corp: "));
    let words: Vec<&str> = status.unwrap_or_default().split_whitespace().collect();
    let after = |name| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
    let executions = words.first().and_then(|word| word.strip_prefix('#'));
    let inputs = after("corp:").map(|corpus| corpus.split('/').next().unwrap_or_default());
    [executions, after("cov:").copied(), inputs].map(|number| number.unwrap_or("-"))
}

#[cfg(test)]
mod tests {
    use super::last;

    #[test]
    fn the_last_status_line_is_read() {
        let log = "INFO: Seed: 1\n#2\tINITED cov: 3 ft: 4 corp: 1/1b exec/s: 0 rss: 30Mb\n#917\tDONE   cov: 12 ft: 14 corp: \
                   6/9b lim: 4 exec/s: 0 rss: 31Mb\nDone 917 runs in 2 second(s)\n";
        assert_eq!(last(log), ["917", "12", "6"]);
        assert_eq!(last("nothing"), ["-"; 3]);
    }
}
