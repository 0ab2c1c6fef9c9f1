//! Runs this program as a child process, so that a crash of llama.cpp or a driver is counted instead of ending the
//! check. CUDA ends the process if memory runs out in the middle of a graph (ggml-cuda.cu, `CUDA_CHECK`).

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::{Job, Stage};
use crate::{peer, sweep};

/// The first arguments of the child processes.
pub(crate) const DRIVE: &str = "__drive";
pub(crate) const HOLD: &str = "__hold";
pub(crate) const PEER: &str = "__peer";
pub(crate) const SWEEP: &str = "__sweep";

/// The outcome of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Completed,
    /// No plan was found, so nothing was tried.
    Refused(String),
    /// Memory ran out although a plan had promised enough.
    OutOfMemory(String),
    /// Any other failure.
    Failed(String),
}

impl End {
    /// The reason for a failure; `None` without a failure. A refusal is not a failure, because nothing was promised.
    pub(crate) fn failure(&self) -> Option<&str> {
        match self {
            Self::OutOfMemory(why) | Self::Failed(why) => Some(why),
            Self::Completed | Self::Refused(_) => None,
        }
    }
}

/// The results of a job.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) stages: Vec<Stage>,
    pub(crate) end: End,
}

/// Runs a job to its end. `cache` is the folder for learned facts about devices, so the user's own cache is neither
/// read nor changed.
pub(crate) fn drive(job: &Job, cache: &Path) -> Result<Outcome> {
    let (stages, died) = converse(DRIVE, job, cache)?;
    let end = match (died, stages.last()) {
        (Some(died), _) => died,
        (None, Some(Stage::Failed { error, out_of_memory, refused })) => match (refused, out_of_memory) {
            (true, _) => End::Refused(error.clone()),
            (_, true) => End::OutOfMemory(error.clone()),
            _ => End::Failed(error.clone()),
        },
        (None, _) => End::Completed,
    };
    Ok(Outcome { stages, end })
}

/// Asks one side for a split: the library, or llama.cpp's fit.
pub(crate) fn peer(question: &peer::Question, cache: &Path) -> Result<(Vec<peer::Stage>, End)> {
    let (stages, died) = converse(PEER, question, cache)?;
    let end = match (died, stages.last()) {
        (Some(died), _) => died,
        (None, Some(peer::Stage::Failed { error })) => End::Failed(error.clone()),
        (None, _) => End::Completed,
    };
    Ok((stages, end))
}

/// Measures a sweep.
pub(crate) fn sweep(asked: &sweep::Sweep, cache: &Path) -> Result<(Vec<sweep::Stage>, End)> {
    let (stages, died) = converse(SWEEP, asked, cache)?;
    Ok((stages, died.unwrap_or(End::Completed)))
}

/// Starts a process, sends it a request and reads its answers. The second value of the result is set if the process did
/// not end by itself: it is the cause of its death.
fn converse<Said: DeserializeOwned>(
    verb: &str,
    asked: &impl Serialize,
    cache: &Path,
) -> Result<(Vec<Said>, Option<End>)> {
    let mut child = spawn(verb, cache)?;
    let stderr = listen(&mut child)?;
    let mut stdin = child.stdin.take().context("it was piped")?;
    // An error is ignored: if the process dies before it reads, its exit status shows this.
    let _ = stdin.write_all(&serde_json::to_vec(asked)?);
    drop(stdin);
    let mut stages = Vec::new();
    for line in BufReader::new(child.stdout.take().context("it was piped")?).lines() {
        stages.push(serde_json::from_str(&line?).context("a process of ours says something else")?);
    }
    let status = child.wait()?;
    let said = stderr.join().unwrap_or_default();
    let died = (!status.success()).then(|| died(&format!("{status}"), &said));
    Ok((stages, died))
}

/// The cause of death of a process.
fn died(status: &str, said: &str) -> End {
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(6)..].join("; ");
    let reason = format!("the process ended with {status}: {last}");
    // These are messages of CUDA (`cudaGetErrorString`), of cuBLAS, and of ggml for a pool.
    let memory = ["out of memory", "ALLOC_FAILED", "failed to allocate"];
    if memory.iter().any(|words| said.contains(words)) { End::OutOfMemory(reason) } else { End::Failed(reason) }
}

/// Another process that takes memory of every GPU as long as this value lives.
#[derive(Debug)]
pub(crate) struct Ballast {
    child: Child,
}

impl Ballast {
    /// Takes memory of each GPU of the rig until `leave` bytes are free.
    pub(crate) fn hold(rig: &crate::rig::Rig, leave: u64, cache: &Path) -> Result<Self> {
        let mut child = spawn(HOLD, cache)?;
        let stderr = listen(&mut child)?;
        let asked = serde_json::to_string(&(rig, leave))?;
        let stdin = child.stdin.as_mut().context("it was piped")?;
        let _ = stdin.write_all(format!("{asked}\n").as_bytes());
        let mut answer = String::new();
        let stdout = child.stdout.as_mut().context("it was piped")?;
        BufReader::new(stdout).read_line(&mut answer)?;
        if answer.trim() != crate::hold::HELD {
            let _ = child.kill();
            let status = child.wait()?;
            let said = stderr.join().unwrap_or_default();
            bail!("ballast that leaves {leave} bytes: {status}: {}", said.trim());
        }
        Ok(Self { child })
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // The process ends when its stdin closes.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn spawn(verb: &str, cache: &Path) -> Result<Child> {
    let program = std::env::current_exe().context("this program has no path")?;
    Command::new(&program)
        .arg(verb)
        .env("XDG_CACHE_HOME", cache)
        // An abort that starts a debugger would stop the check (ggml.c, `ggml_print_backtrace`).
        .env("GGML_NO_BACKTRACE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// Reads the process's stderr, so that the process does not block on a full pipe.
fn listen(child: &mut Child) -> Result<JoinHandle<String>> {
    let mut stderr: ChildStderr = child.stderr.take().context("it was piped")?;
    Ok(std::thread::spawn(move || {
        let mut said = Vec::new();
        let _ = stderr.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }))
}

#[cfg(test)]
mod tests {
    use super::{End, died};

    #[test]
    fn a_process_that_ran_out_of_memory_is_distinguished_from_other_failures() {
        let cuda = "CUDA error: out of memory\n  current device: 0";
        assert!(matches!(died("signal: 6", cuda), End::OutOfMemory(reason) if reason.contains("current device")));
        let other = died("signal: 11", "");
        assert_eq!(other, End::Failed("the process ended with signal: 11: ".to_owned()));
    }
}
