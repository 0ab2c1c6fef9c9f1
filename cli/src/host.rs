//! A host that this computer is not: `--ram 64GiB:60GB/s` flows in, a machine with that host flows out.

use autoplace::machine::{Host, Machine};

use crate::sizes::{rate, size};

/// What is said of the host.
#[derive(Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// Memory of a host instead of this one's, all of it free, and how fast it is read: `64GiB`, `64GiB:60GB/s`
    #[arg(long, value_name = "SIZE[:RATE]", value_parser = ram, allow_hyphen_values = true)]
    ram: Option<(u64, Option<u64>)>,
}

/// Bytes, and perhaps bytes per second.
fn ram(text: &str) -> Result<(u64, Option<u64>), String> {
    let (bytes, per_second) = match text.split_once(':') {
        Some((bytes, per_second)) => (bytes, Some(rate(per_second)?)),
        None => (text, None),
    };
    match size(bytes)? {
        0 => Err("a host has more than 0 bytes".to_owned()),
        bytes => Ok((bytes, per_second)),
    }
}

impl HostArgs {
    /// Puts the host that was described in the place of the machine's. What was not said of it is not known.
    pub(crate) fn apply(&self, machine: &mut Machine) {
        if let Some((bytes, rate)) = self.ram {
            let host = Host::new(bytes);
            machine.host = match rate {
                Some(rate) => host.bandwidth(rate),
                None => host,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ram;
    use autoplace::machine::gib;

    #[test]
    fn ram_is_a_size_and_perhaps_a_rate() {
        assert_eq!(ram("64GiB"), Ok((gib(64), None)));
        assert_eq!(ram("64G:60GB/s"), Ok((gib(64), Some(60_000_000_000))));
        for (text, word) in [
            ("0", "more than 0"),
            ("", "size"),
            ("64GiB:", "rate"),
            ("64GiB:60", "rate"),
            ("64GiB:0GB/s", "rate"),
            ("-1GiB", "size"),
        ] {
            let error = ram(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
