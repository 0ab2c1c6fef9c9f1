//! How long threads wait for cores or memory: the kernel's pressure stall information
//! (Documentation/accounting/psi.rst; Linux 4.20 and later, if enabled).

use std::fs;
use std::path::Path;

/// The host's pressure at one moment. `None` means that the system does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostSample {
    /// The percentage of the last ten seconds in which a thread waited for a core (Linux: `/proc/pressure/cpu`).
    pub cpu_pressure: Option<f32>,
    /// The percentage of the last ten seconds in which a thread waited for memory (Linux: `/proc/pressure/memory`).
    pub memory_pressure: Option<f32>,
}

impl HostSample {
    /// The current pressure of this computer.
    pub fn now() -> Self {
        Self::read(Path::new("/proc/pressure"))
    }

    /// The pressure from the files `cpu` and `memory` in this folder.
    pub fn read(folder: &Path) -> Self {
        let share = |file| some_avg10(&fs::read_to_string(folder.join(file)).ok()?);
        Self { cpu_pressure: share("cpu"), memory_pressure: share("memory") }
    }
}

/// The percentage of the last ten seconds in which some task waited, from `some avg10=1.53 ...`
/// (Documentation/accounting/psi.rst).
fn some_avg10(text: &str) -> Option<f32> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut words = line.split_whitespace();
    let share = words.find_map(|word| word.strip_prefix("avg10="))?;
    share.parse().ok().filter(|share: &f32| share.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_the_last_ten_seconds_and_is_unknown_without_the_kernels_files() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(HostSample::read(folder.path()), HostSample::default());
        let busy =
            "some avg10=41.53 avg60=20.12 avg300=5.00 total=99\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        fs::write(folder.path().join("cpu"), busy).unwrap();
        let sample = HostSample::read(folder.path());
        assert_eq!((sample.cpu_pressure, sample.memory_pressure), (Some(41.53), None));
        for text in ["", "full avg10=1.00", "some avg10=x", "some avg60=1.00"] {
            assert_eq!(some_avg10(text), None, "{text}");
        }
    }
}
