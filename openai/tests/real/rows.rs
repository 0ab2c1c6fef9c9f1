//! One line of the table: what was compared, and where the two sides differ.

/// A check's result, or why it could not be made.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A comparison of one kind on one model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) check: String,
    pub(crate) model: String,
    /// What was compared with what.
    pub(crate) what: String,
    /// How it came out, in figures.
    pub(crate) result: String,
    /// Every difference.
    pub(crate) failures: Vec<String>,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    /// Whose row it is.
    pub(crate) fn of(mut self, check: &str, model: &str) -> Self {
        check.clone_into(&mut self.check);
        model.clone_into(&mut self.model);
        self
    }

    pub(crate) fn result(mut self, result: impl Into<String>) -> Self {
        self.result = result.into();
        self
    }

    /// With one more difference.
    pub(crate) fn fails(mut self, failure: impl Into<String>) -> Self {
        self.failures.push(failure.into());
        self
    }

    /// Of so many cases, these differ.
    pub(crate) fn compared(what: impl Into<String>, cases: usize, failures: Vec<String>) -> Self {
        let result = format!("{cases} compared, {} differ", failures.len());
        Self { failures, ..Self::new(what).result(result) }
    }

    pub(crate) fn in_one_line(&self) -> String {
        let verdict = if self.failures.is_empty() { "equal" } else { "DIFFERENT" };
        format!("{:<10} {:<34} {}: {} ({verdict})", self.check, self.model, self.what, self.result)
    }
}
