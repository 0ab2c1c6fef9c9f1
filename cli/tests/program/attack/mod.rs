//! Measures how much memory hostile clients can make `autoplace serve` use, and whether the server answers other
//! clients at the same time. Prints a Markdown table. `serve_hostile` is a small version of it, which the CI runs.
//!
//!     cargo xtask attack [PROGRAM [WORD]]

mod bodies;
mod grammars;
mod media;
mod pool;
mod rows;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use autoplace::gguf::TensorType;
use test_support::running::Running;
use test_support::synthetic::{Sketch, in_32_bits, mmproj};
use test_support::{embedding_models, random_weights};

use crate::server::{FILE, PATIENCE, TEXT};
use rows::{ATTACKS, Attack, Setup};

/// The variables that name another program to attack, and a word that selects the attacks with that word in their
/// names.
const PROGRAM: &str = "AUTOPLACE_ATTACK_PROGRAM";
const WORD: &str = "AUTOPLACE_ATTACK_WORD";

/// Fails if the memory or an answer exceeds its bounds, but never because an attack takes long.
#[test]
#[ignore = "minutes, and a table of figures: `cargo xtask attack`"]
fn hostile_clients_take_no_more_memory_than_their_bounds() {
    let program = std::env::var_os(PROGRAM).unwrap_or_else(|| env!("CARGO_BIN_EXE_autoplace").into());
    let word = std::env::var(WORD).unwrap_or_default();
    let folder = tempfile::tempdir().unwrap();
    write_models(folder.path());
    let target = Target { program: program.into(), models: folder.path().to_owned() };
    println!("| attack | memory beyond idle | at most | answered | after | `/health` after |");
    println!("|---|--:|--:|---|--:|--:|");
    let attacks = all().into_iter().filter(|attack| attack.name.contains(&word));
    let broken: Vec<&str> =
        attacks.filter(|attack| !is_within_bounds(&target, attack)).map(|attack| attack.name).collect();
    assert!(broken.is_empty(), "these attacks exceeded their bounds:\n{}", broken.join("\n"));
}

fn all() -> Vec<Attack> {
    [ATTACKS, grammars::ATTACKS, media::ATTACKS, pool::ATTACKS].concat()
}

/// Makes one attack on a server of its own, and prints its row. Returns whether memory and answers are within bounds.
fn is_within_bounds(target: &Target, attack: &Attack) -> bool {
    let server = Server::start(target, attack.setup);
    // This request makes the one-time allocations, so that they count as memory of the idle server.
    server.post(TEXT, r#"{"prompt": "a", "max_tokens": 1, "grammar": "%llguidance {}\nstart: /[a-z]{9}/"}"#);
    if matches!(attack.setup, Setup::Pool | Setup::PoolOfThousand) {
        server.post(TEXT, &pool::asked("m0"));
    }
    let idle = server.peak();
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
    let taken = (server.peak() - idle) >> 10;
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
    taken <= attack.most && health.is_some() && is_answered
}

/// Writes small models with random weights: `fim.gguf` (with fill-in-the-middle tokens), `reranker.gguf` and
/// `mmproj.gguf` (an image projector for the demo model).
fn write_models(folder: &Path) {
    let write = |sketch: &Sketch, name: &str| {
        let written = random_weights::write(sketch, folder);
        std::fs::rename(written, folder.join(name)).unwrap();
    };
    let mut fim = in_32_bits("llama");
    fim.token_ids(&[("fim_pre", 259), ("fim_suf", 260), ("fim_mid", 261), ("fim_rep", 262), ("fim_sep", 263)]);
    write(&fim, "fim.gguf");
    write(&embedding_models::reranker(TensorType::F32), "reranker.gguf");
    let projector = folder.join("mmproj.gguf");
    mmproj::named("Small LLaVA").write_sparse(&projector).unwrap();
    random_weights::fill(&projector);
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
    fn start(Target { program, models }: &Target, setup: Setup) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(program).arg("serve");
        match setup {
            Setup::FillInTheMiddle => shell.arg(models.join("fim.gguf")),
            Setup::Pool | Setup::PoolWithKey | Setup::PoolOfThousand => {
                let file = models.join("pool.toml");
                std::fs::write(&file, pool::file(if setup == Setup::PoolOfThousand { 1000 } else { 3 })).unwrap();
                shell.arg("--models").arg(file)
            }
            _ => shell.arg(FILE),
        };
        shell.args(["--port", "0", "--template", "chatml", "--parallel", "8", "--ctx", "4096"]);
        match setup {
            Setup::Plain | Setup::FillInTheMiddle | Setup::Pool | Setup::PoolOfThousand => {}
            Setup::PoolWithKey => _ = shell.args(["--api-key", pool::KEY]),
            Setup::Isolated => _ = shell.args(["--isolated", "--silent", "5"]),
            Setup::Reranker => _ = shell.arg("--reranker").arg(models.join("reranker.gguf")),
            Setup::Sees => _ = shell.arg("--mmproj").arg(models.join("mmproj.gguf")),
        }
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Running(shell.spawn().unwrap());
        let mut said = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        let address = said.trim_end().strip_prefix("listening on http://").map(str::to_owned);
        Self { process, address: address.unwrap_or_else(|| panic!("{said:?} is no address")) }
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
    fn peak(&self) -> u64 {
        self.process.memory("VmHWM").expect("VmHWM in kB") >> 10
    }

    fn stop_worker(&self) {
        let id = self.process.id();
        let workers = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        for worker in workers.unwrap_or_default().split_whitespace() {
            let _ = Command::new("kill").args(["-STOP", worker]).output();
        }
    }
}

#[test]
fn attacks_have_names_of_their_own() {
    let mut names: Vec<&str> = all().iter().map(|attack| attack.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all().len());
}
