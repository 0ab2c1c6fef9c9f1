//! The table with one line for each check.

use std::time::Duration;

use crate::setting::Verdict;

/// The results so far.
#[derive(Debug)]
pub(crate) struct Summary {
    rows: Vec<String>,
    passed: bool,
}

impl Summary {
    pub(crate) const fn new() -> Self {
        Self { rows: Vec::new(), passed: true }
    }

    pub(crate) fn add(&mut self, name: &str, verdict: &Verdict, took: Duration) {
        let passed = if verdict.passed { "passed" } else { "FAILED" };
        self.rows.push(format!("| {name} | {passed} | {} | {:.0} s |\n", verdict.line, took.as_secs_f64()));
        self.passed &= verdict.passed;
    }

    pub(crate) const fn passed(&self) -> bool {
        self.passed
    }

    /// The table in Markdown.
    pub(crate) fn table(&self) -> String {
        format!("| check | | found | took |\n|---|---|---|--:|\n{}", self.rows.concat())
    }
}
