//! Common processors by name: cores, and the memory that their makers rate them for; and memory by its notation,
//! `DDR5-5600 x2`. In flows a name as a person writes it; out flows a hypothetical [`Host`].
//!
//! Cores are all physical ones, efficient ones included. Memory is the fastest that the maker's page names with one
//! module per channel: AMD's product pages, Intel's product specifications (ark), Apple's technical specifications,
//! NVIDIA's data sheets. A computer may have slower modules, or fewer of them than the processor has channels: then its
//! memory is what to say.

use super::super::bandwidth::{Bandwidth, BandwidthSource};
use super::super::host::Host;
use super::CatalogueError;
use super::name::Name;

/// A row of the table.
struct Cpu {
    name: &'static str,
    cores: u32,
    memory: Ram,
}

/// Memory on a bus: so many transfers per second, of so many bits at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ram {
    mega_transfers: u64,
    bits: u64,
}

impl Ram {
    /// Modules of 64 bits, one per channel.
    const fn channels(mega_transfers: u64, channels: u64) -> Self {
        Self::bits(mega_transfers, channels * 64)
    }

    const fn bits(mega_transfers: u64, bits: u64) -> Self {
        Self {
            mega_transfers,
            bits,
        }
    }

    /// The peak in bytes per second.
    fn bandwidth(self) -> Bandwidth {
        let bytes = self.mega_transfers * 1_000_000 * self.bits / 8;
        Bandwidth::new(bytes, BandwidthSource::Catalogue)
    }

    /// `DDR5-5600 x2` (channels of 64 bits), `LPDDR5X-8000 256-bit`; without a number of channels, two.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let mut words = text.split_ascii_whitespace();
        let (kind, rate) = words.next()?.split_once('-')?;
        let kind = kind
            .strip_prefix("lp")
            .unwrap_or(kind)
            .strip_prefix("ddr")?;
        if !matches!(kind.trim_end_matches('x'), "3" | "3l" | "4" | "5") {
            return None;
        }
        let mega_transfers = rate
            .parse()
            .ok()
            .filter(|rate| (100..=20_000).contains(rate))?;
        let bits: u64 = match (words.next(), words.next()) {
            (None, _) => 128,
            (Some(width), None) => match (width.strip_prefix('x'), width.strip_suffix("-bit")) {
                (Some(channels), _) => channels.parse::<u64>().ok()?.checked_mul(64)?,
                (None, Some(bits)) => bits.parse().ok()?,
                (None, None) => return None,
            },
            _ => return None,
        };
        let possible = (16..=16_384).contains(&bits) && bits.is_multiple_of(8);
        possible.then_some(Self {
            mega_transfers,
            bits,
        })
    }
}

/// A host with this processor or memory, and so many bytes: see [`Host::named`].
pub(in crate::machine) fn host(text: &str, total: u64) -> Result<Host, CatalogueError> {
    let mut host = Host::new(total);
    if let Some(memory) = Ram::parse(text) {
        host.bandwidth = Some(memory.bandwidth());
        return Ok(host);
    }
    let asked = words(text);
    let is = |cpu: &&Cpu| !asked.is_empty() && words(cpu.name).ends_with(&asked);
    let mut named = CPUS.iter().filter(is);
    // The whole name of one may be the end of another's.
    let whole = CPUS.iter().find(|cpu| words(cpu.name) == asked);
    let cpu = match (whole, named.next(), named.next()) {
        (Some(cpu), ..) | (None, Some(cpu), None) => cpu,
        _ => return Err(unknown(text)),
    };
    host.cpu = Some(cpu.name.to_owned());
    host.physical_cores = Some(cpu.cores);
    host.bandwidth = Some(cpu.memory.bandwidth());
    Ok(host)
}

