//! A machine in a file: what `devices --write` writes and `plan --machine` reads, also by hand or by another version.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use autoplace::machine::Machine;
use serde::{Deserialize, Serialize};

/// Changes where an older program would misunderstand a file, not where keys are added.
const VERSION: u64 = 1;

/// The file cannot be read, written or understood: its path, and what is wrong where.
#[derive(Debug)]
pub(crate) struct Error {
    file: PathBuf,
    problem: String,
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.problem)
    }
}

/// The JSON of a machine, indented.
pub(crate) fn text(machine: &Machine) -> Result<String, serde_json::Error> {
    #[derive(Serialize)]
    struct Document<'a> {
        version: u64,
        #[serde(flatten)]
        machine: &'a Machine,
    }
    serde_json::to_string_pretty(&Document {
        version: VERSION,
        machine,
    })
}

pub(crate) fn write(file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, format!("{text}\n")).map_err(|error| Error::new(file, error))
}

/// The machine in a file. Keys that this version does not know are left out.
pub(crate) fn read(file: &Path) -> Result<Machine, Error> {
    let text = fs::read_to_string(file).map_err(|error| Error::new(file, error))?;
    parse(&text).map_err(|problem| Error::new(file, problem))
}

impl Error {
    fn new(file: &Path, problem: impl fmt::Display) -> Self {
        Self {
            file: file.to_owned(),
            problem: problem.to_string(),
        }
    }
}

fn parse(text: &str) -> Result<Machine, String> {
    #[derive(Deserialize)]
    struct Version {
        version: Option<u64>,
    }
    let Version { version } = fields(text)?;
    if let Some(version) = version.filter(|&version| version > VERSION) {
        return Err(format!(
            "version is {version}, and this program reads up to {VERSION}"
        ));
    }
    let machine: Machine = fields(text)?;
    machine.check().map_err(|error| error.to_string())?;
    Ok(machine)
}

/// Deserialises, or says which field is wrong.
fn fields<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner();
        if path == "." {
            problem.to_string()
        } else {
            format!("{path}: {problem}")
        }
    })?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::{parse, text};
    use autoplace::machine::{Gpu, Host, Machine, gib};

    fn machine() -> Machine {
        Machine::new(Host::new(gib(64))).with_gpu(Gpu::named("RTX 4090").unwrap())
    }

    fn json() -> serde_json::Value {
        serde_json::from_str(&text(&machine()).unwrap()).unwrap()
    }

    /// What is said of the file when one of its values is another.
    #[track_caller]
    fn said(pointer: &str, value: serde_json::Value) -> String {
        let mut json = json();
        *json.pointer_mut(pointer).unwrap() = value;
        parse(&json.to_string()).unwrap_err()
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(parse(&text(&machine()).unwrap()), Ok(machine()));
        assert_eq!(json()["version"], 1);
    }

    #[test]
    fn a_machine_as_the_library_serialises_it_needs_no_version() {
        let plain = serde_json::to_string(&machine()).unwrap();
        assert_eq!(parse(&plain), Ok(machine()));
    }

    #[test]
    fn keys_of_another_version_are_left_out_and_a_new_meaning_is_refused() {
        let mut json = json();
        json["weather"] = "fine".into();
        json["gpus"][0]["colour"] = "green".into();
        assert_eq!(parse(&json.to_string()), Ok(machine()));
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
        let text = parse(&json.to_string()).unwrap_err();
        assert!(text.contains("gpus[0]: missing field `total`"), "{text}");
    }

    #[test]
    fn what_is_no_json_or_more_than_one_is_refused() {
        for wrong in ["", "{", "[]", "24", "\"RTX 4090\"", "{} {}"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let twice = format!("{0}{0}", text(&machine()).unwrap());
        assert!(parse(&twice).unwrap_err().contains("trailing"));
    }
}
