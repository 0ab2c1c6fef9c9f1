//! `first-token`: measures how long many people wait for their first token, at `autoplace serve` and at the
//! llama-server of the pinned llama.cpp.
//!
//! In: a model, and both servers, compiled with the same options. Out: Markdown tables on standard output. The servers
//! take turns. Each round starts a new server, so no prompt is cached.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::llama_tools;
use crate::workspace::{Running, Workspace, run};

/// Sequences of both servers, and the context that the sequences share.
const SEQUENCES: usize = 8;
const N_CTX: usize = 8 * 4096;
/// Tokens of each answer, and of the answer that runs before the prompts arrive.
const ANSWER: usize = 64;
const RUNNING: usize = 400;
/// Words that make the prompts. Each is a token or two of most vocabularies.
const WORDS: [&str; 16] = [
    "sea", "river", "stone", "light", "winter", "morning", "garden", "letter", "music", "window", "bread", "forest",
    "silver", "summer", "evening", "silence",
];
/// Maximum time for a server to load the model, and to answer.
const PATIENCE: Duration = Duration::from_secs(900);

/// Prompts that arrive at once, while one other text may be running.
struct Load {
    name: &'static str,
    /// Words of each prompt.
    prompts: Vec<usize>,
    /// Whether a text is generated when the prompts arrive.
    is_busy: bool,
}

fn loads() -> Vec<Load> {
    // From 100 to 3,000 words, mostly short ones, like people's prompts; in no order.
    let mixed = |n: usize| -> Vec<usize> {
        let at = |place: usize| (100.0 * 30_f64.powf(place as f64 / (n - 1) as f64)) as usize;
        (0..n).map(|number| at(number * 5 % n)).collect()
    };
    vec![
        Load { name: "8 prompts of 700 tokens", prompts: vec![700; 8], is_busy: false },
        Load { name: "8 prompts of 100 to 3,000 tokens", prompts: mixed(8), is_busy: false },
        Load { name: "32 prompts of 100 to 3,000 tokens", prompts: mixed(32), is_busy: false },
        Load { name: "7 prompts of 700 tokens beside a text", prompts: vec![700; 7], is_busy: true },
    ]
}

/// The seconds of one text, from the moment of the request.
#[derive(Debug, Clone)]
pub(crate) struct Timed {
    first: f64,
    end: f64,
    longest_gap: f64,
    prompt_tokens: u64,
    tokens: u64,
}

/// The figures of one load at one server.
#[derive(Debug, Clone, Copy)]
struct Figures {
    mean_first: f64,
    last_first: f64,
    longest_gap: f64,
    /// Tokens of prompts and answers per second.
    throughput: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean_first, last_first, longest_gap, throughput } = self;
        write!(f, "{mean_first:.2} s | {last_first:.2} s | {longest_gap:.2} s | {throughput:.0} tok/s")
    }
}

impl Figures {
    fn new(texts: &[Timed]) -> Self {
        let most = |of: fn(&Timed) -> f64| texts.iter().map(of).fold(0.0, f64::max);
        let tokens: u64 = texts.iter().map(|text| text.prompt_tokens + text.tokens).sum();
        Self {
            mean_first: texts.iter().map(|text| text.first).sum::<f64>() / texts.len() as f64,
            last_first: most(|text| text.first),
            longest_gap: most(|text| text.longest_gap),
            throughput: tokens as f64 / most(|text| text.end),
        }
    }

    /// The median of each figure.
    fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        Self {
            mean_first: of(|it| it.mean_first),
            last_first: of(|it| it.last_first),
            longest_gap: of(|it| it.longest_gap),
            throughput: of(|it| it.throughput),
        }
    }
}

