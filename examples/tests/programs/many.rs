//! Tests of the `many` example, as a user runs it.

use test_support::program::Program;

const MANY: Program = Program("many");

#[test]
fn without_arguments_eight_prompts_are_continued() {
    let out = MANY.succeeds(&["-n", "12", "--temp", "0"]);
    assert_eq!(out.matches("generated 12 tokens").count(), 8, "{out}");
    assert!(out.contains("queued: 0, running: 0"), "{out}");
    assert!(!out.contains('\u{1b}'), "a pipe gets no colours: {out:?}");
}

#[test]
fn prompts_that_wait_are_continued_as_well_in_the_order_in_which_they_were_given() {
    let prompts = ["And Moses", "And Aaron", "And the LORD"];
    let mut args = vec!["-n", "6", "--at-once", "1", "--temp", "0"];
    args.extend(prompts);
    let out = MANY.succeeds(&args);
    let found: Vec<_> = prompts.iter().filter_map(|prompt| out.find(prompt)).collect();
    assert!(found.len() == 3 && found.is_sorted(), "{out}");
}
