//! The ledger as a table: its columns, its rows as CSV lines, and the checks of each row.

use anyhow::{Context, Result, bail, ensure};

/// The columns of the ledger.
pub(super) const COLUMNS: [&str; 38] = [
    "source",
    "date",
    "made_by",
    "model",
    "description",
    "n_params",
    "tensor_bytes",
    "cpu",
    "cores",
    "memory_bytes",
    "memory_bytes_per_second",
    "gpus",
    "n_gpu_layers",
    "layers",
    "elsewhere",
    "type_k",
    "type_v",
    "n_ctx",
    "n_batch",
    "n_ubatch",
    "threads",
    "n_prompt",
    "n_gen",
    "n_depth",
    "median",
    "least",
    "most",
    "samples",
    "address",
    "machine",
    "memory",
    "link",
    "options",
    "n_cpu_moe",
    "profile",
    "calibrates",
    "note",
    "kept_back",
];

/// The number of columns at the end of the table that a submission leaves empty.
pub(super) const EMPTY_IN_SUBMISSIONS: usize = 10;

/// The rates that a row can calibrate (planner/tests/planner/ledger/mod.rs).
const RATES: [&str; 4] = ["gpu", "host", "prompts", "link"];

/// Columns that every row fills. Published measurements lack some of the other columns.
const REQUIRED: [&str; 11] =
    ["source", "date", "model", "cpu", "gpus", "n_gpu_layers", "layers", "n_prompt", "n_gen", "n_depth", "median"];

/// A row as a CSV line (RFC 4180).
pub(super) fn line(row: &[String]) -> String {
    let cell = |cell: &String| match cell.contains(['"', ',']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    row.iter().map(cell).collect::<Vec<_>>().join(",")
}

/// The cells of a CSV line.
pub(super) fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => cell.extend(letters.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            letter => cell.push(letter),
        }
    }
    cells.push(cell);
    cells
}

/// Checks a ledger's columns and each row's required cells.
pub(super) fn check(text: &str) -> Result<()> {
    let mut lines = text.lines();
    ensure!(
        lines.next().map(cells) == Some(COLUMNS.map(str::to_owned).to_vec()),
        "line 1: the columns are {}",
        COLUMNS.join(",")
    );
    for (number, line) in (2..).zip(lines) {
        let row = cells(line);
        ensure!(
            row.len() == COLUMNS.len(),
            "line {number}: there are {} cells, but {} columns",
            row.len(),
            COLUMNS.len()
        );
        let of = |column: &str| &row[COLUMNS.iter().position(|name| *name == column).unwrap_or_default()];
        for column in REQUIRED {
            ensure!(!of(column).is_empty(), "line {number}: {column} is empty");
        }
        let number_of = |column: &str| -> Result<f64> {
            of(column).parse().with_context(|| format!("line {number}: {column} is not a number: {}", of(column)))
        };
        if !of("n_cpu_moe").is_empty() {
            number_of("n_cpu_moe")?;
        }
        let (address, calibrates) = (of("address"), of("calibrates"));
        ensure!(
            address.starts_with("https://") || of("source").starts_with("submission "),
            "line {number}: the source must be an https address, but it is `{address}`"
        );
        ensure!(
            calibrates.is_empty() || RATES.contains(&calibrates.as_str()),
            "line {number}: `calibrates` must be one of {}, but it is `{calibrates}`",
            RATES.join(", ")
        );
        ensure!(
            ["", "yes"].contains(&of("kept_back").as_str()),
            "line {number}: `kept_back` must be `yes` or empty, but it is `{}`",
            of("kept_back")
        );
        let layers = (number_of("n_gpu_layers")?, number_of("layers")?);
        ensure!(layers.0 <= layers.1, "line {number}: {} of {} layers", layers.0, layers.1);
        let median = number_of("median")?;
        if !(median > 0.0 && median < 1e9) {
            bail!("line {number}: {median} tokens per second");
        }
        for (bound, is_least) in [("least", true), ("most", false)] {
            if !of(bound).is_empty() {
                let bound_is = number_of(bound)?;
                let fits = if is_least { bound_is <= median } else { bound_is >= median };
                ensure!(fits, "line {number}: {bound} is {bound_is}, the median {median}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn the_ledger_of_the_repository_is_complete() {
        check(include_str!("../../../docs/ledger/speeds.csv")).unwrap();
    }

    #[test]
    fn a_ledger_with_a_wrong_row_is_refused_with_the_line() {
        let whole = include_str!("../../../docs/ledger/speeds.csv");
        for (from, to) in [
            ("43.18", "fast"),
            (",2.89,", ",,"),
            (",8,49,", ",50,49,"),
            ("Qwen2.5", "Qwen,2.5"),
            ("https://inventivehq", "inventivehq"),
            (",host,", ",weather,"),
        ] {
            let wrong = whole.replacen(from, to, 1);
            assert_ne!(wrong, whole, "{from}");
            assert!(check(&wrong).unwrap_err().to_string().starts_with("line "), "{from}");
        }
        assert!(check("source,date\n").unwrap_err().to_string().starts_with("line 1"));
    }
}
