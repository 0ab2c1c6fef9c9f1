//! `attack`: measures how much memory hostile clients can take from `autoplace serve`, and whether it answers others
//! meanwhile. Prints a Markdown table. `cli/tests/program/serve_hostile.rs` is a small version of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::setup;
use crate::workspace::{Running, Workspace, output, run};

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a body just below the size limit.
const MAX_BODY: usize = (16 << 20) - 1000;
const TEXT: &str = "/v1/completions";
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");

struct Attack {
    name: &'static str,
    /// The MiB of memory that the attack may take beyond the idle server's.
    most: u64,
    /// The allowed statuses of the answers.
    answers: &'static [&'static str],
    is_isolated: bool,
    run: fn(&Server) -> Vec<String>,
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "a Lark grammar of 258 KB: classes of many ranges, repeated; 8 tokens",
        most: 256,
        answers: &["400", "200"],
        is_isolated: false,
        run: |server| {
            let ranges: String =
                (0..100).map(|it| format!("\\u{:04x}-\\u{:04x}", 256 + 4 * it, 258 + 4 * it)).collect();
            let class = format!("/[{ranges}]/{{1,100}} ");
            let grammar = format!("%llguidance {{}}\nstart: {}", class.repeat((258_000) / class.len()));
            let grammar = grammar.replace('\\', "\\\\").replace('\n', "\\n");
            vec![server.post(TEXT, &format!(r#"{{"prompt": "a", "max_tokens": 8, "grammar": "{grammar}"}}"#))]
        },
    },
    Attack {
        name: "a body of 16 MiB of `{\"\":0},` that nobody reads",
        most: 64,
        answers: &["200"],
        is_isolated: false,
        run: |server| vec![server.post(TEXT, &objects("x", MAX_BODY))],
    },
    Attack {
        name: "eight of them at once",
        most: 256,
        answers: &["200", "503"],
        is_isolated: false,
        run: |server| at_once(8, || server.post(TEXT, &objects("x", MAX_BODY))),
    },
    Attack {
        name: "the same as a JSON schema",
        most: 64,
        answers: &["400"],
        is_isolated: false,
        run: |server| vec![server.post(TEXT, &objects("json_schema", MAX_BODY))],
    },
    Attack {
        name: "eight chats at once, each with the most objects that its tools may have",
        most: 256,
        answers: &["200", "400"],
        is_isolated: false,
        run: |server| {
            let objects = "{\"\":0},".repeat(16_000);
            let tools = format!(
                r#"[{{"type": "function", "function": {{"name": "f", "parameters": {{"enum": [{objects}0]}}}}}}]"#
            );
            let body =
                format!(r#"{{"messages": [{{"role": "user", "content": "a"}}], "max_tokens": 1, "tools": {tools}}}"#);
            at_once(8, || server.post("/v1/chat/completions", &body))
        },
    },
    Attack {
        name: "a prompt of 16 MiB",
        most: 96,
        answers: &["400"],
        is_isolated: false,
        run: |server| vec![server.post(TEXT, &format!(r#"{{"prompt": "{}"}}"#, "a".repeat(MAX_BODY)))],
    },
    Attack {
        name: "160,000 entries of `logit_bias`, with a grammar; 8 tokens",
        most: 64,
        answers: &["400"],
        is_isolated: false,
        run: |server| {
            // The demo model has 1024 tokens, so each is named several times.
            let biases = (0..160_000).map(|it| format!("\"{}{}\": 1", "0".repeat(it / 1024), it % 1024));
            let biases: Vec<String> = biases.collect();
            let grammar = r#""%llguidance {}\nstart: /[a-z]{100}/""#;
            vec![server.post(
                TEXT,
                &format!(
                    r#"{{"prompt": "a", "max_tokens": 8, "grammar": {grammar}, "logit_bias": {{{}}}}}"#,
                    biases.join(",")
                ),
            )]
        },
    },
    Attack {
        name: "300 halves of heads, of 256 open files",
        most: 64,
        answers: &["200"],
        is_isolated: false,
        run: |server| held(server, 300, "GET /health HTTP/1.1\r\nho"),
    },
    Attack {
        name: "256 halves of bodies, of 256 open files",
        most: 64,
        answers: &["200"],
        is_isolated: false,
        run: |server| held(server, 256, &format!("{}{{\"prompt", server.head(TEXT, MAX_BODY))),
    },
    Attack {
        name: "the name of a stranger (DNS rebinding)",
        most: 64,
        answers: &["403"],
        is_isolated: false,
        run: |server| vec![server.sent("GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n")],
    },
    Attack {
        name: "a worker that was stopped (SIGSTOP), and given up after 5 s",
        most: 64,
        answers: &["200"],
        is_isolated: true,
        run: |server| {
            server.stop_worker();
            vec![server.post(TEXT, r#"{"prompt": "a", "max_tokens": 8}"#)]
        },
    },
];

/// Attacks our program, or another program with the same arguments. Fails if the memory or an answer is out of bounds,
/// never because of time.
pub(crate) fn attack(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("what a process holds is read from /proc: Linux only");
    }
    let serve = match arguments {
        [] => {
            setup::native()?;
            run(&mut workspace.cargo(&["build", "--package=autoplace-cli"]))?;
            workspace.target.join("debug/autoplace")
        }
        [serve] => PathBuf::from(serve),
        _ => bail!("usage: cargo xtask attack [PROGRAM]"),
    };
    println!("| attack | memory beyond idle | at most | answered | after | `/health` after |");
    println!("|---|--:|--:|---|--:|--:|");
    let mut broken = Vec::new();
    for attack in ATTACKS {
        let server = Server::start(&serve, attack.is_isolated)?;
        // Includes one-time allocations of the first answer.
        server.post(TEXT, r#"{"prompt": "a", "max_tokens": 1, "grammar": "%llguidance {}\nstart: /[a-z]{9}/"}"#);
        let idle = server.peak()?;
        let begin = Instant::now();
        let (answers, after, health) = thread::scope(|scope| {
            let attacker = scope.spawn(|| ((attack.run)(&server), begin.elapsed()));
            let mut slowest = Duration::ZERO;
            let mut is_well = true;
            loop {
                let asked = Instant::now();
                is_well &= server.sent(&server.health()) == "200";
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
    bail!("the bounds of these are broken:\n{}", broken.join("\n"));
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// A request of about this many bytes with a parameter that is a list of objects.
fn objects(name: &str, bytes: usize) -> String {
    let objects = "{\"\":0},".repeat((bytes - 100) / 7);
    format!(r#"{{"prompt": "a", "max_tokens": 1, "{name}": [{objects}0]}}"#)
}

fn at_once(count: usize, ask: impl Fn() -> String + Sync) -> Vec<String> {
    thread::scope(|scope| {
        let asking: Vec<_> = (0..count).map(|_| scope.spawn(&ask)).collect();
        let mut answers: Vec<String> = asking.into_iter().map(|it| it.join().unwrap_or_default()).collect();
        answers.sort();
        answers
    })
}

/// The status of `/health` while `count` connections have sent only `bytes`.
fn held(server: &Server, count: usize, bytes: &str) -> Vec<String> {
    let _held: Vec<_> = (0..count).map(|_| server.connected(bytes)).collect();
    vec![server.sent(&server.health())]
}

struct Server {
    process: Running,
    address: String,
}

impl Server {
    /// Starts the server on the demo model with a low limit of open files.
    fn start(serve: &Path, is_isolated: bool) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(serve);
        shell.args(["serve", MODEL, "--port", "0", "--template", "chatml", "--parallel", "8", "--ctx", "4096"]);
        if is_isolated {
            shell.args(["--isolated", "--silent", "5"]);
        }
        let pipes = shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Running(pipes.spawn().context("cannot start `sh`")?);
        let mut line = String::new();
        let stdout = process.0.stdout.as_mut().context("piped")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line.trim_end().strip_prefix("listening on http://").map(str::to_owned);
        let server = Self { process, address: address.unwrap_or_default() };
        if server.address.is_empty() {
            bail!("{} does not start", serve.display());
        }
        Ok(server)
    }

    fn health(&self) -> String {
        format!("GET /health HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.address)
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

    /// The status of the answer to these bytes.
    fn sent(&self, bytes: &str) -> String {
        let mut status = [0; 12];
        let read = self.connected(bytes).map(|mut it| it.read_exact(&mut status));
        match read {
            Some(Ok(())) => String::from_utf8_lossy(&status[9..]).into_owned(),
            _ => "no answer".to_owned(),
        }
    }

    /// The server's peak memory in KiB.
    fn peak(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|it| it.trim().strip_suffix(" kB")).context("VmHWM in kB")?;
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
