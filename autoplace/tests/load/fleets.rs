//! Plans made so on simulated fleets: a random model on random cards under a random request is planned, loaded and
//! computed with, and what the cards themselves count is what the plan said, to the byte, and never more than was free.
//!
//! Every case is made of its number alone. `cargo test` runs the first 250. All 1,000 of them:
//!
//! ```text
//! cargo test -p autoplace --test load fleets:: -- --ignored --nocapture
//! ```

use crate::fleets_support::{Case, Models, Tally, run};

/// Runs these cases; all that is wrong with any of them, and what they were.
fn run_all(cases: u64) {
    let models = Models::write();
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for number in 0..cases {
        let case = Case::new(number, &models);
        match run(&case, &models) {
            Ok(outcome) => tally.count(&case, &models, &outcome),
            Err(fault) => failures.push(format!("{}\n    {fault}", case.describe(&models))),
        }
    }
    println!("{tally}");
    let shown: Vec<_> = failures.iter().take(12).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} of {cases} cases failed:\n{}",
        failures.len(),
        shown.join("\n")
    );
    let lacking = tally.lacking(cases);
    assert!(lacking.is_empty(), "too few cases of: {lacking:?}");
}

#[test]
fn what_cards_count_is_what_was_planned_on_250_random_fleets() {
    own_process!();
    run_all(250);
}

#[test]
#[ignore = "minutes: the 250 above and 750 more"]
fn what_cards_count_is_what_was_planned_on_1000_random_fleets() {
    own_process!();
    run_all(1000);
}
