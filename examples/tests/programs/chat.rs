//! Tests of the `chat` example, with lines from a pipe, and with Ctrl-C.

use std::io::{Read, Write};

use test_support::program::{Program, text};

const CHAT: Program = Program("chat");

/// The example's output for these lines.
fn chat(args: &[&str], lines: &str) -> String {
    let mut child = CHAT.start(args);
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn every_line_gets_an_answer_and_the_end_of_the_input_ends_it() {
    let args = ["--template", "chatml", "-n", "12", "--seed", "1", "-s", "Speak."];
    let out = chat(&args, "Who art thou?\n\nAnd thy father?\n");
    assert!(out.lines().filter(|line| !line.trim().is_empty()).count() >= 2, "{out:?}");
    // The same history and seed give the same answers.
    assert_eq!(chat(&args, "Who art thou?\n\nAnd thy father?\n"), out);
}

#[test]
fn a_template_can_be_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "{% for m in messages %}{{ m.content }}\n{% endfor %}").unwrap();
    let out = chat(&["--template", file.path().to_str().unwrap(), "-n", "4"], "And he said,\n");
    assert!(!out.trim().is_empty());
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    // The text is longer than the buffer of a pipe, so the program is still running when the signal comes.
    let mut child = CHAT.start(&["--template", "chatml", "-n", "1000000", "--ctx", "65536", "--seed", "1"]);
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = child.stdout.take().expect("a pipe");
    input.write_all(b"Tell me all.\n").expect("it reads");
    let mut first = [0; 16];
    output.read_exact(&mut first).expect("an answer begins");
    test_support::program::interrupt(&child);
    // The program still answers another line. The program ends when its input ends.
    input.write_all(b"And now?\n").expect("it still reads");
    drop(input);
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).expect("it ends");
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let rest = text(&rest);
    // The rest contains the end of the first answer (perhaps only a newline) and the second answer.
    assert!(rest.lines().count() >= 2, "{rest:?}");
}
