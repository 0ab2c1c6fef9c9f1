//! The `embed` example as a person at a terminal meets it.

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
        .join("examples/embed")
        .with_extension(std::env::consts::EXE_EXTENSION)
}

fn embed(args: &[&str]) -> Output {
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
    let output = embed(args);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    assert_eq!(said, "", "{args:?}");
    text(&output.stdout)
}

/// One line on stderr that contains `word`, nothing on stdout, and the exit code.
#[track_caller]
fn fails(args: &[&str], code: i32, word: &str) {
    let output = embed(args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert_eq!(text(&output.stdout), "", "{args:?}");
    assert_eq!(said.trim_end().lines().count(), 1, "{args:?}: {said}");
    assert!(said.contains(word), "{args:?}: {said}");
}

const LIGHT: &str = "And God saw the light, that it was good";
const NOISE: &str = "1234567890 %%%% {}";

#[test]
fn texts_of_arguments_and_of_a_file_are_put_in_the_order_of_the_query() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines.txt");
    std::fs::write(&file, format!("{NOISE}\n{LIGHT}\n")).unwrap();
    let query = "And God said, Let there be light";
    let out = succeeds(&[
        "--pooling",
        "mean",
        "-q",
        query,
        "-f",
        file.to_str().unwrap(),
        query,
    ]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert_eq!(lines[0], format!("1.0000  {query}"));
    assert!(
        lines[1].ends_with(LIGHT) && lines[2].ends_with(NOISE),
        "{out}"
    );
}

#[test]
fn vectors_are_printed_as_json_the_querys_first() {
    let args = ["--pooling", "last", "--json"];
    let alone = succeeds(&[&args[..], &[LIGHT]].concat());
    let numbers = alone.trim().strip_prefix("[[").unwrap();
    let numbers = numbers.strip_suffix("]]").unwrap().split(", ");
    let vector: Vec<f32> = numbers.map(|number| number.parse().unwrap()).collect();
    let length: f32 = vector.iter().map(|x| x * x).sum();
    assert!(vector.len() > 16 && (length - 1.0).abs() < 1e-3, "{length}");
    let two = succeeds(&[&args[..], &["-q", LIGHT, NOISE]].concat());
    assert_eq!(two.matches('[').count(), 3, "{two}");
    let (first, _) = alone.trim().split_once(", ").unwrap();
    assert!(two.starts_with(first), "{two}");
}

#[test]
fn what_does_not_work_is_one_line() {
    fails(&[], 1, "no texts");
    fails(&["-f", "/nowhere/lines.txt"], 1, "/nowhere/lines.txt");
    fails(
        &["-m", "/nowhere/model.gguf", "a"],
        1,
        "/nowhere/model.gguf",
    );
    // The demo model generates, and names no pooling.
    fails(&["-q", LIGHT, NOISE], 1, "--pooling");
    fails(&["--rerank", "-q", LIGHT, NOISE], 1, "classification head");
    fails(&["--pooling", "mean", "--ctx", "4", LIGHT], 1, "truncate");
    fails(&["--pooling", "median", LIGHT], 2, "median");
    fails(&["--rerank", LIGHT], 2, "required");
    succeeds(&["--pooling", "mean", "--ctx", "4", "--truncate", LIGHT]);
}
