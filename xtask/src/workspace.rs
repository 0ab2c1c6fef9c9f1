//! The repository's location, and commands that run in it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The repository and its build folder.
pub(crate) struct Workspace {
    /// The folder with the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
    /// Vulkan's headers and loader, if the build uses them.
    pub(crate) vulkan: Option<PathBuf>,
    /// Whether clippy compiles everything that `cargo test` compiles, with warnings as errors.
    pub(crate) clippy: bool,
}

impl Workspace {
    /// Finds the workspace by the variables that cargo sets for the programs that it runs.
    pub(crate) fn find() -> Result<Self> {
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&here).parent().context("xtask lies in the workspace")?.to_owned();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(dir) => std::path::absolute(dir)?,
            None => root.join("target"),
        };
        Ok(Self { root, target, vulkan: None, clippy: false })
    }

    /// A command that runs the same cargo as this program, in the root folder.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let cargo = PathBuf::from(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let mut command = Command::new(&cargo);
        // Build scripts read this variable, so a changed value would make them run again.
        command.current_dir(&self.root).args(arguments).env_remove("CARGO_MANIFEST_DIR");
        if self.clippy && arguments.first() == Some(&"test") {
            // rustc is replaced by a compiler that also lints, as in `cargo clippy`. `cargo clippy` itself is not used,
            // because it only checks and the tests would then be compiled a second time.
            command.env("RUSTC_WORKSPACE_WRAPPER", cargo.with_file_name("clippy-driver"));
            command.env("CLIPPY_ARGS", "-Dwarnings");
        }
        if let Some(sdk) = &self.vulkan {
            command.env("VULKAN_SDK", sdk).env("CMAKE_PREFIX_PATH", sdk);
            let launcher = sdk.join("bin/launch-c++");
            if launcher.exists() {
                command.env("CMAKE_CXX_COMPILER_LAUNCHER", launcher);
            }
        }
        command
    }

    /// Runs git in the root folder, and returns its output.
    pub(crate) fn git(&self, arguments: &[&str]) -> Result<String> {
        output(Command::new("git").current_dir(&self.root).args(arguments))
    }

    /// A cargo command that compiles llama.cpp. It always uses the same features.
    pub(crate) fn compile(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = self.cargo(&[verb]);
        command.arg(match self.vulkan {
            Some(_) => "--features=autoplace/hub,autoplace/rpc,autoplace/vulkan",
            None => "--features=autoplace/hub,autoplace/rpc",
        });
        command.args(arguments);
        command
    }

    /// The workspace's packages, from `cargo metadata`.
    pub(crate) fn packages(&self) -> Result<Vec<Value>> {
        let metadata = output(&mut self.cargo(&["metadata", "--no-deps", "--offline", "--format-version=1"]))?;
        let mut metadata: Value = serde_json::from_str(&metadata)?;
        serde_json::from_value(metadata["packages"].take()).context("cargo metadata lists packages")
    }

    /// The folders of llama-sys's native builds of llama.cpp, one for each source and set of options (see
    /// `llama-sys/build/compile.rs`).
    pub(crate) fn native_builds(&self) -> BTreeSet<PathBuf> {
        self.builds_with_mtmd().into_iter().filter(|build| !is_of_mtmd(build)).collect()
    }

    /// The folders of [`native_builds`](Self::native_builds), and those of mtmd (see `llama-sys/build/mtmd.rs`).
    pub(crate) fn builds_with_mtmd(&self) -> BTreeSet<PathBuf> {
        let Some(dir) = std::env::var_os("AUTOPLACE_LLAMA_BUILD_DIR") else {
            return BTreeSet::new();
        };
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }
}

fn is_of_mtmd(build: &Path) -> bool {
    build.file_name().is_some_and(|name| name.to_string_lossy().starts_with("mtmd-"))
}

/// A program that is ended when this value is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts a command that runs `autoplace serve`. Returns the running program and the server's address, such as
    /// `127.0.0.1:8080`.
    pub(crate) fn server(command: &mut Command) -> Result<(Self, String)> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut process = Self(child.with_context(|| format!("cannot start `{}`", line(command)))?);
        let mut said = String::new();
        BufReader::new(process.0.stdout.as_mut().context("piped")?).read_line(&mut said)?;
        let address = said.trim_end().strip_prefix("listening on http://");
        let address =
            address.with_context(|| format!("`{}` printed {said:?} instead of its address", line(command)))?;
        Ok((process, address.to_owned()))
    }
}

/// Runs a command. Its output goes to our output. The error for a failure names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    outcome(command, status)
}

/// The error for a failure of a command, which names the command.
pub(crate) fn outcome(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", line(command));
    }
    Ok(())
}

/// Runs a command and returns its stdout. Its stderr goes to our stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !output.status.success() {
        bail!("`{}` failed ({})", line(command), output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` printed something that is not text", line(command)))
}

/// Whether the program starts with these arguments and succeeds. The output is discarded.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.output().is_ok_and(|output| output.status.success())
}

/// The command in the form in which it is typed in a shell.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default();
    let mut line = program.to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
