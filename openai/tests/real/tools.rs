//! llama.cpp's own programs.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::rows::Outcome;
use crate::setting::{Setting, THREADS};

/// A llama-server with a model. The server ends when this value is dropped.
pub(crate) struct LlamaServer {
    process: Child,
    url: String,
    /// The file with the template, which the server reads.
    _template: NamedTempFile,
}

impl LlamaServer {
    /// Starts the server and waits until it answers. `None` without llama.cpp's programs.
    pub(crate) fn start(setting: &Setting) -> Outcome<Option<Self>> {
        let Some(program) = setting.tool("llama-server") else { return Ok(None) };
        let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let template = NamedTempFile::new()?;
        std::fs::write(&template, setting.template()?.source_for(false).ok_or("there is no template")?)?;
        let mut command = Command::new(&program);
        command.arg("-m").arg(&setting.path).arg("--chat-template-file").arg(template.path());
        command.args(["--port", &free.port().to_string(), "-c", "4096", "-np", "1", "--jinja", "--no-webui"]);
        command.args(["-t", &THREADS.to_string(), "-tb", &THREADS.to_string()]);
        // If a model has windows, the server makes checkpoints. For these it would compute the last tokens of a prompt
        // separately, and they would be rounded in another way (server-context.cpp).
        command.args(["--ctx-checkpoints", "0"]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.map_err(|error| format!("{}: {error}", program.display()))?;
        let mut server = Self { process, url: format!("http://{free}"), _template: template };
        while ureq::get(format!("{}/health", server.url)).call().is_err() {
            if let Some(status) = server.process.try_wait()? {
                return Err(format!("{} has ended: {status}", program.display()).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Some(server))
    }

    /// The server's answer to a request. An error contains the server's message.
    pub(crate) fn ask<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Outcome<T> {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent.post(format!("{}{path}", self.url)).send_json(body)?;
        let text = answer.body_mut().with_config().limit(1 << 30).read_to_string()?;
        if answer.status() != 200 {
            return Err(format!("llama-server answers {path} with {}: {text}", answer.status()).into());
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// The tokens that the server returns for a text.
    pub(crate) fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Outcome<Vec<i32>> {
        let body = json!({"content": text, "add_special": add_special, "parse_special": parse_special});
        let answer: Value = self.ask("/tokenize", &body)?;
        Ok(serde_json::from_value(answer["tokens"].clone())?)
    }
}

impl Drop for LlamaServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The output of one of llama.cpp's programs on stdout and on stderr. `None` if the programs are missing.
pub(crate) fn output(setting: &Setting, name: &str, arguments: &[&str]) -> Outcome<Option<(String, String)>> {
    let Some(program) = setting.tool(name) else { return Ok(None) };
    let output = Command::new(&program).arg("-m").arg(&setting.path).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{name} has failed ({}): {said}", output.status).into());
    }
    // If the last token ends within a character, the output ends there too.
    Ok(Some((String::from_utf8_lossy(&output.stdout).into_owned(), said)))
}
