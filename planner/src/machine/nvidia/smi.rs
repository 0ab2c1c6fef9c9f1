//! The memory of cards whose driver lacks NVML's second memory query: drivers before 510, as the last ones for Kepler
//! cards are. They have the first query, which `nvml-wrapper` does not ask; `nvidia-smi`, which comes with each driver,
//! asks it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::machine::bytes::mib;
use crate::machine::gpu::Reading;
use crate::machine::pci::PciId;

/// The memory of each card by its address, to the MiB; none where the program does not run.
///
/// `folder`: where the program is, instead of where the system finds it.
pub(super) fn memory(folder: Option<&Path>) -> BTreeMap<PciId, Reading> {
    let mut command = Command::new(program(folder));
    command.args(["--query-gpu=pci.bus_id,memory.total,memory.free", "--format=csv,noheader,nounits"]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.inspect_err(|error| tracing::debug!(%error, "nvidia-smi does not run")).ok();
    output.map_or_else(BTreeMap::new, |output| read(&String::from_utf8_lossy(&output.stdout)))
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
    use super::read;
    use crate::machine::gpu::Reading;
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
}
