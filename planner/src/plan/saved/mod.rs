//! Plans saved to files. A saved plan names its model and its request, so that a later load can follow it exactly or
//! refuse it with a reason.
//!
//! A file may have been edited or truncated, or may come from a stranger. [`SavedPlan::check`] validates the content
//! before a load uses any of it.

mod change;
mod check;
mod identity;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::gguf::{self, Header};
use crate::json;

use super::error::list;
use super::{Plan, Request};

#[cfg(test)]
mod tests;

pub use change::MachineChange;
pub use identity::ModelIdentity;

/// A plan, with the model and the request that are needed to follow it again.
///
/// ```
/// # use autoplace_planner::{gguf::Header, machine::Machine, plan::{Planner, Request, SavedPlan},
/// profile::ModelProfile};
/// # fn f(header: &Header, machine: &Machine, request: Request) -> Result<(), Box<dyn std::error::Error>> {
/// let profile = ModelProfile::from_header(header)?;
/// let plan = Planner::new(&profile, machine).request(request.clone()).plan()?;
/// SavedPlan::new(plan, request, header)?.write("plan.json")?;
///
/// let saved = SavedPlan::read("plan.json")?;
/// saved.check_model(header)?;
/// for change in saved.changes(machine) {
///     println!("{change}");
/// }
/// # Ok(()) }
/// ```
///
/// A load follows the plan with `Model::builder(path).follow(SavedPlan::read("plan.json")?)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct SavedPlan {
    /// The format version; this crate writes [`SavedPlan::VERSION`].
    pub version: u64,
    /// The crate that made the plan, with its version: `autoplace 0.1.0`.
    pub made_by: String,
    /// The plan's model.
    pub model: ModelIdentity,
    /// The plan.
    #[serde(deserialize_with = "Plan::deserialize")]
    pub plan: Plan,
    /// The request that the plan answers.
    #[serde(deserialize_with = "Request::deserialize")]
    pub request: Request,
}

json::compiled_here!(SavedPlan);

/// The end of the error for a file that is not a saved plan.
const EXPECTED: &str = "a plan is a file that `autoplace plan --save` writes";

/// The error for a saved plan that could not be read, written or followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum SavedPlanError {
    /// The file cannot be read or written.
    #[error("{}: {source}", file.display())]
    File { file: PathBuf, source: io::Error },
    /// The text is not a valid plan; `problem` names the wrong field.
    #[error("{}{problem}", file.as_ref().map(|file| format!("{}: ", file.display())).unwrap_or_default())]
    Invalid { file: Option<PathBuf>, problem: String },
    /// The plan is for another model.
    #[error("the plan is for {saved}, but {} is {given}", file.display())]
    OtherModel { saved: Box<ModelIdentity>, file: PathBuf, given: Box<ModelIdentity> },
    /// The plan does not fit the machine in its current state.
    #[error("the plan of {model} cannot be followed: {}", list(changes))]
    Changed { model: String, changes: Vec<MachineChange> },
}

impl SavedPlan {
    /// The format version that this crate writes, and the latest version that it reads. It increases when an older
    /// reader would misread a file. New keys alone do not increase it.
    pub const VERSION: u64 = 1;

    /// Makes a saved plan from a plan, its request and the header of its model.
    ///
    /// # Errors
    ///
    /// [`gguf::Error`] if an array of the header cannot be read again. The identity needs these arrays.
    pub fn new(plan: Plan, request: Request, header: &Header) -> Result<Self, gguf::Error> {
        Ok(Self {
            version: Self::VERSION,
            made_by: concat!("autoplace ", env!("CARGO_PKG_VERSION")).to_owned(),
            model: ModelIdentity::from_header(header)?,
            plan,
            request,
        })
    }

    /// The plan as indented JSON.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::Invalid`] if JSON cannot represent the plan, because a path is not valid UTF-8.
    pub fn to_json(&self) -> Result<String, SavedPlanError> {
        self.to_text().map_err(|error| invalid(error.to_string()))
    }

    /// Reads and validates a plan. Unknown keys are ignored.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::Invalid`] names the wrong field, and its line and column if it cannot be read.
    pub fn from_json(text: &str) -> Result<Self, SavedPlanError> {
        let saved: Self = json::versioned(text, EXPECTED, Self::VERSION, Self::from_text).map_err(invalid)?;
        saved.check()?;
        Ok(saved)
    }

    /// Writes the plan to a file. A failed write leaves no partial file.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::File`], and the errors of [`to_json`](Self::to_json).
    pub fn write(&self, file: impl AsRef<Path>) -> Result<(), SavedPlanError> {
        let file = file.as_ref();
        let text = self.to_json().map_err(|error| error.in_file(file))? + "\n";
        json::write(file, &text).map_err(|source| SavedPlanError::File { file: file.to_owned(), source })
    }

    /// Reads and validates the plan in a file.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::File`], and the errors of [`from_json`](Self::from_json) with the file's name.
    pub fn read(file: impl AsRef<Path>) -> Result<Self, SavedPlanError> {
        let file = file.as_ref();
        let unusable = |source| SavedPlanError::File { file: file.to_owned(), source };
        let text = json::read(file, EXPECTED).map_err(unusable)?;
        Self::from_json(&text).map_err(|error| error.in_file(file))
    }

    /// Checks that the header belongs to the plan's model: the same header content and the same file lengths. Names are
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::OtherModel`]; [`SavedPlanError::Invalid`] if the model's header cannot be read again.
    pub fn check_model(&self, header: &Header) -> Result<(), SavedPlanError> {
        let given = ModelIdentity::from_header(header).map_err(|error| invalid(error.to_string()))?;
        if given.is(&self.model) {
            return Ok(());
        }
        Err(SavedPlanError::OtherModel {
            saved: Box::new(self.model.clone()),
            file: header.path().to_owned(),
            given: Box::new(given),
        })
    }
}

fn invalid(problem: impl ToString) -> SavedPlanError {
    SavedPlanError::Invalid { file: None, problem: problem.to_string() }
}

impl SavedPlanError {
    /// Adds the file's path to the error.
    fn in_file(mut self, path: &Path) -> Self {
        if let Self::Invalid { file, .. } = &mut self {
            *file = Some(path.to_owned());
        }
        self
    }
}
