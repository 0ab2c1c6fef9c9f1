//! Uses a packed program as a new user does: installs a runtime, and generates a text.
//!
//! In: an unpacked program, the archive of a runtime, the demo model. Out: an error if the text is another than the
//! expected one. The program has no variable except HOME, which is an empty folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::gpu_bundle::copy;
use crate::tree;
use crate::workspace::{output, run};

/// The demo model, relative to the repository's root.
pub(crate) const MODEL: &str = "examples/model/autoplace-demo-q8_0.gguf";

const PROMPT: &str = "And the king said unto his servants,";

/// The most likely continuation. It is the same with other numbers of threads, with and without flash attention, with
/// caches of f32, f16 and q8_0, and with a ubatch of one token (2026-11-30), so it hardly depends on rounding.
const TEXT: &str = "Shall the king of the kingdom of heaven is the king's house, and the kingdom of God";

/// What a program is tried with.
pub(crate) struct Trial {
    pub(crate) model: PathBuf,
    /// The archive of a runtime, as `cargo xtask runtime` makes it.
    pub(crate) runtime: PathBuf,
}

impl Trial {
    /// Installs the runtime with the program and generates a text. `home` is made empty first.
    pub(crate) fn run(&self, program: &Path, home: PathBuf) -> Result<()> {
        let home = tree::afresh(home)?;
        let model = home.join("model.gguf");
        copy(&self.model, &model)?;
        let command = || {
            let mut command = Command::new(program);
            command.env_clear().env("HOME", &home).current_dir(&home);
            command
        };
        run(command().args(["runtime", "install"]).arg(&self.runtime))?;
        let generate = ["--raw", "--temp", "0", "-n", "24", "-c", "512"];
        let text = output(command().arg("run").arg("model.gguf").arg(PROMPT).args(generate))?;
        ensure!(
            text.trim() == TEXT,
            "{} continues `{PROMPT}` with `{}` instead of `{TEXT}`",
            program.display(),
            text.trim()
        );
        println!("dist: {} generates: {TEXT}", program.display());
        Ok(())
    }
}
