//! `autoplace serve` beside llama.cpp's llama-server: times and memory, as tables. Each test is ignored, and has a verb
//! of `cargo xtask`, which compiles both programs with the same options.
//!
//! In: a model, and both programs. Out: running servers, and the times and tokens of their texts.

mod conversations;
mod first_token;
mod server_memory;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use test_support::running::Running;

/// Words of the prompts. In most vocabularies, each word is one or two tokens.
const WORDS: [&str; 16] = [
    "sea", "river", "stone", "light", "winter", "morning", "garden", "letter", "music", "window", "bread", "forest",
    "silver", "summer", "evening", "silence",
];
/// Maximum time for a server to load the model, and to answer.
const PATIENCE: Duration = Duration::from_secs(900);

/// The variables with a test's arguments, one a line, and with the programs of both servers.
const ARGUMENTS: &str = "AUTOPLACE_BESIDE_ARGUMENTS";
const OURS: &str = "AUTOPLACE_SERVER";
const THEIRS: &str = "AUTOPLACE_LLAMA_SERVER";

/// The arguments of a test: `MODEL [NUMBER] [PART]`.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    model: PathBuf,
    /// A number that the test defines, such as rounds or requests.
    number: usize,
    /// A word that selects the parts with that word in their names. The empty word selects all parts.
    part: String,
}

impl Arguments {
    /// The arguments in the environment, as [`read`](Self::read) parses them.
    fn from_environment(usage: &str, number: usize, parts: &[&str]) -> Result<Self> {
        let given = std::env::var(ARGUMENTS).unwrap_or_default();
        Self::read(&given.lines().map(str::to_owned).collect::<Vec<_>>(), usage, number, parts)
    }

    /// Parses the arguments. `usage` is the text for an error, and `number` is the default. `parts` are the names of
    /// the parts that can be measured separately.
    fn read(arguments: &[String], usage: &str, number: usize, parts: &[&str]) -> Result<Self> {
        let usage = || format!("usage: cargo xtask {usage}");
        let Some((model, rest)) = arguments.split_first() else { bail!(usage()) };
        let mut read = Self { model: std::path::absolute(model)?, number, part: String::new() };
        ensure!(read.model.is_file(), "{} is not a file", read.model.display());
        let mut rest = rest.iter();
        let mut next = rest.next();
        if let Some(number) = next.and_then(|word| word.parse().ok()) {
            read.number = number;
            next = rest.next();
        }
        if let Some(part) = next {
            let has_part = parts.iter().any(|name| name.contains(part.as_str()));
            ensure!(has_part, "no part has `{part}` in its name: {parts:?}\n{}", usage());
            read.part.clone_from(part);
        }
        ensure!(rest.next().is_none(), usage());
        Ok(read)
    }

    fn has(&self, part: &str) -> bool {
        part.contains(&self.part)
    }
}

/// Pseudo-random numbers, which are the same for both servers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

/// The words of a prompt.
fn words(seed: u64, n: usize) -> String {
    let mut random = Random(seed);
    (0..n).map(|_| WORDS[random.below(WORDS.len())]).collect::<Vec<_>>().join(" ")
}

/// The times of one text in seconds, from the moment of the request.
#[derive(Debug, Clone)]
struct Timed {
    first: f64,
    end: f64,
    longest_gap: f64,
    prompt_tokens: u64,
    tokens: u64,
}

/// Both servers.
fn servers() -> Result<[Kind; 2]> {
    let program = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from).with_context(|| format!("{name} names no program"))?;
        ensure!(path.is_file(), "{name}: there is no file {}", path.display());
        Ok(path)
    };
    Ok([Kind::Autoplace(program(OURS)?), Kind::LlamaServer(program(THEIRS)?)])
}

/// A kind of server, and its program.
enum Kind {
    Autoplace(PathBuf),
    LlamaServer(PathBuf),
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Autoplace(_) => "autoplace serve",
            Self::LlamaServer(_) => "llama-server",
        }
    }

    /// The command for a server with `sequences` places that share `n_ctx` tokens. `more` are further arguments that
    /// both servers accept.
    fn command(&self, model: &Path, port: u16, sequences: usize, n_ctx: usize, more: &[&str]) -> Command {
        let (n_ctx, sequences, port) = (n_ctx.to_string(), sequences.to_string(), port.to_string());
        let (program, mut arguments) = match self {
            Self::Autoplace(program) => (program, vec!["serve"]),
            Self::LlamaServer(program) => (program, vec!["--no-webui", "-m"]),
        };
        arguments.extend([model.to_str().expect("a path in UTF-8"), "--port", &port, "--parallel", &sequences]);
        arguments.extend(["-c", &n_ctx]);
        let mut command = Command::new(program);
        command.args(arguments).args(more);
        command
    }
}

