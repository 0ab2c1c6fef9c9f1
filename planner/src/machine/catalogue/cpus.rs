//! Common processors by name: cores, and the memory that their makers rate them for; and memory by its notation,
//! `DDR5-5600 x2`. In flows a name as a person writes it; out flows a hypothetical [`Host`].

use std::sync::LazyLock;

use super::name::{Name, near};
use super::{CatalogueError, rows};
use crate::machine::bandwidth::{Bandwidth, BandwidthSource};
use crate::machine::host::Host;

/// The rows of `cpus.txt`, which says what its columns are.
static CPUS: LazyLock<Vec<Cpu>> = LazyLock::new(|| rows(include_str!("cpus.txt"), Cpu::parse));

struct Cpu {
    name: &'static str,
    words: Vec<String>,
    cores: u32,
    bandwidth: Bandwidth,
}

impl Cpu {
    fn parse(fields: &[&'static str]) -> Option<Self> {
        let &[name, cores, bandwidth] = fields else { return None };
        let words = Name::parse(name).words;
        Some(Self { name, words, cores: cores.parse().ok()?, bandwidth: memory(bandwidth)? })
    }
}

/// A host with this processor or memory, and so many bytes: see [`Host::named`].
pub(in crate::machine) fn host(text: &str, total: u64) -> Result<Host, CatalogueError> {
    let mut host = Host::new(total);
    host.bandwidth = memory(text);
    if host.bandwidth.is_some() {
        return Ok(host);
    }
    let asked = Name::parse(text);
    let is = |cpu: &&Cpu| !asked.words.is_empty() && cpu.words.ends_with(&asked.words);
    let mut named = CPUS.iter().filter(is);
    // The whole name of one may be the end of another's.
    let whole = CPUS.iter().find(|cpu| cpu.words == asked.words);
    let ((Some(cpu), ..) | (None, Some(cpu), None)) = (whole, named.next(), named.next()) else {
        return Err(CatalogueError::Unknown {
            name: text.trim().to_owned(),
            list: "processors, nor memory as in `DDR5-5600 x2` or `LPDDR5X-8000 256-bit`",
            near: near(&asked, CPUS.iter().map(|cpu| cpu.name)),
        });
    };
    host.cpu = Some(cpu.name.to_owned());
    host.physical_cores = Some(cpu.cores);
    host.bandwidth = Some(cpu.bandwidth);
    Ok(host)
}

/// The peak of memory by its notation, `DDR5-5600 x2` (channels of 64 bits) or `LPDDR5X-8000 256-bit`: transfers per
/// second times bits of the bus. Without a number of channels, two.
fn memory(text: &str) -> Option<Bandwidth> {
    let text = text.trim().to_ascii_lowercase();
    let mut words = text.split_ascii_whitespace();
    let (kind, rate) = words.next()?.split_once('-')?;
    let kind = kind.strip_prefix("lp").unwrap_or(kind);
    let kind = kind.strip_prefix("ddr")?.trim_end_matches('x');
    let mega_transfers: u64 = rate.parse().ok()?;
    let bits: u64 = match (words.next(), words.next()) {
        (None, _) => 128,
        (Some(width), None) => match width.strip_prefix('x') {
            Some(channels) => channels.parse::<u64>().ok()?.checked_mul(64)?,
            None => width.strip_suffix("-bit")?.parse().ok()?,
        },
        _ => return None,
    };
    let possible = matches!(kind, "3" | "3l" | "4" | "5")
        && (100..=20_000).contains(&mega_transfers)
        && (16..=16_384).contains(&bits)
        && bits.is_multiple_of(8);
    let peak = mega_transfers.saturating_mul(1_000_000).saturating_mul(bits / 8);
    possible.then(|| Bandwidth::new(peak, BandwidthSource::Catalogue))
}

#[cfg(test)]
mod tests {
    use super::{CPUS, host};
    use crate::machine::{BandwidthSource, gib};

    fn mb_per_second(text: &str) -> Option<u64> {
        let host = host(text, gib(64)).ok()?;
        Some(host.bandwidth.unwrap().bytes_per_second / 1_000_000)
    }

    #[test]
    fn memory_is_transfers_times_width() {
        for (text, expected) in [
            ("DDR5-5600 x2", 89_600),
            ("ddr4-3200", 51_200),
            ("DDR4-3200 x1", 25_600),
            ("LPDDR5X-8000 256-bit", 256_000),
            ("DDR5-4800 x12", 460_800),
            ("DDR3L-1600 x2", 25_600),
        ] {
            assert_eq!(mb_per_second(text), Some(expected), "{text}");
        }
        let host = host("DDR5-5600 x2", gib(64)).unwrap();
        assert_eq!((host.total, host.cpu, host.physical_cores), (gib(64), None, None));
        assert_eq!(host.bandwidth.unwrap().source, BandwidthSource::Catalogue);
        let wrong = "DDR5, DDR5-0, DDR5-5600 x0, DDR5-5600 x, DDR5-5600 2, DDR6-1 x2, DDR5-5600 x2 x2, DDR5-99999 x2";
        for text in wrong.split(", ") {
            assert_eq!(mb_per_second(text), None, "{text}");
        }
    }

    #[test]
    fn every_processor_is_found_by_its_name() {
        let lines = include_str!("cpus.txt").lines();
        let rows = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(CPUS.len(), rows.count());
        for cpu in CPUS.iter() {
            let host = host(cpu.name, gib(64)).unwrap();
            let found = (host.cpu.as_deref(), host.physical_cores);
            assert_eq!(found, (Some(cpu.name), Some(cpu.cores)));
        }
    }

    #[test]
    fn a_system_and_a_person_may_write_a_name_otherwise() {
        for (text, name) in [
            ("AMD Ryzen 9 7950X 16-Core Processor", "Ryzen 9 7950X"),
            ("7950x", "Ryzen 9 7950X"),
            ("13th Gen Intel(R) Core(TM) i9-13900K", "Core i9-13900K"),
            ("Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz", "Core i7-9700K"),
            ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "Ryzen AI Max+ 395"),
            ("Apple M3 Max", "M3 Max"),
            ("m3", "M3"),
            ("EPYC 9654", "EPYC 9654"),
        ] {
            let found = host(text, gib(1)).unwrap().cpu;
            assert_eq!(found.as_deref(), Some(name), "{text}");
        }
    }

    #[test]
    fn an_unknown_or_ambiguous_name_is_answered_with_those_near_it() {
        let error = host("Ryzen 9 7950Y", gib(1)).unwrap_err().to_string();
        assert!(error.contains("Ryzen 9 7950X"), "{error}");
        assert!(error.contains("DDR5-5600 x2"), "{error}");
        for text in ["Max", "", "x", "@"] {
            assert!(host(text, gib(1)).is_err(), "{text}");
        }
    }
}
