//! Chaos on simulated fleets. A random model is planned, loaded, warmed up and run on random cards. Meanwhile, other
//! programs take and release memory, allocations are refused, and computations fail. Every round ends with the same
//! text as on the CPU, or with a typed error that lists all attempts. After each round, the cards must be empty.
//!
//! The number of a round determines what happens in it. In a few rounds this is not so, because a thread takes memory
//! at its own speed. `cargo test` runs the first 60 rounds. This command runs all 2,000:
//! ```text
//! cargo test -p autoplace --test load chaos:: -- --ignored --nocapture
//! ```

use crate::chaos_support::Round;
use crate::fleets_support::{Models, run_all};

/// The minimum number of rounds of each kind among a thousand rounds.
const MIN_PER_THOUSAND: [(&str, u64); 6] = [
    ("loaded at attempt 1", 200),
    ("loaded at attempt 2", 120),
    ("loaded at attempt 3", 10),
    ("a failed generation, then the same text", 30),
    ("no plan at first", 15),
    ("all attempts failed", 5),
];

fn chaos(rounds: u64) {
    let models = Models::write();
    run_all(rounds, &MIN_PER_THOUSAND, |number| {
        let mut round = Round::new(number, &models);
        round.run().map_err(|fault| format!("{}\n    {fault}", round.describe()))
    });
}

#[test]
fn every_round_ends_in_the_same_text_or_in_a_typed_error() {
    own_process!();
    chaos(60);
}

#[test]
#[ignore = "minutes: the 60 above and 1,940 more"]
fn every_one_of_2000_rounds_ends_in_the_same_text_or_in_a_typed_error() {
    own_process!();
    chaos(2000);
}