/// A running server.
struct Server {
    process: Running,
    address: SocketAddr,
}

impl Server {
    fn start(kind: &Kind, model: &Path, sequences: usize, n_ctx: usize, more: &[&str]) -> Result<Self> {
        // The listener is dropped here, so the port is free again.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = std::env::temp_dir().join(format!("first-token-{}.log", address.port()));
        let mut command = kind.command(model, address.port(), sequences, n_ctx, more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let process = Running(command.spawn().with_context(|| format!("{command:?}"))?);
        let mut server = Self { process, address };
        let begun = Instant::now();
        while !server.is_ready() {
            let ended = server.process.try_wait()?;
            ensure!(ended.is_none() && begun.elapsed() < PATIENCE, "{} did not start: {}", kind.name(), log.display());
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// The peak memory of the process, in bytes (Linux).
    fn peak_memory(&self) -> Option<u64> {
        self.process.memory("VmHWM")
    }

    /// The current memory of the process, in bytes (Linux).
    fn memory(&self) -> Option<u64> {
        self.process.memory("VmRSS")
    }

    fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address) else { return false };
        let mut answer = String::new();
        let asked = write!(stream, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
    }

    /// Requests a chat completion with this body. Returns the connection, from which the caller must read the whole
    /// answer.
    fn ask(&self, body: &Value) -> Result<TcpStream> {
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")?;
        write!(stream, "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        Ok(stream)
    }

    /// Requests the stream of one text.
    fn stream(&self, number: usize, words: usize, tokens: usize) -> Result<BufReader<TcpStream>> {
        let body = json!({
            "messages": [{"role": "user", "content": prompt(number, words)}],
            "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        Ok(BufReader::new(self.ask(&body)?))
    }

    /// Requests one text, and closes the connection after this many events of its stream.
    fn leave(&self, number: usize, words: usize, tokens: usize, events: usize) -> Result<()> {
        let mut left = events;
        let mut lines = self.stream(number, words, tokens)?.lines();
        while left > 0 {
            let line = lines.next().context("the stream ended early")??;
            ensure!(!line.contains("\"error\""), "{line}");
            left -= usize::from(line.starts_with("data: "));
        }
        Ok(())
    }

    /// Requests one text and reads its stream. `begun` is called at the first token.
    fn text(&self, number: usize, words: usize, tokens: usize, mut begun: impl FnMut()) -> Result<Timed> {
        let asked = Instant::now();
        let stream = self.stream(number, words, tokens)?;
        let mut text = Timed { first: 0.0, end: 0.0, longest_gap: 0.0, prompt_tokens: 0, tokens: 0 };
        let mut before = 0.0;
        for line in stream.lines() {
            let line = line?;
            ensure!(!line.contains("\"error\""), "{line}");
            let Some(event) = line.strip_prefix("data: ") else { continue };
            if event == "[DONE]" {
                // The loop ends here, because a server may keep the connection open.
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

/// A prompt of about `words` words. No two prompts have the same beginning.
fn prompt(number: usize, words: usize) -> String {
    format!("{number}. {}", self::words(number as u64 + 1, words))
}

const PARTS: [&str; 2] = ["8 prompts", "32 prompts"];

fn parsed(arguments: &[&str]) -> Option<(usize, String)> {
    let file = format!("{}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("FILE", &file)).collect();
    let read = Arguments::read(&arguments, "verb MODEL [NUMBER] [PART]", 3, &PARTS).ok()?;
    assert_eq!(read.model, Path::new(&file));
    Some((read.number, read.part))
}

#[test]
fn a_comparison_takes_a_model_and_optionally_a_number_and_a_part() {
    assert_eq!(parsed(&["FILE"]), Some((3, String::new())));
    assert_eq!(parsed(&["FILE", "1"]), Some((1, String::new())));
    assert_eq!(parsed(&["FILE", "32 prompts"]), Some((3, "32 prompts".to_owned())));
    assert_eq!(parsed(&["FILE", "1", "prompts"]), Some((1, "prompts".to_owned())));
}

#[test]
fn unknown_arguments_of_a_comparison_are_refused() {
    for arguments in [&[][..], &["no such file"], &["FILE", "texts"], &["FILE", "1", "prompts", "x"]] {
        assert_eq!(parsed(arguments), None, "{arguments:?}");
    }
}