/// A name in words that two writers agree on: `13th Gen Intel(R) Core(TM) i9-13900K` is `i9 13900k`.
fn words(text: &str) -> Vec<String> {
    const NOISE: [&str; 14] = [
        "amd",
        "intel",
        "apple",
        "nvidia",
        "cpu",
        "core",
        "r",
        "tm",
        "processor",
        "gen",
        "11th",
        "12th",
        "13th",
        "14th",
    ];
    let text = text.to_lowercase();
    // What follows is its clock or its GPU, and `16-Core Processor`.
    let text = text.split('@').next().unwrap_or_default();
    let text = text.split(" w/").next().unwrap_or_default();
    let all = text.split(|c: char| !c.is_alphanumeric());
    let mut words: Vec<String> = Vec::new();
    for word in all.filter(|word| !word.is_empty()) {
        if word == "core"
            && words.len() > 1
            && words.last().is_some_and(|n| n.parse::<u32>().is_ok())
        {
            words.pop();
        }
        if !NOISE.contains(&word) {
            words.push(word.to_owned());
        }
    }
    words
}

fn unknown(text: &str) -> CatalogueError {
    let key = |text: &str| Name {
        key: words(text).concat(),
        gib: None,
    };
    let asked = key(text);
    let mut near: Vec<(u8, &str)> = CPUS
        .iter()
        .map(|cpu| (key(cpu.name).likeness(&asked), cpu.name))
        .filter(|(likeness, _)| *likeness >= 60)
        .collect();
    near.sort_by_key(|(likeness, _)| std::cmp::Reverse(*likeness));
    near.truncate(5);
    CatalogueError::UnknownCpu {
        name: text.trim().to_owned(),
        near: near.into_iter().map(|(_, name)| name.to_owned()).collect(),
    }
}

const fn cpu(name: &'static str, cores: u32, memory: Ram) -> Cpu {
    Cpu {
        name,
        cores,
        memory,
    }
}

const DDR5_6400: Ram = Ram::channels(6400, 2);
const DDR5_5600: Ram = Ram::channels(5600, 2);
const DDR5_5200: Ram = Ram::channels(5200, 2);
const DDR5_4800: Ram = Ram::channels(4800, 2);
const DDR4_3200: Ram = Ram::channels(3200, 2);
const DDR4_2933: Ram = Ram::channels(2933, 2);
const DDR4_2666: Ram = Ram::channels(2666, 2);

