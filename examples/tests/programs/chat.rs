//! The `chat` example as a person meets it, with its lines through a pipe; and Ctrl-C.

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};

use crate::program::{Program, text};

const CHAT: Program = Program("chat");

fn start(args: &[&str]) -> Child {
    Command::new(CHAT.executable())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example starts")
}

fn chat(args: &[&str], lines: &str) -> Output {
    let mut child = start(args);
    let mut input = child.stdin.take().expect("a pipe");
    // One that ends at once reads nothing.
    let _ = input.write_all(lines.as_bytes());
    drop(input);
    child.wait_with_output().expect("it ends")
}

#[test]
fn every_line_gets_an_answer_and_the_end_of_the_input_ends_it() {
    let args = ["--template", "chatml", "-n", "12", "--seed", "1", "-s", "Speak."];
    let output = chat(&args, "Who art thou?\n\nAnd thy father?\n");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let answers: Vec<&str> = out.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(answers.len() >= 2, "{out:?}");
    // The same history and seed give the same answers.
    let again = chat(&args, "Who art thou?\n\nAnd thy father?\n");
    assert_eq!(text(&again.stdout), out);
}

#[test]
fn a_template_can_be_a_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("plain.jinja");
    let source = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    std::fs::write(&file, source).expect("the folder takes a file");
    let file = file.to_str().expect("a plain path");
    let output = chat(&["--template", file, "-n", "4"], "And he said,\n");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!text(&output.stdout).trim().is_empty());
}

#[test]
fn what_is_wrong_is_one_line() {
    CHAT.fails(&["-n", "4"], 1, "no chat template");
    CHAT.fails(&["--template", "/nowhere/at/all.jinja"], 1, "cannot read");
    CHAT.fails(&["-m", "/nowhere/at/all.gguf"], 1, "all.gguf");
    CHAT.fails(&["--ctx", "0"], 2, "--ctx");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    // More text than a pipe holds: it waits for the signal, however late that comes.
    let mut child = start(&["--template", "chatml", "-n", "1000000", "--ctx", "65536", "--seed", "1"]);
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = child.stdout.take().expect("a pipe");
    input.write_all(b"Tell me all.\n").expect("it reads");
    let mut first = [0; 16];
    output.read_exact(&mut first).expect("an answer begins");
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("there is a kill").success());
    // It takes another line, and answers that too until its input ends.
    input.write_all(b"And now?\n").expect("it still reads");
    drop(input);
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).expect("it ends");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let rest = text(&rest);
    // The end of the first answer, which may be nothing but its line end, and the second.
    assert!(rest.lines().count() >= 2, "{rest:?}");
}
