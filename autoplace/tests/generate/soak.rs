//! Many tokens, with streams and sessions opened, dropped in the middle, placed anew and aborted: no memory, file or
//! thread is left behind. `cargo xtask soak` runs a million of them; `cargo test` a few thousand.

use crate::soak_support::{Row, Soak, Tally};

/// Something that is measured: its name, its value in a row, and what it may grow by.
type Quantity = (&'static str, fn(&Row) -> u64, u64);

/// What grew beyond the level of the first tenth of the rows. `kib`: what memory may be above that, in KiB.
fn growth(rows: &[Row], kib: u64) -> Vec<String> {
    let first = rows.len().div_ceil(10);
    let (level, later) = rows.split_at(first);
    let mut grown = Vec::new();
    let quantities: [Quantity; 4] = [
        ("VmRSS in KiB", |row| row.resident, kib),
        ("VmData in KiB", |row| row.data, kib),
        ("open files", |row| row.files, 0),
        ("threads", |row| row.threads, 0),
    ];
    for (name, of, tolerance) in quantities {
        let level = level.iter().map(of).max().unwrap_or_default();
        let highest = later.iter().map(of).max().unwrap_or_default();
        if highest > level + tolerance {
            grown.push(format!("{name}: {highest}, at first {level}, and {tolerance} more are allowed"));
        }
    }
    grown
}

/// Generates so many tokens, prints what the process held meanwhile, and lets its memory grow by so many KiB.
fn soak(tokens: u64, rows: u64, kib: u64) -> Tally {
    let mut soak = Soak::new();
    let mut table = Vec::new();
    println!("{}", Row::HEAD);
    for row in 1..=rows {
        soak.generate(tokens * row / rows);
        let row = soak.measure();
        println!("{row}");
        table.push(row);
    }
    assert_eq!(growth(&table, kib), Vec::<String>::new());
    soak.tally
}

#[test]
fn a_few_thousand_tokens_leave_nothing_behind() {
    own_process!();
    // The allocator sets memory aside for the first threads; one model that stayed each time would be more.
    let tally = soak(6_000, 12, 64 * 1024);
    assert!(tally.replaced > 20 && tally.failed > 0, "{tally:?}");
    assert!(tally.aborted > 0 && tally.dropped > 0, "{tally:?}");
}

#[test]
#[ignore = "many minutes: cargo xtask soak"]
fn tokens_without_end_leave_nothing_behind() {
    own_process!();
    let tokens = std::env::var("AUTOPLACE_SOAK_TOKENS").ok();
    let tokens = tokens.map_or(1_000_000, |tokens| tokens.parse().expect("a number"));
    // By then the allocator has what it keeps, but for fragments.
    let tally = soak(tokens, 40, 8 * 1024);
    println!("{tally:?}");
}
