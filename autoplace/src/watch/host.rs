//! Whether the host is busy or short of memory: the kernel's pressure stall information (Linux 4.20 and later, where it
//! is switched on).

use std::fs;
use std::path::{Path, PathBuf};

use super::sample::HostSample;

/// Reads `{root}/proc/pressure`.
#[derive(Debug)]
pub(super) struct HostPressure {
    folder: PathBuf,
}

impl HostPressure {
    pub(super) fn under(root: &Path) -> Self {
        Self {
            folder: root.join("proc/pressure"),
        }
    }

    pub(super) fn sample(&self) -> HostSample {
        let share = |file| {
            let text = fs::read_to_string(self.folder.join(file)).ok()?;
            some_avg10(&text)
        };
        HostSample {
            cpu_pressure: share("cpu"),
            memory_pressure: share("memory"),
        }
    }
}

/// The share of the last ten seconds in which some task waited, in percent: `some avg10=1.53 ...`
/// (Documentation/accounting/psi.rst).
fn some_avg10(text: &str) -> Option<f32> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut words = line.split_whitespace();
    let share = words.find_map(|word| word.strip_prefix("avg10="))?;
    share.parse().ok().filter(|share: &f32| share.is_finite())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{HostPressure, some_avg10};

    const BUSY: &str = "some avg10=41.53 avg60=20.12 avg300=5.00 total=99\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

    #[test]
    fn the_first_line_tells_the_last_ten_seconds() {
        assert_eq!(some_avg10(BUSY), Some(41.53));
        for text in ["", "full avg10=1.00", "some avg10=x", "some avg60=1.00"] {
            assert_eq!(some_avg10(text), None, "{text}");
        }
    }

    #[test]
    fn a_system_without_such_files_tells_nothing() {
        let root = tempfile::tempdir().unwrap();
        let host = HostPressure::under(root.path());
        assert_eq!(host.sample().cpu_pressure, None);
        fs::create_dir_all(root.path().join("proc/pressure")).unwrap();
        fs::write(root.path().join("proc/pressure/cpu"), BUSY).unwrap();
        let sample = host.sample();
        assert_eq!(
            (sample.cpu_pressure, sample.memory_pressure),
            (Some(41.53), None)
        );
    }
}
