//! The `many` example as a person at a terminal meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// cargo builds the examples of a package along with its tests.
fn executable() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("target/<profile>/deps");
    profile
        .join("examples/many")
        .with_extension(std::env::consts::EXE_EXTENSION)
}

fn many(args: &[&str]) -> Output {
    Command::new(executable())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the example starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

#[track_caller]
fn succeeds(args: &[&str]) -> String {
    let output = many(args);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "{args:?}");
    text(&output.stdout)
}

/// One line on stderr that contains `word`, nothing on stdout, and the exit code.
#[track_caller]
fn fails(args: &[&str], code: i32, word: &str) {
    let output = many(args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{args:?}: {stderr}");
    assert!(stderr.contains(word), "{args:?}: {stderr}");
}

#[test]
fn without_arguments_eight_prompts_are_continued() {
    let out = succeeds(&["-n", "12"]);
    assert_eq!(out.matches("generated 12 tokens").count(), 8, "{out}");
    assert!(out.contains("queued: 0, running: 0"), "{out}");
    assert!(!out.contains('\u{1b}'), "a pipe gets no colours: {out:?}");
}

#[test]
fn prompts_that_wait_are_continued_as_well_in_the_order_in_which_they_were_given() {
    let prompts = ["And Moses", "And Aaron", "And the LORD"];
    let mut args = vec!["-n", "6", "--at-once", "1", "--temp", "0"];
    args.extend(prompts);
    let out = succeeds(&args);
    let found: Vec<_> = prompts
        .iter()
        .filter_map(|prompt| out.find(prompt))
        .collect();
    assert!(found.len() == 3 && found.is_sorted(), "{out}");
}

#[test]
fn what_is_wrong_is_one_line() {
    fails(&["-m", "/nonexistent"], 1, "/nonexistent");
    fails(&["--at-once", "0"], 2, "--at-once");
    fails(&["--temp", "-1"], 1, "temp");
    let long = "and it came to pass ".repeat(200);
    fails(&["And", &long], 1, "the context holds 512");
}
