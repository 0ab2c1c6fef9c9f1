//! `attack`: measures how much memory hostile clients can make `autoplace serve` use, and whether the server answers
//! other clients at the same time. Prints a Markdown table. `cli/tests/program/serve_hostile.rs` is a small version of
//! it.

mod bodies;
mod grammars;
mod media;
mod pool;
mod rows;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::bodies::TEXT;
use self::rows::{ATTACKS, Setup};
use crate::setup;
use crate::workspace::{Running, Workspace, output, run};

/// Maximum time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");

/// Attacks our program, or another program with the same arguments. A word selects the attacks with that word in their
/// names. The verb fails if the memory or an answer exceeds its bounds, but never because an attack takes long.
pub(crate) fn attack(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("the memory of a process is read from /proc, so this works on Linux only");
    }
    setup::native()?;
    let (program, word) = match arguments {
        [program, word] => (Some(program), word.as_str()),
        [program] => (Some(program), ""),
        [] => (None, ""),
        _ => bail!("usage: cargo xtask attack [PROGRAM [WORD]]"),
    };
    let program = match program {
        None => {
            run(&mut workspace.cargo(&["build", "--package=autoplace-cli"]))?;
            workspace.target.join("debug/autoplace")
        }
        Some(program) => PathBuf::from(program),
    };
    let models = workspace.target.join("attack");
    run(workspace.cargo(&["run", "--quiet", "--package=test-support", "--example=models", "--"]).arg(&models))?;
    let target = Target { program, models };
    println!("| attack | memory beyond idle | at most | answered | after | `/health` after |");
    println!("|---|--:|--:|---|--:|--:|");
    let mut broken = Vec::new();
    let attacks = [ATTACKS, grammars::ATTACKS, media::ATTACKS, pool::ATTACKS].concat();
    for attack in attacks.into_iter().filter(|attack| attack.name.contains(word)) {
        let server = Server::start(&target, attack.setup)?;
        // This request makes the one-time allocations, so that they count as memory of the idle server.
        server.post(TEXT, r#"{"prompt": "a", "max_tokens": 1, "grammar": "%llguidance {}\nstart: /[a-z]{9}/"}"#);
        if matches!(attack.setup, Setup::Pool | Setup::PoolOfThousand) {
            server.post(TEXT, &pool::asked("m0"));
        }
        let idle = server.peak()?;
        let begin = Instant::now();
        let (answers, after, health) = thread::scope(|scope| {
            let attacker = scope.spawn(|| ((attack.run)(&server), begin.elapsed()));
            let mut slowest = Duration::ZERO;
            let mut is_well = true;
            loop {
                let asked = Instant::now();
                is_well &= server.get("/health") == "200";
                slowest = slowest.max(asked.elapsed());
                if attacker.is_finished() {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
            let (answers, after) = attacker.join().unwrap_or_default();
            (answers, after, is_well.then_some(slowest))
        });
        let taken = (server.peak()? - idle) >> 10;
        let mut said = answers.clone();
        said.sort();
        said.dedup();
        println!(
            "| {} | {taken} MiB | {} MiB | {} | {} | {} |",
            attack.name,
            attack.most,
            said.join(", "),
            seconds(after),
            health.map_or("never".to_owned(), seconds)
        );
        let is_expected = |answer: &String| attack.answers.contains(&answer.as_str());
        let is_answered = !answers.is_empty() && answers.iter().all(is_expected);
        if taken > attack.most || health.is_none() || !is_answered {
            broken.push(attack.name);
        }
    }
    if broken.is_empty() {
        return Ok(());
    }
    bail!("these attacks exceeded their bounds:\n{}", broken.join("\n"));
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// The program to attack, and the folder of models that it serves besides the demo model.
struct Target {
    program: PathBuf,
    models: PathBuf,
}

struct Server {
    process: Running,
    address: String,
}

impl Server {
    /// Starts the server with a low limit of open files.
    fn start(Target { program, models }: &Target, setup: Setup) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(program).arg("serve");
        match setup {
            Setup::FillInTheMiddle => shell.arg(models.join("fim.gguf")),
            Setup::Pool | Setup::PoolWithKey | Setup::PoolOfThousand => {
                let file = models.join("pool.toml");
                std::fs::write(&file, pool::file(if setup == Setup::PoolOfThousand { 1000 } else { 3 }))?;
                shell.arg("--models").arg(file)
            }
            _ => shell.arg(MODEL),
        };
        shell.args(["--port", "0", "--template", "chatml", "--parallel", "8", "--ctx", "4096"]);
        match setup {
            Setup::Plain | Setup::FillInTheMiddle | Setup::Pool | Setup::PoolOfThousand => {}
            Setup::PoolWithKey => _ = shell.args(["--api-key", pool::KEY]),
            Setup::Isolated => _ = shell.args(["--isolated", "--silent", "5"]),
            Setup::Reranker => _ = shell.arg("--reranker").arg(models.join("reranker.gguf")),
            Setup::Sees => _ = shell.arg("--mmproj").arg(models.join("mmproj.gguf")),
        }
        let (process, address) = Running::server(shell.stderr(Stdio::null()))?;
        Ok(Self { process, address })
    }

    fn head(&self, path: &str, bytes: usize) -> String {
        let address = &self.address;
        format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {bytes}\r\n\
             connection: close\r\n\r\n"
        )
    }

    fn post(&self, path: &str, body: &str) -> String {
        self.sent(&(self.head(path, body.len()) + body))
    }

    fn connected(&self, bytes: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        // The server may answer before it has read the whole request.
        let _ = stream.write_all(bytes.as_bytes());
        Some(stream)
    }

    fn get(&self, path: &str) -> String {
        self.sent(&format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.address))
    }

    /// The status and the body of the answer.
    fn answer(&self, path: &str, body: &str) -> (String, String) {
        let mut answer = String::new();
        let read =
            self.connected(&(self.head(path, body.len()) + body)).map(|mut stream| stream.read_to_string(&mut answer));
        match (read, answer.get(9..12)) {
            (Some(Ok(_)), Some(status)) => {
                let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
                (status.to_owned(), body.to_owned())
            }
            _ => ("no answer".to_owned(), String::new()),
        }
    }

    /// Sends these bytes, and returns the status of the answer.
    fn sent(&self, bytes: &str) -> String {
        let mut status = [0; 12];
        let read = self.connected(bytes).map(|mut stream| stream.read_exact(&mut status));
        match read {
            Some(Ok(())) => String::from_utf8_lossy(&status[9..]).into_owned(),
            _ => "no answer".to_owned(),
        }
    }

    /// The server's peak memory in KiB.
    fn peak(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|value| value.trim().strip_suffix(" kB")).context("VmHWM in kB")?;
        Ok(kib.parse()?)
    }

    fn stop_worker(&self) {
        let id = self.process.0.id();
        let workers = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        for worker in workers.unwrap_or_default().split_whitespace() {
            let _ = output(Command::new("kill").args(["-STOP", worker]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ATTACKS, grammars, media, pool};

    #[test]
    fn the_attacks_have_names_of_their_own_and_the_program_that_writes_their_models() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        assert!(std::path::Path::new(root).join("test-support/examples/models.rs").is_file());
        let attacks = [ATTACKS, grammars::ATTACKS, media::ATTACKS, pool::ATTACKS].concat();
        let mut names: Vec<&str> = attacks.iter().map(|attack| attack.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), attacks.len());
    }
}
