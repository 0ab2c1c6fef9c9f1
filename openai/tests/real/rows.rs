//! The rows of the table. Each is a comparison with its differences.

/// A check's result, or the reason why it could not run.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// One kind of comparison, for one model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) check: String,
    pub(crate) model: String,
    /// What was compared.
    pub(crate) what: String,
    /// The result in numbers.
    pub(crate) result: String,
    /// Every difference.
    pub(crate) failures: Vec<String>,
    /// Whether a figure is outside of its bar. That is no failure, because other work on the machine can cause it.
    pub(crate) is_outside: bool,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    /// Sets the names of the check and of the model.
    pub(crate) fn check(mut self, check: &str, model: &str) -> Self {
        check.clone_into(&mut self.check);
        model.clone_into(&mut self.model);
        self
    }

    pub(crate) fn result(mut self, result: impl Into<String>) -> Self {
        self.result = result.into();
        self
    }

    /// Adds one difference.
    pub(crate) fn fails(mut self, failure: impl Into<String>) -> Self {
        self.failures.push(failure.into());
        self
    }

    /// Says whether the figure is outside of its bar.
    pub(crate) fn outside(mut self, is_outside: bool) -> Self {
        self.is_outside = is_outside;
        self
    }

    /// The last column of the table.
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.failures.is_empty(), self.is_outside) {
            (false, _) => "**different**",
            (true, true) => "**outside of the bar**",
            (true, false) => "equal",
        }
    }

    /// A row for a comparison of this many cases, with the differences that were found.
    pub(crate) fn compared(what: impl Into<String>, cases: usize, failures: Vec<String>) -> Self {
        let result = format!("{cases} compared, {} differ", failures.len());
        Self { failures, ..Self::new(what).result(result) }
    }

    pub(crate) fn in_one_line(&self) -> String {
        format!("{:<10} {:<34} {}: {} ({})", self.check, self.model, self.what, self.result, self.verdict())
    }
}