const CPUS: &[Cpu] = &[
    cpu("Ryzen 9 9950X3D", 16, DDR5_5600),
    cpu("Ryzen 9 9950X", 16, DDR5_5600),
    cpu("Ryzen 9 9900X", 12, DDR5_5600),
    cpu("Ryzen 7 9800X3D", 8, DDR5_5600),
    cpu("Ryzen 7 9700X", 8, DDR5_5600),
    cpu("Ryzen 5 9600X", 6, DDR5_5600),
    cpu("Ryzen 9 7950X3D", 16, DDR5_5200),
    cpu("Ryzen 9 7950X", 16, DDR5_5200),
    cpu("Ryzen 9 7900X", 12, DDR5_5200),
    cpu("Ryzen 9 7900", 12, DDR5_5200),
    cpu("Ryzen 7 7800X3D", 8, DDR5_5200),
    cpu("Ryzen 7 7700X", 8, DDR5_5200),
    cpu("Ryzen 7 7700", 8, DDR5_5200),
    cpu("Ryzen 5 7600X", 6, DDR5_5200),
    cpu("Ryzen 5 7600", 6, DDR5_5200),
    cpu("Ryzen 7 8700G", 8, DDR5_5200),
    cpu("Ryzen 9 5950X", 16, DDR4_3200),
    cpu("Ryzen 9 5900X", 12, DDR4_3200),
    cpu("Ryzen 7 5800X3D", 8, DDR4_3200),
    cpu("Ryzen 7 5800X", 8, DDR4_3200),
    cpu("Ryzen 7 5700X", 8, DDR4_3200),
    cpu("Ryzen 7 5700G", 8, DDR4_3200),
    cpu("Ryzen 5 5600X", 6, DDR4_3200),
    cpu("Ryzen 5 5600G", 6, DDR4_3200),
    cpu("Ryzen 5 5600", 6, DDR4_3200),
    cpu("Ryzen 9 3900X", 12, DDR4_3200),
    cpu("Ryzen 7 3700X", 8, DDR4_3200),
    cpu("Ryzen 5 3600", 6, DDR4_3200),
    cpu("Ryzen AI Max+ 395", 16, Ram::bits(8000, 256)),
    cpu("Ryzen AI Max 390", 12, Ram::bits(8000, 256)),
    cpu("Ryzen AI Max 385", 8, Ram::bits(8000, 256)),
    cpu("Ryzen AI 9 HX 370", 12, Ram::bits(8000, 128)),
    cpu("Ryzen 7 7840U", 8, Ram::bits(7500, 128)),
    cpu("Ryzen 7 8840U", 8, Ram::bits(7500, 128)),
    cpu("Core Ultra 9 285K", 24, DDR5_6400),
    cpu("Core Ultra 7 265K", 20, DDR5_6400),
    cpu("Core Ultra 5 245K", 14, DDR5_6400),
    cpu("Core Ultra 7 258V", 8, Ram::bits(8533, 128)),
    cpu("Core Ultra 7 155H", 16, Ram::bits(7467, 128)),
    cpu("Core i9-14900K", 24, DDR5_5600),
    cpu("Core i7-14700K", 20, DDR5_5600),
    cpu("Core i5-14600K", 14, DDR5_5600),
    cpu("Core i5-14400", 10, DDR5_4800),
    cpu("Core i9-13900K", 24, DDR5_5600),
    cpu("Core i7-13700K", 16, DDR5_5600),
    cpu("Core i5-13600K", 14, DDR5_5600),
    cpu("Core i5-13400", 10, DDR5_4800),
    cpu("Core i9-12900K", 16, DDR5_4800),
    cpu("Core i7-12700K", 12, DDR5_4800),
    cpu("Core i5-12600K", 10, DDR5_4800),
    cpu("Core i5-12400", 6, DDR5_4800),
    cpu("Core i9-10900K", 10, DDR4_2933),
    cpu("Core i7-10700K", 8, DDR4_2933),
    cpu("Core i9-9900K", 8, DDR4_2666),
    cpu("Core i7-9700K", 8, DDR4_2666),
    cpu("Core i7-8700K", 6, DDR4_2666),
    cpu("Core i7-7700K", 4, Ram::channels(2400, 2)),
    cpu("Core i7-6700K", 4, Ram::channels(2133, 2)),
    cpu("Threadripper PRO 7995WX", 96, Ram::channels(5200, 8)),
    cpu("Threadripper PRO 7965WX", 24, Ram::channels(5200, 8)),
    cpu("Threadripper 7980X", 64, Ram::channels(5200, 4)),
    cpu("Threadripper 7970X", 32, Ram::channels(5200, 4)),
    cpu("Threadripper 7960X", 24, Ram::channels(5200, 4)),
    cpu("Threadripper PRO 5995WX", 64, Ram::channels(3200, 8)),
    cpu("Threadripper PRO 5975WX", 32, Ram::channels(3200, 8)),
    cpu("Threadripper 3990X", 64, Ram::channels(3200, 4)),
    cpu("Threadripper 3970X", 32, Ram::channels(3200, 4)),
    cpu("EPYC 9755", 128, Ram::channels(6000, 12)),
    cpu("EPYC 9654", 96, Ram::channels(4800, 12)),
    cpu("EPYC 9554", 64, Ram::channels(4800, 12)),
    cpu("EPYC 9354", 32, Ram::channels(4800, 12)),
    cpu("EPYC 7763", 64, Ram::channels(3200, 8)),
    cpu("EPYC 7742", 64, Ram::channels(3200, 8)),
    cpu("EPYC 7502", 32, Ram::channels(3200, 8)),
    cpu("EPYC 7302", 16, Ram::channels(3200, 8)),
    cpu("Xeon Platinum 8592+", 64, Ram::channels(5600, 8)),
    cpu("Xeon Platinum 8480+", 56, Ram::channels(4800, 8)),
    cpu("Xeon Gold 6248", 20, Ram::channels(2933, 6)),
    cpu("Xeon 6980P", 128, Ram::channels(6400, 12)),
    cpu("M1", 8, Ram::bits(4266, 128)),
    cpu("M1 Pro", 10, Ram::bits(6400, 256)),
    cpu("M1 Max", 10, Ram::bits(6400, 512)),
    cpu("M1 Ultra", 20, Ram::bits(6400, 1024)),
    cpu("M2", 8, Ram::bits(6400, 128)),
    cpu("M2 Pro", 12, Ram::bits(6400, 256)),
    cpu("M2 Max", 12, Ram::bits(6400, 512)),
    cpu("M2 Ultra", 24, Ram::bits(6400, 1024)),
    cpu("M3", 8, Ram::bits(6400, 128)),
    cpu("M3 Pro", 12, Ram::bits(6400, 192)),
    cpu("M3 Max", 16, Ram::bits(6400, 512)),
    cpu("M3 Ultra", 32, Ram::bits(6400, 1024)),
    cpu("M4", 10, Ram::bits(7500, 128)),
    cpu("M4 Pro", 14, Ram::bits(8533, 256)),
    cpu("M4 Max", 16, Ram::bits(8533, 512)),
    cpu("M5", 10, Ram::bits(9600, 128)),
    cpu("GB10", 20, Ram::bits(8533, 256)),
    cpu("Jetson AGX Orin", 12, Ram::bits(6400, 256)),
    cpu("Raspberry Pi 5", 4, Ram::bits(4267, 32)),
];

