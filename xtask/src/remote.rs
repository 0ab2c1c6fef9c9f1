//! `rpc-server` and `demo --remote`: uses the devices of other machines. The other machines are simulated on this one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::setup;
use crate::workspace::{Running, Workspace, run};

/// A server is killed when the example has written this many bytes of text.
const SAID: usize = 150;

/// Builds `autoplace-rpc-server` from the pinned source and prints its path. With arguments, also runs it.
pub(crate) fn rpc_server(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let program = build(workspace)?;
    if arguments.is_empty() {
        println!("{}", program.display());
        return Ok(());
    }
    run(Command::new(program).args(arguments))
}

fn build(workspace: &Workspace) -> Result<PathBuf> {
    setup::native()?;
    let example = ["--package=autoplace-examples", "--example=remote", "--features=autoplace-examples/rpc"];
    run(workspace.compile("build", &["--package=autoplace", "--bins"]).args(example))?;
    Ok(workspace.target.join("debug/autoplace-rpc-server"))
}

/// Starts two servers on loopback, shows the plan and the text, and kills one server in the middle of the text.
pub(crate) fn demo(workspace: &Workspace) -> Result<()> {
    let program = build(workspace)?;
    let servers: Vec<Server> = (0..2).map(|_| Server::start(&program)).collect::<Result<_>>()?;
    let mut example = Command::new(workspace.target.join("debug/examples/remote"))
        .args(["--all", "-n", "100"])
        .args(servers.iter().map(|server| &server.endpoint))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut out = example.stdout.take().context("a pipe")?;
    let mut said = Vec::new();
    let mut piece = [0; 256];
    let mut killed = false;
    loop {
        let n = out.read(&mut piece)?;
        if n == 0 {
            break;
        }
        std::io::stdout().write_all(&piece[..n])?;
        std::io::stdout().flush()?;
        said.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&said);
        let begun = text.find("And the king said").map_or(0, |at| text.len() - at);
        if begun > SAID && !killed {
            // The plan lists the servers in use.
            let used = servers.iter().find(|server| text.contains(&server.endpoint)).context("a server of the plan")?;
            eprint!("\n[the server {} is killed]\n", used.endpoint);
            used.kill()?;
            killed = true;
        }
    }
    let ended = example.wait()?;
    ensure!(ended.success() && killed, "the example ended with {ended}");
    Ok(())
}

struct Server {
    process: std::cell::RefCell<Running>,
    endpoint: String,
}

impl Server {
    fn start(program: &PathBuf) -> Result<Self> {
        let endpoint = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let process = Running(Command::new(program).args([&endpoint, "CPU"]).stdout(Stdio::null()).spawn()?);
        let begin = Instant::now();
        while TcpStream::connect(&endpoint).is_err() {
            ensure!(begin.elapsed() < Duration::from_secs(60), "the server does not listen at {endpoint}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { process: process.into(), endpoint })
    }

    fn kill(&self) -> Result<()> {
        let process = &mut self.process.borrow_mut().0;
        process.kill()?;
        process.wait()?;
        Ok(())
    }
}
