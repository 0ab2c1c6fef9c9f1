//! Tests of the `generate` example, as a user runs it: correct use, wrong use, Ctrl-C.

use autoplace::Model;
use autoplace::gguf::Header;
use autoplace::plan::{Request, SavedPlan};
use autoplace_examples::DEMO_MODEL;
use test_support::program::{Program, text};

const GENERATE: Program = Program("generate");

#[test]
fn without_arguments_it_prints_the_placement_english_text_and_the_speed() {
    let out = GENERATE.succeeds(&[]);
    assert!(out.contains("weights"), "{out}");
    assert!(out.contains("host"), "{out}");
    assert!(out.contains("tok/s"), "{out}");
    let words = ["the", "and", "of", "to", "in", "that", "was", "not"];
    let is_english = |out: &str| out.split_whitespace().filter(|word| words.contains(word)).count() >= 5;
    // The text is random, and may end after a few words.
    assert!(is_english(&out) || (0..5).any(|_| is_english(&GENERATE.succeeds(&[]))), "{out}");
    assert!(!out.contains('\u{1b}'), "a pipe gets no colours: {out:?}");
}

#[test]
fn the_prompt_is_continued_and_a_seed_repeats_the_text() {
    let args = ["-p", "And Moses", "-n", "20", "--seed", "3", "--ctx", "256"];
    let without_speed = |out: String| out.split("\n\nprompt ").next().unwrap().split("\n\n").last().unwrap().to_owned();
    let first = without_speed(GENERATE.succeeds(&args));
    assert!(first.starts_with("And Moses"), "{first}");
    assert!(first.len() > "And Moses".len() + 20, "{first}");
    assert_eq!(without_speed(GENERATE.succeeds(&args)), first);
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = GENERATE.start(&["-n", "400"]);
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_saved_plan_is_followed_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    let request = Request::new().n_ctx(128);
    let plan = Model::builder(DEMO_MODEL).request(request.clone()).plan().unwrap();
    let mut saved = SavedPlan::new(plan, request, &Header::open(DEMO_MODEL).unwrap()).unwrap();
    saved.write(&file).unwrap();
    let path = file.to_str().unwrap();
    let out = GENERATE.succeeds(&["--plan", path, "-n", "4", "--temp", "0"]);
    assert!(out.starts_with(&saved.plan.to_string()), "{out}");

    // The plan needs more memory than any host has.
    saved.plan.placements.iter_mut().for_each(|placement| placement.footprint.kv = 1 << 60);
    saved.write(&file).unwrap();
    GENERATE.fails(&["--plan", path, "-n", "1"], 1, "the plan needs");
    GENERATE.fails(&["--plan", path, "--ctx", "100"], 2, "--ctx");
    GENERATE.fails(&["--plan", "/no/such/plan.json"], 1, "/no/such/plan.json: ");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_it_cleanly_with_what_was_done() {
    use std::io::Read;

    // The text is longer than the buffer of a pipe, so the program is still running when the signal comes.
    let mut child = GENERATE.start(&["-n", "100000", "--ctx", "65536", "--temp", "0"]);
    let mut out = child.stdout.take().unwrap();
    // The text comes after the placement, so the handler is installed when the text appears.
    let mut seen = vec![0; 600];
    out.read_exact(&mut seen).unwrap();
    test_support::program::interrupt(&child);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(rest.contains("tok/s"), "{rest}");
    assert_eq!(text(&output.stderr), "");
}