#[cfg(test)]
mod tests {
    use super::{CPUS, host, words};
    use crate::machine::{BandwidthSource, gib};

    fn gb_per_second(text: &str) -> Option<u64> {
        let host = host(text, gib(64)).ok()?;
        Some(host.bandwidth.unwrap().bytes_per_second / 1_000_000)
    }

    #[test]
    fn memory_is_transfers_times_width() {
        for (text, mb_per_second) in [
            ("DDR5-5600 x2", 89_600),
            ("ddr4-3200", 51_200),
            ("DDR4-3200 x1", 25_600),
            ("LPDDR5X-8000 256-bit", 256_000),
            ("DDR5-4800 x12", 460_800),
            ("DDR3L-1600 x2", 25_600),
        ] {
            assert_eq!(gb_per_second(text), Some(mb_per_second), "{text}");
        }
        let host = host("DDR5-5600 x2", gib(64)).unwrap();
        assert_eq!(
            (host.total, host.cpu, host.physical_cores),
            (gib(64), None, None)
        );
        assert_eq!(host.bandwidth.unwrap().source, BandwidthSource::Catalogue);
        for text in [
            "DDR5",
            "DDR5-0",
            "DDR5-5600 x0",
            "DDR5-5600 x",
            "DDR5-5600 2",
            "DDR6-1 x2",
            "DDR5-5600 x2 x2",
            "DDR5-99999 x2",
        ] {
            assert_eq!(gb_per_second(text), None, "{text}");
        }
    }

    #[test]
    fn every_processor_is_found_by_its_name() {
        for cpu in CPUS {
            let host = host(cpu.name, gib(64)).unwrap();
            assert_eq!(
                (host.cpu.as_deref(), host.physical_cores),
                (Some(cpu.name), Some(cpu.cores))
            );
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
            assert_eq!(
                host(text, gib(1)).unwrap().cpu.as_deref(),
                Some(name),
                "{text}"
            );
        }
        assert_eq!(words("AMD EPYC 9654 96-Core Processor"), ["epyc", "9654"]);
    }

    #[test]
    fn an_unknown_or_ambiguous_name_is_answered_with_those_near_it() {
        let error = host("Ryzen 9 7950Y", gib(1)).unwrap_err().to_string();
        assert!(
            error.contains("Ryzen 9 7950X") && error.contains("DDR5-5600 x2"),
            "{error}"
        );
        for text in ["Max", "", "x", "@"] {
            assert!(host(text, gib(1)).is_err(), "{text}");
        }
    }
}