/// Measures with this model. The second argument is the number of rounds; the default is three.
pub(crate) fn first_token(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    const USAGE: &str = "cargo xtask first-token MODEL [ROUNDS]";
    let (model, rounds) = match arguments {
        [model] => (model, 3),
        [model, rounds] => (model, rounds.parse().context(USAGE)?),
        _ => anyhow::bail!("usage: {USAGE}"),
    };
    let model = model_file(model)?;
    let servers = servers(workspace)?;
    for load in loads() {
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            // The order alternates, so that neither server always follows the other.
            for number in 0..2 {
                let server = if round % 2 == 0 { number } else { 1 - number };
                let measured = measure(&servers[server], &model, &load)?;
                eprintln!("{}, round {}: {}: {measured}", load.name, round + 1, servers[server].name());
                figures[server].push(measured);
            }
        }
        print(&load, &servers, &figures);
    }
    Ok(())
}

fn print(load: &Load, servers: &[Kind; 2], figures: &[Vec<Figures>; 2]) {
    println!(
        "\n| {} | mean time to the first token | the last first token | longest gap within a text | prompts and answers |",
        load.name
    );
    println!("|---|--:|--:|--:|--:|");
    let medians = figures.each_ref().map(|rounds| Figures::median(rounds));
    for (server, median) in servers.iter().zip(&medians) {
        println!("| {} | {median} |", server.name());
    }
    let [ours, theirs] = medians;
    println!(
        "| *ratio* | {:.2} | {:.2} | {:.2} | {:.2} |",
        ours.mean_first / theirs.mean_first,
        ours.last_first / theirs.last_first,
        ours.longest_gap / theirs.longest_gap,
        ours.throughput / theirs.throughput
    );
}

/// The model that an argument names.
pub(crate) fn model_file(argument: &str) -> Result<PathBuf> {
    let model = std::path::absolute(argument)?;
    ensure!(model.is_file(), "{} is no file", model.display());
    Ok(model)
}

/// Pseudo-random numbers, the same for both servers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

/// Words of a prompt.
pub(crate) fn words(seed: u64, n: usize) -> String {
    let mut random = Random(seed);
    (0..n).map(|_| WORDS[random.below(WORDS.len())]).collect::<Vec<_>>().join(" ")
}

/// Compiles both servers with the same options.
pub(crate) fn servers(workspace: &Workspace) -> Result<[Kind; 2]> {
    run(&mut workspace.cargo(&["build", "--release", "--package=autoplace-cli"]))?;
    let ours = workspace.target.join("release").join(format!("autoplace{}", std::env::consts::EXE_SUFFIX));
    let folder = llama_tools::build(workspace, &["llama-server"])?;
    let theirs = folder.join(format!("llama-server{}", std::env::consts::EXE_SUFFIX));
    Ok([Kind::Autoplace(ours), Kind::LlamaServer(theirs)])
}

/// A kind of server, and its program.
pub(crate) enum Kind {
    Autoplace(PathBuf),
    LlamaServer(PathBuf),
}

impl Kind {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Autoplace(_) => "autoplace serve",
            Self::LlamaServer(_) => "llama-server",
        }
    }

    /// A server with `sequences` places that share `n_ctx` tokens.
    fn command(&self, model: &Path, address: SocketAddr, sequences: usize, n_ctx: usize) -> Command {
        let (n_ctx, sequences, port) = (n_ctx.to_string(), sequences.to_string(), address.port().to_string());
        let (program, mut arguments) = match self {
            Self::Autoplace(program) => (program, vec!["serve"]),
            Self::LlamaServer(program) => (program, vec!["--no-webui", "-m"]),
        };
        arguments.extend([model.to_str().expect("a path in UTF-8"), "--port", &port, "--parallel", &sequences]);
        arguments.extend(["-c", &n_ctx]);
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }
}

pub(crate) struct Server {
    process: Running,
    address: SocketAddr,
}

impl Server {
    pub(crate) fn start(kind: &Kind, model: &Path, sequences: usize, n_ctx: usize) -> Result<Self> {
        // The port is free again when the listener is dropped.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = std::env::temp_dir().join(format!("first-token-{}.log", address.port()));
        let mut command = kind.command(model, address, sequences, n_ctx);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let process = command.spawn().with_context(|| format!("{command:?}"))?;
        let mut server = Self { process: Running(process), address };
        let begun = Instant::now();
        while !server.is_ready() {
            let ended = server.process.0.try_wait()?;
            ensure!(ended.is_none() && begun.elapsed() < PATIENCE, "{} did not start: {}", kind.name(), log.display());
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// The most memory that the process has held, in bytes (Linux).
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        self.status("VmHWM:")
    }

    /// The memory that the process holds now, in bytes (Linux).
    pub(crate) fn memory(&self) -> Option<u64> {
        self.status("VmRSS:")
    }

    fn status(&self, name: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
    }

    fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address) else { return false };
        let mut answer = String::new();
        let asked = write!(stream, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
    }

