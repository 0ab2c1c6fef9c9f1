//! A real llama-server on the demo model, compiled by `cargo xtask llama-server`.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::running::Running;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/model/autoplace-demo-q8_0.gguf");

pub struct LlamaServer {
    pub process: Running,
    pub url: String,
}

impl LlamaServer {
    /// Starts the server with these additional arguments, and waits until it answers.
    pub fn new(arguments: &[&str]) -> Self {
        let program = std::env::var("AUTOPLACE_LLAMA_SERVER").expect("cargo xtask llama-server says where it is");
        let (process, address) = Running::at_a_free_port(|address| {
            let mut command = Command::new(&program);
            command.args(["-m", DEMO, "--port", &address.port().to_string()]).args(arguments);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        });
        let mut server = Self { process, url: format!("http://{address}") };
        // The loop goes on as long as the process runs.
        while ureq::get(format!("{}/health", server.url)).call().is_err() {
            assert_eq!(server.process.try_wait().unwrap(), None);
            sleep(Duration::from_millis(50));
        }
        server
    }
}
