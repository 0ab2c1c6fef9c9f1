//! The memory of cards whose driver lacks NVML's second memory query. These are drivers before 510, such as the last
//! ones for Kepler cards. Such drivers have only NVML's first memory query, which `nvml-wrapper` does not support. But
//! `nvidia-smi`, which comes with each driver, supports it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::machine::bytes::mib;
use crate::machine::pci::PciId;
use crate::machine::reading::Reading;

/// Maximum time for the program's answer. A slower program is ended, because a driver that hangs must not delay a load.
const MAX_TIME: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// The memory of each card by its address, in whole MiB; empty if the program does not run or does not end in time.
///
/// `folder` is the folder of the program. With `None`, the system searches for the program.
pub(super) fn memory(folder: Option<&Path>) -> BTreeMap<PciId, Reading> {
    let mut command = Command::new(program(folder));
    command.args(["--query-gpu=pci.bus_id,memory.total,memory.free", "--format=csv,noheader,nounits"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let answer =
        answer(&mut command, MAX_TIME).inspect_err(|error| tracing::debug!(%error, "nvidia-smi does not answer"));
    read(&answer.unwrap_or_default())
}

/// The program's output. It has only one line for each card, so it fits into the buffer of a pipe.
fn answer(command: &mut Command, most: Duration) -> std::io::Result<String> {
    let mut program = command.spawn()?;
    let begin = Instant::now();
    while program.try_wait()?.is_none() {
        if begin.elapsed() > most {
            program.kill()?;
            program.wait()?;
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PAUSE);
    }
    let mut written = Vec::new();
    if let Some(mut stdout) = program.stdout.take() {
        stdout.read_to_end(&mut written)?;
    }
    Ok(String::from_utf8_lossy(&written).into_owned())
}

fn program(folder: Option<&Path>) -> PathBuf {
    let name = if cfg!(windows) { "nvidia-smi.exe" } else { "nvidia-smi" };
    folder.map_or_else(|| name.into(), |folder| folder.join(name))
}

/// Lines such as `00000000:01:00.0, 24564, 22811`, in MiB. A line with anything else (`[N/A]`) is left out.
fn read(text: &str) -> BTreeMap<PciId, Reading> {
    let card = |line: &str| {
        let mut parts = line.split(',').map(str::trim);
        let address = parts.next()?.parse().ok()?;
        let mut bytes = || Some(mib(parts.next()?.parse().ok().filter(|n: &u64| *n < 1 << 40)?));
        let (total, free) = (bytes()?, bytes()?);
        (free <= total && parts.next().is_none()).then(|| (address, Reading::new(total, free)))
    };
    text.lines().filter_map(card).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{answer, read};
    use crate::machine::reading::Reading;
    use crate::machine::{PciId, mib};

    #[test]
    fn only_whole_lines_are_cards() {
        let text = "00000000:01:00.0, 11441, 11000\n\
                    00000000:02:00.0, [N/A], [N/A]\n\
                    00000000:03:00.0, 11441\n\
                    00000000:04:00.0, 100, 200\n\
                    00000000:05:00.0, 99999999999999999999, 1\n\
                    00000000:06:00.0, 18446744073709551615, 1\n\
                    NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n";
        let expected = (PciId::new(0, 1, 0, 0), Reading::new(mib(11_441), mib(11_000)));
        assert_eq!(read(text).into_iter().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    #[cfg(unix)]
    fn a_program_that_hangs_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("3600").stdout(Stdio::piped());
        let error = answer(&mut command, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        let mut command = Command::new("echo");
        command.arg("a line").stdout(Stdio::piped());
        assert_eq!(answer(&mut command, Duration::from_secs(3600)).unwrap(), "a line\n");
    }
}