    /// Asks for a chat completion with this body. Returns the connection, from which the whole answer is to be read.
    pub(crate) fn ask(&self, body: &Value) -> Result<TcpStream> {
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")?;
        write!(stream, "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        Ok(stream)
    }

    /// Asks for the stream of one text.
    fn stream(&self, number: usize, words: usize, tokens: usize) -> Result<BufReader<TcpStream>> {
        let body = json!({
            "messages": [{"role": "user", "content": prompt(number, words)}],
            "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        Ok(BufReader::new(self.ask(&body)?))
    }

    /// Asks for one text, and closes the connection with the first event of its stream.
    pub(crate) fn leave(&self, number: usize, words: usize, tokens: usize) -> Result<()> {
        for line in self.stream(number, words, tokens)?.lines() {
            let line = line?;
            ensure!(!line.contains("\"error\""), "{line}");
            if line.starts_with("data: ") {
                return Ok(());
            }
        }
        anyhow::bail!("the stream has no event")
    }

    /// Asks for one text and reads its stream. `begun` is called with the first token.
    pub(crate) fn text(&self, number: usize, words: usize, tokens: usize, mut begun: impl FnMut()) -> Result<Timed> {
        let asked = Instant::now();
        let stream = self.stream(number, words, tokens)?;
        let mut text = Timed { first: 0.0, end: 0.0, longest_gap: 0.0, prompt_tokens: 0, tokens: 0 };
        let mut before = 0.0;
        for line in stream.lines() {
            let line = line?;
            ensure!(!line.contains("\"error\""), "{line}");
            let Some(event) = line.strip_prefix("data: ") else { continue };
            if event == "[DONE]" {
                // A server may keep the connection open.
                break;
            }
            let event: Value = serde_json::from_str(event).with_context(|| line.clone())?;
            let now = asked.elapsed().as_secs_f64();
            if event["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()) {
                if text.first == 0.0 {
                    text.first = now;
                    begun();
                } else {
                    text.longest_gap = text.longest_gap.max(now - before);
                }
                before = now;
                text.end = now;
            }
            if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
                text.prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
                text.tokens = usage["completion_tokens"].as_u64().unwrap_or(0);
            }
        }
        ensure!(text.tokens == tokens as u64, "{} tokens instead of {tokens}", text.tokens);
        Ok(text)
    }
}

/// A prompt of about `words` tokens that shares no beginning with another.
fn prompt(number: usize, words: usize) -> String {
    format!("{number}. {}", self::words(number as u64 + 1, words))
}

fn measure(kind: &Kind, model: &Path, load: &Load) -> Result<Figures> {
    let server = &Server::start(kind, model, SEQUENCES, N_CTX)?;
    thread::scope(|scope| {
        let running = load.is_busy.then(|| {
            let (begun, begins) = std::sync::mpsc::channel();
            let text = scope.spawn(move || server.text(1000, 20, RUNNING, || begun.send(()).unwrap_or_default()));
            // An error comes with the text.
            let _ = begins.recv();
            text
        });
        let texts: Vec<_> = (0..)
            .zip(&load.prompts)
            .map(|(number, words)| scope.spawn(move || server.text(number, *words, ANSWER, || {})))
            .collect();
        let texts =
            texts.into_iter().map(|text| text.join().expect("it does not panic")).collect::<Result<Vec<_>>>()?;
        let mut figures = Figures::new(&texts);
        if let Some(running) = running {
            // Only the reader of the running text sees a gap.
            figures.longest_gap = running.join().expect("it does not panic")?.longest_gap;
        }
        Ok(figures)
    })
}
