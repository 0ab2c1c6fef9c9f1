//! A machine in a file, to plan for somebody else's computer: written by [`Machine::write`], by hand, or by
//! another version.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Machine;
use crate::json;

/// Changes where an older program would misunderstand a file, not where keys are added.
const VERSION: u64 = 1;

/// A machine's file cannot be read, written or understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", file.as_ref().map(|file| format!("{}: ", file.display())).unwrap_or_default())]
#[non_exhaustive]
pub struct MachineFileError {
    /// The file; `None` for text from elsewhere.
    pub file: Option<PathBuf>,
    /// What is wrong, and where in it.
    pub problem: String,
}

impl MachineFileError {
    fn new(problem: impl fmt::Display) -> Self {
        Self {
            file: None,
            problem: problem.to_string(),
        }
    }

    fn of(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }
}

impl Machine {
    /// The machine as JSON, indented, with the version of this form.
    ///
    /// # Errors
    ///
    /// [`MachineFileError`] for a number that JSON has no word for.
    pub fn to_json(&self) -> Result<String, MachineFileError> {
        #[derive(Serialize)]
        struct Document<'a> {
            version: u64,
            #[serde(flatten)]
            machine: &'a Machine,
        }
        let document = Document {
            version: VERSION,
            machine: self,
        };
        serde_json::to_string_pretty(&document).map_err(MachineFileError::new)
    }

    /// Reads what [`to_json`](Self::to_json) gives, or a machine as `serde` writes it. Keys that this version does not
    /// know are left out.
    ///
    /// # Errors
    ///
    /// [`MachineFileError`] names the key that is missing or wrong, or the version that is not known yet.
    pub fn from_json(text: &str) -> Result<Self, MachineFileError> {
        #[derive(Deserialize)]
        struct Version {
            version: Option<u64>,
        }
        let Version { version } = json::parse(text).map_err(MachineFileError::new)?;
        if let Some(version) = version.filter(|&version| version > VERSION) {
            return Err(MachineFileError::new(format!(
                "version is {version}, and this program reads up to {VERSION}"
            )));
        }
        let machine: Self = json::parse(text).map_err(MachineFileError::new)?;
        machine.check().map_err(MachineFileError::new)?;
        Ok(machine)
    }

    /// Writes [`to_json`](Self::to_json) into a file.
    ///
    /// # Errors
    ///
    /// [`MachineFileError`] for a file that cannot be written.
    pub fn write(&self, file: impl AsRef<Path>) -> Result<(), MachineFileError> {
        let file = file.as_ref();
        let text = self.to_json().map_err(|error| error.of(file))?;
        fs::write(file, format!("{text}\n")).map_err(|error| MachineFileError::new(error).of(file))
    }

    /// Reads a machine from a file, as [`from_json`](Self::from_json).
    ///
    /// # Errors
    ///
    /// [`MachineFileError`] names the file, and what is wrong where in it.
    pub fn read(file: impl AsRef<Path>) -> Result<Self, MachineFileError> {
        let file = file.as_ref();
        let read = fs::read_to_string(file).map_err(MachineFileError::new);
        read.and_then(|text| Self::from_json(&text))
            .map_err(|error| error.of(file))
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::{Gpu, Host, Machine, gib};

    fn machine() -> Machine {
        Machine::new(Host::new(gib(64))).with_gpu(Gpu::named("RTX 4090").unwrap())
    }

    fn json() -> serde_json::Value {
        serde_json::from_str(&machine().to_json().unwrap()).unwrap()
    }

    fn problem(json: &serde_json::Value) -> String {
        Machine::from_json(&json.to_string()).unwrap_err().problem
    }

    #[test]
    fn what_is_written_is_read_again_and_a_version_is_optional() {
        let written = machine().to_json().unwrap();
        assert_eq!(Machine::from_json(&written), Ok(machine()));
        assert_eq!(json()["version"], 1);
        let plain = serde_json::to_string(&machine()).unwrap();
        assert_eq!(Machine::from_json(&plain), Ok(machine()));
    }

    #[test]
    fn keys_of_another_version_are_left_out() {
        let mut json = json();
        json["weather"] = "fine".into();
        json["gpus"][0]["colour"] = "green".into();
        assert_eq!(Machine::from_json(&json.to_string()), Ok(machine()));
    }

    #[test]
    fn a_wrong_field_is_named() {
        for case in [
            r#"/gpus/0/total = "24GiB": gpus[0].total: invalid type"#,
            r#"/gpus/0/total = -1: gpus[0].total: invalid value"#,
            r#"/gpus/0/free = 18446744073709551615: gpus[0].free is "#,
            r#"/gpus/0/kind = "quantum": gpus[0].kind: unknown variant `quantum`"#,
            r#"/gpus/0/pci_id = "x": gpus[0].pci_id: `x` is not a PCI address"#,
            r#"/gpus/0/bandwidth/source = "rumour": gpus[0].bandwidth.source: unknown"#,
            r#"/host/available = 18446744073709551615: host.available is "#,
            r#"/host = 5: host: invalid type"#,
            r#"/version = "one": version: invalid type"#,
            r#"/version = 2: version is 2, and this program reads up to 1"#,
        ] {
            let (pointer, rest) = case.split_once(" = ").unwrap();
            let (value, words) = rest.split_once(": ").unwrap();
            let mut json = json();
            *json.pointer_mut(pointer).unwrap() = serde_json::from_str(value).unwrap();
            let text = problem(&json);
            assert!(text.contains(words), "{case}: {text}");
        }
    }

    #[test]
    fn what_is_missing_is_named_with_its_place() {
        let mut json = json();
        json["gpus"][0].as_object_mut().unwrap().remove("total");
        let text = problem(&json);
        assert!(text.contains("gpus[0]: missing field `total`"), "{text}");
    }

    #[test]
    fn what_is_no_json_or_more_than_one_is_refused() {
        for wrong in ["", "{", "[]", "24", "\"RTX 4090\"", "{} {}"] {
            assert!(Machine::from_json(wrong).is_err(), "{wrong}");
        }
        let twice = format!("{0}{0}", machine().to_json().unwrap());
        let error = Machine::from_json(&twice).unwrap_err();
        assert!(error.problem.contains("trailing"), "{error}");
    }
}
