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
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineFileError {
    /// The file; `None` for text from elsewhere.
    pub file: Option<PathBuf>,
    /// What is wrong, and where in it.
    pub problem: String,
}

impl std::error::Error for MachineFileError {}

impl fmt::Display for MachineFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        f.write_str(&self.problem)
    }
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

    /// What is said of the file when one of its values is another.
    #[track_caller]
    fn said(pointer: &str, value: serde_json::Value) -> String {
        let mut json = json();
        *json.pointer_mut(pointer).unwrap() = value;
        Machine::from_json(&json.to_string()).unwrap_err().problem
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(
            Machine::from_json(&machine().to_json().unwrap()),
            Ok(machine())
        );
        assert_eq!(json()["version"], 1);
    }

    #[test]
    fn a_machine_as_the_library_serialises_it_needs_no_version() {
        let plain = serde_json::to_string(&machine()).unwrap();
        assert_eq!(Machine::from_json(&plain), Ok(machine()));
    }

    #[test]
    fn keys_of_another_version_are_left_out_and_a_new_meaning_is_refused() {
        let mut json = json();
        json["weather"] = "fine".into();
        json["gpus"][0]["colour"] = "green".into();
        assert_eq!(Machine::from_json(&json.to_string()), Ok(machine()));
        assert_eq!(
            said("/version", 2.into()),
            "version is 2, and this program reads up to 1"
        );
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (pointer, value, words) in [
            (
                "/gpus/0/total",
                "24GiB".into(),
                "gpus[0].total: invalid type",
            ),
            ("/gpus/0/total", (-1).into(), "gpus[0].total: invalid value"),
            ("/gpus/0/free", u64::MAX.into(), "gpus[0].free is "),
            (
                "/gpus/0/kind",
                "quantum".into(),
                "gpus[0].kind: unknown variant `quantum`",
            ),
            (
                "/gpus/0/pci_id",
                "x".into(),
                "gpus[0].pci_id: `x` is not a PCI address",
            ),
            (
                "/gpus/0/bandwidth/source",
                "rumour".into(),
                "gpus[0].bandwidth.source: unknown",
            ),
            ("/host/available", u64::MAX.into(), "host.available is "),
            ("/host", 5.into(), "host: invalid type"),
            ("/version", "one".into(), "version: invalid type"),
        ] {
            let text = said(pointer, value);
            assert!(text.contains(words), "{pointer}: {text}");
        }
    }

    #[test]
    fn what_is_missing_is_named_with_its_place() {
        let mut json = json();
        json["gpus"][0].as_object_mut().unwrap().remove("total");
        let text = Machine::from_json(&json.to_string()).unwrap_err().problem;
        assert!(text.contains("gpus[0]: missing field `total`"), "{text}");
    }

    #[test]
    fn what_is_no_json_or_more_than_one_is_refused() {
        for wrong in ["", "{", "[]", "24", "\"RTX 4090\"", "{} {}"] {
            assert!(Machine::from_json(wrong).is_err(), "{wrong}");
        }
        let twice = format!("{0}{0}", machine().to_json().unwrap());
        assert!(
            Machine::from_json(&twice)
                .unwrap_err()
                .problem
                .contains("trailing")
        );
    }
}
