//! A host that this computer is not: `--ram 64GiB:60GB/s` and `--cpu NAME` flow in, a machine with that host flows out.

use autoplace::machine::{Host, Machine};

use crate::sizes::{rate, size};

/// What is said of the host.
#[derive(Debug, clap::Args)]
pub(crate) struct HostArgs {
    /// Memory of a host instead of this one's, all of it free, and how fast it is read: `64GiB`, `64GiB:60GB/s`
    #[arg(long, value_name = "SIZE[:RATE]", value_parser = ram, allow_hyphen_values = true)]
    ram: Option<(u64, Option<u64>)>,
    /// The processor of a host instead of this one, or its memory: `Ryzen 9 7950X`, `DDR5-5600 x2`,
    /// `LPDDR5X-8000 256-bit`
    #[arg(long, value_name = "NAME", value_parser = cpu)]
    cpu: Option<String>,
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

/// A name that the catalogue knows.
fn cpu(text: &str) -> Result<String, String> {
    Host::named(text, 1).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

impl HostArgs {
    /// The machine with the host that was described. What was not said of it is not known: its memory is as large as
    /// the machine's own, nothing else of that one holds.
    pub(crate) fn apply(&self, machine: &mut Machine) -> Result<(), String> {
        if self.ram.is_some() || self.cpu.is_some() {
            machine.host = self.host(&machine.host)?;
        }
        Ok(())
    }

    fn host(&self, own: &Host) -> Result<Host, String> {
        let (total, available) = self.ram.map_or((own.total, own.available), |(bytes, _)| (bytes, bytes));
        let host = match &self.cpu {
            Some(name) => Host::named(name, total).map_err(|error| error.to_string())?,
            None => Host::new(total),
        };
        let host = host.available(available);
        Ok(match self.ram.and_then(|(_, rate)| rate) {
            Some(rate) => host.bandwidth(rate),
            None => host,
        })
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
