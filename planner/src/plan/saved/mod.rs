//! A plan in a file: which model it is of and what was asked, so that it can be followed again exactly, or refused with
//! the reason.
//!
//! A file may have been edited, cut off, or come from somebody else. Whatever it says is checked here, before anything
//! of it reaches a load ([`SavedPlan::check`]).

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

/// A plan with all that it takes to follow it again, or to say why it cannot be followed.
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
/// A load follows it with `Model::builder(path).follow(SavedPlan::read("plan.json")?)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
#[non_exhaustive]
pub struct SavedPlan {
    /// The version of this form: [`SavedPlan::VERSION`] when written by this crate.
    pub version: u64,
    /// The crate that made the plan, with its version: `autoplace 0.1.0`.
    pub made_by: String,
    /// The model that it is of.
    pub model: ModelIdentity,
    /// The plan.
    #[serde(deserialize_with = "Plan::deserialize")]
    pub plan: Plan,
    /// What was asked of the planner.
    #[serde(deserialize_with = "Request::deserialize")]
    pub request: Request,
}

json::compiled_here!(SavedPlan);

/// Why a saved plan cannot be read, written or followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what the message says of them.
pub enum SavedPlanError {
    /// The file cannot be read or written.
    #[error("{}: {source}", file.display())]
    File { file: PathBuf, source: io::Error },
    /// The text is not a plan of this form: the field that is wrong, and how.
    #[error("{}{problem}", file.as_ref().map(|file| format!("{}: ", file.display())).unwrap_or_default())]
    Invalid { file: Option<PathBuf>, problem: String },
    /// The plan is of another model.
    #[error("the plan is of {saved}, and {} is {given}", file.display())]
    OtherModel { saved: Box<ModelIdentity>, file: PathBuf, given: Box<ModelIdentity> },
    /// The plan does not fit the machine as it is now.
    #[error("the plan of {model} cannot be followed: {}", list(changes))]
    Changed { model: String, changes: Vec<MachineChange> },
}

impl SavedPlan {
    /// The version of the form that this crate writes, and the latest that it reads. It changes where an older reader
    /// would misunderstand a file, not where keys are added.
    pub const VERSION: u64 = 1;

    /// A plan with the model whose header this is, and what was asked.
    ///
    /// # Errors
    ///
    /// [`gguf::Error`] where an array of the header cannot be read again to identify the model.
    pub fn new(plan: Plan, request: Request, header: &Header) -> Result<Self, gguf::Error> {
        Ok(Self {
            version: Self::VERSION,
            made_by: concat!("autoplace ", env!("CARGO_PKG_VERSION")).to_owned(),
            model: ModelIdentity::of(header)?,
            plan,
            request,
        })
    }

    /// The plan as JSON, indented.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::Invalid`] where the plan cannot be written as JSON: a path that is no UTF-8.
    pub fn to_json(&self) -> Result<String, SavedPlanError> {
        self.to_text().map_err(|error| invalid(error.to_string()))
    }

    /// Reads and checks a plan. Keys that this version does not know are left out.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::Invalid`] names the field that is wrong.
    pub fn from_json(text: &str) -> Result<Self, SavedPlanError> {
        let saved: Self = json::versioned(text, Self::VERSION, Self::from_text).map_err(invalid)?;
        saved.check()?;
        Ok(saved)
    }

    /// Writes the plan to a file, whole or not at all.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::File`], and as [`to_json`](Self::to_json).
    pub fn write(&self, file: impl AsRef<Path>) -> Result<(), SavedPlanError> {
        let file = file.as_ref();
        let text = self.to_json().map_err(|error| error.of(file))? + "\n";
        json::write(file, &text).map_err(|source| SavedPlanError::File { file: file.to_owned(), source })
    }

    /// Reads and checks the plan in a file.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::File`], and as [`from_json`](Self::from_json) with the file's name.
    pub fn read(file: impl AsRef<Path>) -> Result<Self, SavedPlanError> {
        let file = file.as_ref();
        let unusable = |source| SavedPlanError::File { file: file.to_owned(), source };
        let text = json::read(file).map_err(unusable)?;
        Self::from_json(&text).map_err(|error| error.of(file))
    }

    /// Refuses another model than the plan's: another header, or files of other lengths. Their names do not matter.
    ///
    /// # Errors
    ///
    /// [`SavedPlanError::OtherModel`]; [`SavedPlanError::Invalid`] where the model's header cannot be read again.
    pub fn check_model(&self, header: &Header) -> Result<(), SavedPlanError> {
        let given = ModelIdentity::of(header).map_err(|error| invalid(error.to_string()))?;
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
    /// The same, of the plan in this file.
    fn of(mut self, path: &Path) -> Self {
        if let Self::Invalid { file, .. } = &mut self {
            *file = Some(path.to_owned());
        }
        self
    }
}
