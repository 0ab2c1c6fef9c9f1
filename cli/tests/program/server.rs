//! A running `autoplace serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::NamedTempFile;
use test_support::running::Running;

use crate::cli_support::User;

pub(crate) const MODEL: &str = "autoplace-demo-q8_0";
pub(crate) const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";

/// How long a test waits at most before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Server {
    child: Running,
    /// The user in whose folders the server works.
    _user: User,
    /// The address, such as `127.0.0.1:12345`.
    pub(crate) address: String,
    /// The text that the server has written to stderr.
    said: NamedTempFile,
}

impl Server {
    /// Starts the server with the demo model. It has a template, unless `args` name another.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(FILE, args)
    }

    /// Starts the server with this model. A model that is not the demo model uses its own template, unless `args` name
    /// another.
    pub(crate) fn start_with(model: &str, args: &[&str]) -> Self {
        let user = User::new();
        Self::run(user.command(&[]), user, model, args)
    }

    /// Starts the server with the demo model and these variables in its environment.
    pub(crate) fn start_in(environment: &[(&str, &str)], args: &[&str]) -> Self {
        let user = User::new();
        let mut program = user.command(&[]);
        program.envs(environment.iter().copied());
        Self::run(program, user, FILE, args)
    }

    /// Starts a server without a model's name, with these variables in its environment.
    pub(crate) fn start_without_model(environment: &[(&str, &str)], args: &[&str]) -> Self {
        let user = User::new();
        let mut program = user.command(&[]);
        program.envs(environment.iter().copied()).arg("serve").args(args);
        Self::spawned(program, user)
    }

    /// Starts a server of several models with these arguments. Each model has one thread.
    pub(crate) fn start_pool(args: &[&str]) -> Self {
        let user = User::new();
        let mut program = user.command(&[]);
        program.args(["serve", "--port", "0", "--threads", "1"]).args(args);
        Self::spawned(program, user)
    }

    /// Starts the server with few permitted files and connections: as few as on the strictest systems.
    #[cfg(unix)]
    pub(crate) fn start_with_few_files(args: &[&str]) -> Self {
        let user = User::new();
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]);
        shell.arg(env!("CARGO_BIN_EXE_autoplace"));
        Self::run(shell, user, FILE, args)
    }

    fn run(mut program: Command, user: User, model: &str, args: &[&str]) -> Self {
        program
            .args(["serve", model, "--port", "0"])
            .args(if model != FILE || args.contains(&"--template") { &[][..] } else { &["--template", "chatml"] })
            // The demo model gets only one thread. While other tests run too, two threads would wait for each other.
            .args(if model == FILE { &["--threads", "1"][..] } else { &[] })
            .args(args);
        Self::spawned(program, user)
    }

    fn spawned(mut program: Command, user: User) -> Self {
        let said = NamedTempFile::new().expect("a temporary file");
        let child = program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(said.reopen().expect("a handle"))
            .spawn()
            .expect("the program starts");
        let mut child = Running(child);
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("text");
        let mut server = Self { child, _user: user, address: String::new(), said };
        let address = line.trim_end().strip_prefix("listening on http://");
        server.address = address.unwrap_or_else(|| panic!("{line:?}{}", server.said())).to_owned();
        server
    }

    /// The text that the server has written to stderr so far: the placement, and a line for each request.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.said).expect("text")
    }

    /// The maximum of the server's memory since [`reset_peak`](Self::reset_peak), in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak(&self) -> u64 {
        self.child.memory("VmHWM").expect("it runs")
    }

    /// The server's memory now, in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn held(&self) -> u64 {
        self.child.memory("VmRSS").expect("it runs")
    }

    /// Sets the maximum to the memory that the server uses now.
    #[cfg(target_os = "linux")]
    pub(crate) fn reset_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").expect("it is a child of this process");
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The status and the body of the answer to a request with this body.
    pub(crate) fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let agent = agent();
        let request = agent.post(self.url(path));
        let response = request.content_type("application/json").send(body);
        read(response.expect("an answer"))
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        read(agent().get(self.url(path)).call().expect("an answer"))
    }

    /// A connection on which these bytes were sent.
    pub(crate) fn connected(&self, bytes: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(bytes.as_bytes()).expect("it reads");
        stream
    }

    /// The answer to a request whose head consists of these lines.
    pub(crate) fn raw(&self, lines: &[&str]) -> String {
        rest(&self.connected(&format!("{}\r\nconnection: close\r\n\r\n", lines.join("\r\n"))))
    }

    /// A connection on which a request was sent, but no answer was read.
    pub(crate) fn sent(&self, path: &str, body: &str) -> TcpStream {
        self.connected(&format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.address,
            body.len(),
        ))
    }

    /// The state of the engine: `running`, `queued`, `generated_tokens`.
    pub(crate) fn engine(&self) -> Value {
        self.get("/health").1["engine"].take()
    }

    /// Waits until the predicate is true for the engine's state.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..PATIENCE.as_millis() / 10 {
            let engine = self.engine();
            if is_there(&engine) {
                return engine;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{what}: {}", self.engine());
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    #[cfg(unix)]
    pub(crate) fn interrupt(&self) {
        self.signal("-INT");
    }

    #[cfg(unix)]
    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(kill.expect("kill starts").success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it was started")
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
    config.build().into()
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = response.body_mut().read_json();
    (status, body.expect("each answer is JSON"))
}

/// The rest of a stream.
pub(crate) fn rest(mut stream: &TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("it goes on");
    String::from_utf8(bytes).expect("text")
}

/// Reads until this text has arrived.
pub(crate) fn read_until(stream: &TcpStream, text: &str) {
    seen_until(stream, text);
}

/// Everything up to this text, which ends it.
pub(crate) fn seen_until(mut stream: &TcpStream, text: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(text.as_bytes()) {
        assert_eq!(stream.read(&mut byte).expect("it goes on"), 1);
        seen.push(byte[0]);
    }
    String::from_utf8(seen).expect("text")
}
