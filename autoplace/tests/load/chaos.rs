//! Chaos on simulated fleets: while a random model is planned, loaded, warmed up and generated with on random cards,
//! others take and give back memory, allocations are refused and computations fail. Every round ends with text that is
//! the CPU's, or with a typed error that lists all attempts; and the cards are empty then.
//!
//! Every round is made of its number alone, but for the few in which a thread takes memory at its own pace.
//! `cargo test` runs the first 150. All 2,000 of them:
//!
//! ```text
//! cargo test -p autoplace --test load chaos:: -- --ignored --nocapture
//! ```

use crate::chaos_support::{Count, Round};
use crate::fleets_support::Models;

/// Runs these rounds; all that is wrong with any of them, and what they were.
fn run_all(rounds: u64) {
    let models = Models::write();
    let mut count = Count::default();
    let mut failures = Vec::new();
    for number in 0..rounds {
        let mut round = Round::new(number, &models);
        match round.run() {
            Ok(outcome) => count.add(&outcome),
            Err(fault) => failures.push(format!("{}\n    {fault}", round.describe())),
        }
    }
    println!("{count}");
    let shown: Vec<_> = failures.iter().take(8).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} of {rounds} rounds failed:\n{}",
        failures.len(),
        shown.join("\n")
    );
    let lacking = count.lacking(rounds);
    assert!(lacking.is_empty(), "too few rounds with: {lacking:?}");
}

#[test]
fn every_one_of_150_rounds_ends_in_the_same_text_or_in_a_typed_error() {
    own_process!();
    run_all(150);
}

#[test]
#[ignore = "minutes: the 150 above and 1,850 more"]
fn every_one_of_2000_rounds_ends_in_the_same_text_or_in_a_typed_error() {
    own_process!();
    run_all(2000);
}
