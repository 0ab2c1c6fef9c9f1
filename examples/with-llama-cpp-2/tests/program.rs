//! Tests that run the program.

use std::process::{Command, Output};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/autoplace-demo-q8_0.gguf");

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_with-llama-cpp-2")).args(args).output().expect("it starts")
}

#[test]
fn it_prints_the_plan_the_text_and_the_speed() {
    let output = program(&[MODEL, "And the king said unto his servants,", "-n", "40"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "");
    let (plan, rest) =
        stdout.split_once("\n\nAnd the king said unto his servants,").expect("the prompt comes after the plan");
    assert!(plan.contains("weights") && plan.contains("host"), "{plan}");
    let (text, speed) = rest.rsplit_once("\n\n").expect("the speed comes last");
    let words = ["the", "and", "of", "to", "in", "that", "was", "not"];
    let english = text.split_whitespace().filter(|word| words.contains(word)).count();
    assert!(english > 2, "{text}");
    assert!(speed.starts_with("40 tokens, ") && speed.ends_with(" tok/s\n"), "{speed}");
}

#[test]
fn greedy_generation_says_the_same_every_time() {
    let text = || {
        let output = program(&[MODEL, "In the beginning", "-n", "20"]);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let start = stdout.find("In the beginning").expect("the prompt");
        let end = stdout.rfind("\n\n").expect("the speed");
        stdout[start..end].to_owned()
    };
    assert_eq!(text(), text());
}

#[test]
fn a_file_that_is_no_model_is_one_line_on_stderr() {
    let output = program(&[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains("Cargo.toml"), "{stderr}");
}
