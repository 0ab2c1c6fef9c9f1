//! Runs this program as a child process, so that a crash of llama.cpp or a driver is counted instead of ending the
//! check. CUDA ends the process if memory runs out in the middle of a graph (ggml-cuda.cu, `CUDA_CHECK`).
//!
//! A model that the library loads is in the library's own worker ([`Setting::measure`](crate::setting::Setting)). The
//! processes here are those that the library has no worker for: llama.cpp's own calls, and memory that others take.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, bail};
use autoplace_measure::Outcome;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::peer::{Question, Stage};
use crate::rig::Rig;

/// The first arguments of the child processes.
pub(crate) const HOLD: &str = "__hold";
pub(crate) const PEER: &str = "__peer";

/// Asks a process that uses llama.cpp's own calls. `cache` is the folder for learned facts about devices, so the user's
/// own cache is neither read nor changed.
pub(crate) fn peer(question: &Question, cache: &Path) -> Result<(Vec<Stage>, Outcome)> {
    let (stages, died) = converse(PEER, question, cache)?;
    let outcome = match (died, stages.last()) {
        (Some(died), _) => died,
        (None, Some(Stage::Failed { error })) => Outcome::Failed(error.clone()),
        (None, _) => Outcome::Completed,
    };
    Ok((stages, outcome))
}

/// Starts a process, sends it a request and reads its answers. The second value of the result is set if the process did
/// not end by itself: it is the cause of its death.
fn converse<Said: DeserializeOwned>(
    verb: &str,
    asked: &impl Serialize,
    cache: &Path,
) -> Result<(Vec<Said>, Option<Outcome>)> {
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
    let died = (!status.success()).then(|| Outcome::of_death(&format!("the process ended with {status}"), &said));
    Ok((stages, died))
}

/// Another process that takes memory of every GPU as long as this value lives.
#[derive(Debug)]
pub(crate) struct Ballast {
    child: Child,
}

impl Ballast {
    /// Takes memory of each GPU of the rig until `leave` bytes are free.
    pub(crate) fn hold(rig: &Rig, leave: u64, cache: &Path) -> Result<Self> {
        Self::start(rig, Some(leave), cache).with_context(|| format!("ballast that leaves {leave} bytes"))
    }

    /// Only opens each GPU of the rig.
    pub(crate) fn open(rig: &Rig, cache: &Path) -> Result<Self> {
        Self::start(rig, None, cache).context("a process that opens the cards")
    }

    fn start(rig: &Rig, leave: Option<u64>, cache: &Path) -> Result<Self> {
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
            bail!("{status}: {}", said.trim());
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
