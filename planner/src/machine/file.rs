//! Machine files, for planning for another computer. They were written by [`Machine::write`], by hand or by another
//! version. Reading a machine file validates it.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Machine;
use super::bandwidth::Bandwidth;
use super::gpu::Gpu;
use super::pcie::PcieRate;
use crate::json;

/// The version increases when an older program would misread a file. New keys alone do not increase it.
const VERSION: u64 = 1;

/// The end of the error for a file that is not a machine.
const EXPECTED: &str = "a machine is a file that `autoplace devices --write` writes";

/// The error for an invalid machine, or for a machine file that cannot be read, written or parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", file.as_ref().map(|file| format!("{}: ", file.display())).unwrap_or_default())]
#[non_exhaustive]
pub struct MachineError {
    /// The file; `None` if the text did not come from a file.
    pub file: Option<PathBuf>,
    /// The problem, with the field as a path: `gpus[0].free`.
    pub problem: String,
}

impl MachineError {
    fn new(problem: impl fmt::Display) -> Self {
        Self { file: None, problem: problem.to_string() }
    }

    fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }
}

impl Machine {
    /// The machine as indented JSON, with the format version.
    pub fn to_json(&self) -> Result<String, MachineError> {
        let text = self.to_text().map_err(MachineError::new)?;
        Ok(text.replacen("{\n", &format!("{{\n  \"version\": {VERSION},\n"), 1))
    }

    /// Reads the output of [`to_json`](Self::to_json), or a machine as `serde` writes it. Unknown keys are ignored.
    ///
    /// # Errors
    ///
    /// [`MachineError`] names the missing or wrong key with its line and column, or a version that is too new.
    pub fn from_json(text: &str) -> Result<Self, MachineError> {
        let machine: Self = json::versioned(text, EXPECTED, VERSION, Self::from_text).map_err(MachineError::new)?;
        machine.check()?;
        Ok(machine)
    }

    /// Writes [`to_json`](Self::to_json) to a file. A failed write leaves no partial file.
    pub fn write(&self, file: impl AsRef<Path>) -> Result<(), MachineError> {
        let file = file.as_ref();
        let text = self.to_json().map_err(|error| error.in_file(file))?;
        json::write(file, &(text + "\n")).map_err(|error| MachineError::new(error).in_file(file))
    }

    /// Reads a machine from a regular file of at most 4 MiB, in the same way as [`from_json`](Self::from_json).
    pub fn read(file: impl AsRef<Path>) -> Result<Self, MachineError> {
        let file = file.as_ref();
        let read = json::read(file, EXPECTED).map_err(MachineError::new);
        read.and_then(|text| Self::from_json(&text)).map_err(|error| error.in_file(file))
    }

    /// Checks that the figures are consistent. The figures of a detected machine always are; a machine built by hand
    /// should be checked before a plan is made for it.
    pub fn check(&self) -> Result<(), MachineError> {
        self.problem().map_err(MachineError::new)
    }

    fn problem(&self) -> Result<(), String> {
        let host = &self.host;
        at_most("host.available", host.available, host.total)?;
        at_most("host.system_available", host.system_available, host.total)?;
        check_rate("host.bandwidth", host.bandwidth)?;
        ensure!(host.disk.is_none_or(|disk| disk.bytes_per_second > 0), "host.disk.bytes_per_second is 0");
        for (index, gpu) in self.gpus.iter().enumerate() {
            check_gpu(&format!("gpus[{index}]"), gpu)?;
            ensure!(gpu.total > 0, "gpus[{index}].total is 0");
        }
        for (index, unused) in self.unused_gpus.iter().enumerate() {
            check_gpu(&format!("unused_gpus[{index}].gpu"), &unused.gpu)?;
        }
        Ok(())
    }
}

fn check_gpu(place: &str, gpu: &Gpu) -> Result<(), String> {
    at_most(&format!("{place}.free"), gpu.free, gpu.total)?;
    if let Some(pools) = gpu.pools {
        for (name, pool) in [("own", pools.own), ("shared", pools.shared)] {
            at_most(&format!("{place}.pools.{name}.free"), pool.free, pool.total)?;
        }
    }
    let learned = gpu.learned.map_or(0, |learned| learned.total());
    at_most(&format!("{place}.learned"), learned, gpu.total)?;
    let aligned = gpu.alignment.is_none_or(u64::is_power_of_two);
    ensure!(aligned, "{place}.alignment is not a power of two");
    if let Some(link) = gpu.pcie {
        for (name, rate) in [("max", Some(link.max)), ("current", link.current)] {
            let exists = rate.is_none_or(|rate| PcieRate::new(rate.generation, rate.lanes).is_some());
            ensure!(exists, "{place}.pcie.{name} is not a PCIe generation from 1 to 6 with 1 to 32 lanes");
        }
    }
    check_rate(&format!("{place}.bandwidth"), gpu.bandwidth)
}

