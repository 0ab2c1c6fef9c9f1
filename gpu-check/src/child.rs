//! This program as a process of its own, so that what llama.cpp or a driver ends is counted and not suffered: CUDA out
//! of memory in the middle of a graph ends the process (ggml-cuda.cu, `CUDA_CHECK`).

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::{Job, Stage};
use crate::peer;

/// The first argument of the processes that this program starts of itself.
pub(crate) const DRIVE: &str = "__drive";
pub(crate) const HOLD: &str = "__hold";
pub(crate) const PEER: &str = "__peer";

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Completed,
    /// No plan was found, and nothing was tried.
    Refused(String),
    /// Memory was lacking where a plan had said that there was enough.
    OutOfMemory(String),
    /// Anything else.
    Failed(String),
}

impl End {
    /// Why it failed, if it did. A refusal is no failure: nothing was promised.
    pub(crate) fn failure(&self) -> Option<&str> {
        match self {
            Self::OutOfMemory(why) | Self::Failed(why) => Some(why),
            Self::Completed | Self::Refused(_) => None,
        }
    }
}

/// What came of a job.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) stages: Vec<Stage>,
    pub(crate) end: End,
}

/// Runs a job to its end. What is learned of devices is kept below `cache`, so that the user's own is neither
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

/// Asks for a split, ours or llama.cpp's own.
pub(crate) fn peer(question: &peer::Question, cache: &Path) -> Result<(Vec<peer::Stage>, End)> {
    let (stages, died) = converse(PEER, question, cache)?;
    let end = match (died, stages.last()) {
        (Some(died), _) => died,
        (None, Some(peer::Stage::Failed { error })) => End::Failed(error.clone()),
        (None, _) => End::Completed,
    };
    Ok((stages, end))
}

/// Starts a process, sends it what to do, and reads all that it says. The second is what it has died of, if it did not
/// end by itself.
fn converse<Said: DeserializeOwned>(
    verb: &str,
    asked: &impl Serialize,
    cache: &Path,
) -> Result<(Vec<Said>, Option<End>)> {
    let mut child = spawn(verb, cache)?;
    let stderr = listen(&mut child)?;
    let mut stdin = child.stdin.take().context("it was piped")?;
    // One that dies before it has read says so by its status.
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

/// What a process that did not end by itself has died of.
fn died(status: &str, said: &str) -> End {
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(6)..].join("; ");
    let reason = format!("the process ended with {status}: {last}");
    // CUDA's own words (`cudaGetErrorString`), those of cuBLAS, and ggml's of a pool.
    let memory = ["out of memory", "ALLOC_FAILED", "failed to allocate"];
    if memory.iter().any(|words| said.contains(words)) { End::OutOfMemory(reason) } else { End::Failed(reason) }
}

/// Memory of every GPU, held by another process as long as this lives.
#[derive(Debug)]
pub(crate) struct Ballast {
    child: Child,
}

impl Ballast {
    /// Takes of each GPU of the rig so much that `leave` bytes are left.
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
        // It ends when nobody can speak to it any more.
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

/// Reads what it says on stderr, lest it wait for somebody who does.
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
    fn a_process_that_died_of_memory_is_distinguished_from_one_that_died_of_anything_else() {
        let cuda = "CUDA error: out of memory\n  current device: 0";
        assert!(matches!(died("signal: 6", cuda), End::OutOfMemory(reason) if reason.contains("current device")));
        let other = died("signal: 11", "");
        assert_eq!(other, End::Failed("the process ended with signal: 11: ".to_owned()));
    }
}
