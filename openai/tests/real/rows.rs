//! The rows of the table: a comparison, and its differences.

/// A check's result, or the reason why it could not run.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A comparison of one kind on one model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) check: String,
    pub(crate) model: String,
    /// The compared items.
    pub(crate) what: String,
    /// The result, in figures.
    pub(crate) result: String,
    /// Every difference.
    pub(crate) failures: Vec<String>,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    /// Sets the check and the model.
    pub(crate) fn check(mut self, check: &str, model: &str) -> Self {
        check.clone_into(&mut self.check);
        model.clone_into(&mut self.model);
        self
    }

    pub(crate) fn result(mut self, result: impl Into<String>) -> Self {
        self.result = result.into();
        self
    }

    /// Adds a difference.
    pub(crate) fn fails(mut self, failure: impl Into<String>) -> Self {
        self.failures.push(failure.into());
        self
    }

    /// A row for this many cases with these differences.
    pub(crate) fn compared(what: impl Into<String>, cases: usize, failures: Vec<String>) -> Self {
        let result = format!("{cases} compared, {} differ", failures.len());
        Self { failures, ..Self::new(what).result(result) }
    }

    pub(crate) fn in_one_line(&self) -> String {
        let verdict = if self.failures.is_empty() { "equal" } else { "DIFFERENT" };
        format!("{:<10} {:<34} {}: {} ({verdict})", self.check, self.model, self.what, self.result)
    }
}
