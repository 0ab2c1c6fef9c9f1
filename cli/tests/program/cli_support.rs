//! Runs the program `autoplace` as a person or a script does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The model that is in the repository.
pub(crate) fn demo() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/model/autoplace-demo-q8_0.gguf");
    path.to_str().unwrap().to_owned()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// A user whose home folder is temporary, so that no real cache is read or written.
pub(crate) struct User {
    home: TempDir,
}

impl User {
    pub(crate) fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    /// A command that runs the program with these arguments.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let home = self.home.path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_autoplace"));
        command
            .args(args)
            .env("HOME", home)
            .env("USERPROFILE", home)
            .env("XDG_CACHE_HOME", home.join("cache"))
            .env("LOCALAPPDATA", home.join("cache"))
            .env("XDG_DATA_HOME", home.join("data"))
            .env("APPDATA", home.join("data"));
        command
    }

    pub(crate) fn autoplace(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().expect("the program starts")
    }

    /// The output of the program; stderr must be empty.
    #[track_caller]
    pub(crate) fn says(&self, args: &[&str]) -> String {
        let output = self.autoplace(args);
        assert_eq!(text(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        text(&output.stdout)
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.says(&[args, &["--json"]].concat())).expect("JSON")
    }

    /// Checks the exit code, that stdout is empty, and that stderr contains all of `words`. stderr must be one line,
    /// unless clap wrote it.
    #[track_caller]
    pub(crate) fn fails(&self, args: &[&str], code: i32, words: &[&str]) {
        let output = self.autoplace(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(code == 2 || stderr.lines().count() == 1 && stderr.starts_with("error: "), "{args:?}: {stderr}");
        for word in words {
            assert!(stderr.contains(word), "{args:?}: no {word:?} in: {stderr}");
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}

/// Runs the program for a new user.
#[track_caller]
pub(crate) fn succeeds(args: &[&str]) -> String {
    User::new().says(args)
}

/// As [`User::fails`].
#[track_caller]
pub(crate) fn fails(args: &[&str], code: i32, words: &[&str]) {
    User::new().fails(args, code, words);
}