fn check_rate(place: &str, bandwidth: Option<Bandwidth>) -> Result<(), String> {
    let known = bandwidth.is_none_or(|found| found.bytes_per_second > 0);
    ensure!(known, "{place}.bytes_per_second is 0: leave the field out if it is unknown");
    Ok(())
}

fn at_most(place: &str, part: u64, total: u64) -> Result<(), String> {
    ensure!(part <= total, "{place} is {part}, more than total, which is {total}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::machine::{Gpu, Host, LearnedHeadroom, Machine, PcieLink, PcieRate, gib};

    fn machine() -> Machine {
        let link = PcieLink::new(PcieRate::new(4, 16).unwrap());
        let learned = LearnedHeadroom::new(1, 2);
        let card = Gpu::named("RTX 4090").unwrap().pcie(link).alignment(256).learned(learned);
        Machine::new(Host::new(gib(64)).bandwidth(5)).with_gpu(card)
    }

    fn json() -> serde_json::Value {
        serde_json::from_str(&machine().to_json().unwrap()).unwrap()
    }

    fn problem(json: &serde_json::Value) -> String {
        Machine::from_json(&json.to_string()).unwrap_err().problem
    }

    #[test]
    fn a_written_machine_reads_back_also_in_other_versions() {
        let plain = serde_json::to_string(&machine()).unwrap();
        assert_eq!(Machine::from_json(&plain), Ok(machine()));
        // Keys of another version are ignored.
        let mut json = json();
        json["weather"] = "fine".into();
        json["gpus"][0]["colour"] = "green".into();
        assert_eq!(Machine::from_json(&json.to_string()), Ok(machine()));
    }

    /// Each case is a place in the JSON, a value to put there, and a part of the error.
    #[test]
    fn a_field_that_is_wrong_or_contradicts_another_is_named() {
        for case in [
            r#"/gpus/0/total = "24GiB": gpus[0].total: invalid type"#,
            r#"/gpus/0/free = 26843545600: gpus[0].free is 26843545600, more than total, which is 25769803776"#,
            r#"/gpus/0/learned/growth = 18446744073709551615: gpus[0].learned is "#,
            r#"/gpus/0/alignment = 0: gpus[0].alignment is not a power of two"#,
            r#"/gpus/0/bandwidth/bytes_per_second = 0: gpus[0].bandwidth.bytes_per_second is 0"#,
            r#"/gpus/0/pcie/max/lanes = 0: gpus[0].pcie.max is not a PCIe"#,
            r#"/host/bandwidth/bytes_per_second = 0: host.bandwidth.bytes_per_second is 0"#,
            r#"/host/system_available = 18446744073709551615: host.system_available is "#,
            r#"/gpus/0/kind = "quantum": gpus[0].kind: unknown variant `quantum`"#,
            r#"/gpus/0/pci_id = "x": gpus[0].pci_id: `x` is not a PCI address"#,
            r#"/host/available = 18446744073709551615: host.available is "#,
            r#"/version = "one": version is not a number"#,
            r#"/version = 2: version is 2, but this program reads only versions up to 1"#,
        ] {
            let (pointer, rest) = case.split_once(" = ").unwrap();
            let (value, words) = rest.split_once(": ").unwrap();
            let mut json = json();
            *json.pointer_mut(pointer).unwrap() = serde_json::from_str(value).unwrap();
            let text = problem(&json);
            assert!(text.contains(words), "{case}: {text}");
        }
        let mut json = json();
        (json["gpus"][0]["total"], json["gpus"][0]["free"]) = (0.into(), 0.into());
        json["gpus"][0].as_object_mut().unwrap().remove("learned");
        assert!(problem(&json).starts_with("gpus[0].total is 0"));
        json["gpus"][0].as_object_mut().unwrap().remove("total");
        let text = problem(&json);
        assert!(text.contains("gpus[0]: missing field `total`"), "{text}");
        // serde reports an error in the last value only at the end of its object.
        let error = Machine::from_json(r#"{"gpus": [{"pci_id": "x"}]}"#).unwrap_err().problem;
        assert!(error.starts_with("gpus[0].pci_id: `x` is"), "{error}");
    }
}
