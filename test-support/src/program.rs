//! An example program as its user sees it: exit code, stdout and stderr.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// An example, by name.
pub struct Program(pub &'static str);

impl Program {
    /// The path of the executable. Cargo builds a package's examples together with its tests.
    pub fn executable(&self) -> PathBuf {
        let test = std::env::current_exe().expect("a test has a path");
        let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps");
        profile.join("examples").join(self.0).with_extension(std::env::consts::EXE_EXTENSION)
    }

    /// Starts the example with pipes for stdin, stdout and stderr.
    pub fn start(&self, args: &[&str]) -> Child {
        let mut command = Command::new(self.executable());
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the example starts")
    }

    pub fn run(&self, args: &[&str]) -> Output {
        Command::new(self.executable()).args(args).stdin(Stdio::null()).output().expect("the example starts")
    }

    /// Returns the stdout of a successful run. Asserts that stderr is empty.
    #[track_caller]
    pub fn succeeds(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{args:?}: {stderr}");
        assert_eq!(stderr, "", "{args:?}");
        text(&output.stdout)
    }

    /// Asserts the exit code, an empty stdout, and one line on stderr that contains `word`.
    #[track_caller]
    pub fn fails(&self, args: &[&str], code: i32, word: &str) {
        let output = self.run(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.contains(word), "{args:?}: {stderr}");
    }
}

/// Sends SIGINT, like Ctrl-C.
pub fn interrupt(child: &Child) {
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill starts").success());
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}
