//! The table that is printed at the end and can be written to a file.

use std::fmt::Write;
use std::process::ExitCode;

use crate::rows::Row;

/// Maximum number of differences that are printed for a row.
const SHOWN: usize = 5;

/// Prints the table and the differences. Writes the table to a file if requested. Returns success if there are no
/// differences.
pub(crate) fn finish(rows: &[Row]) -> ExitCode {
    let table = table(rows);
    println!("\n{table}");
    for row in rows.iter().filter(|row| !row.failures.is_empty()) {
        eprintln!("{}, {}, {}:", row.check, row.model, row.what);
        for failure in row.failures.iter().take(SHOWN) {
            eprintln!("  {failure}");
        }
        if row.failures.len() > SHOWN {
            eprintln!("  and {} more", row.failures.len() - SHOWN);
        }
    }
    if let Some(file) = std::env::var_os("AUTOPLACE_REAL_REPORT")
        && let Err(error) = std::fs::write(&file, &table)
    {
        eprintln!("error: {}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    if rows.iter().all(|row| row.failures.is_empty()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The table in Markdown.
fn table(rows: &[Row]) -> String {
    let mut table = String::from("| check | model | compared | result | |\n|---|---|---|---|---|\n");
    for row in rows {
        let _ =
            writeln!(table, "| {} | {} | {} | {} | {} |", row.check, row.model, row.what, row.result, row.verdict());
    }
    table
}
