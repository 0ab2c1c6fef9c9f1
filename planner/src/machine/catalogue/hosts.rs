//! Common computers by the name of their processor, and memories by their notation. A name as a person writes it flows
//! in: `Ryzen 9 7950X`, `DGX Spark`, `DDR5-5600 x2`. A hypothetical [`Host`], or a memory's bandwidth, flows out.

use std::sync::LazyLock;

use super::CatalogueError;
use super::name::Name;
use crate::machine::ParseError;
use crate::machine::bandwidth::{Bandwidth, BandwidthSource};
use crate::machine::host::Host;

/// The rows of `platforms.txt` and of `memories.txt`, which document their columns. The tests check that each line is a
/// row.
static PLATFORMS: LazyLock<Vec<Platform>> = LazyLock::new(|| rows(include_str!("platforms.txt"), Platform::parse));
static MEMORIES: LazyLock<Vec<Memory>> = LazyLock::new(|| rows(include_str!("memories.txt"), Memory::parse));

/// The width of one channel of memory, in bits; `x2` stands for two channels.
const CHANNEL: u64 = 64;

/// Maximum number of channels: two sockets with twelve each.
const MAX_CHANNELS: u64 = 24;

/// Maximum number of similar names that are listed for an unknown name.
const MAX_NEAR_NAMES: usize = 5;

/// A computer, which is identified by its processor.
struct Platform {
    name: &'static str,
    /// The words of each name of the computer.
    names: Vec<Vec<String>>,
    cores: u32,
    memory: Bandwidth,
}

/// A type of memory. The numbers are millions of transfers per second.
struct Memory {
    name: &'static str,
    sold: [u64; 2],
    usual: u64,
    bits: u64,
}

fn rows<T>(table: &'static str, parse: impl Fn(&[&'static str]) -> Option<T>) -> Vec<T> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| parse(&line.split('|').map(str::trim).collect::<Vec<_>>())).collect()
}

impl Platform {
    fn parse(fields: &[&'static str]) -> Option<Self> {
        let &[names, cores, transfers] = fields else { return None };
        let name = names.split(',').next()?.trim();
        let names = names.split(',').map(words).collect();
        Some(Self { name, names, cores: cores.parse().ok()?, memory: memory(transfers).ok()? })
    }
}

impl Memory {
    fn parse(fields: &[&'static str]) -> Option<Self> {
        let &[name, sold, usual, bits] = fields else { return None };
        let (least, most) = sold.split_once(' ')?;
        let sold = [least.parse().ok()?, most.parse().ok()?];
        Some(Self { name, sold, usual: usual.parse().ok()?, bits: bits.parse().ok()? })
    }
}

/// A host with this processor, `total` bytes, and the memory for which the processor is specified: see [`Host::named`].
pub(in crate::machine) fn host(text: &str, total: u64) -> Result<Host, CatalogueError> {
    let asked = words(text);
    let is_whole = |platform: &&Platform| platform.names.contains(&asked);
    let is_end = |platform: &&Platform| platform.names.iter().any(|words| words.ends_with(&asked));
    let mut ends = PLATFORMS.iter().filter(|platform| !asked.is_empty() && is_end(platform));
    // The whole name of one computer may also be the end of another computer's name: `M3`, `Xeon ... M3`.
    let whole = PLATFORMS.iter().find(is_whole);
    let only = ends.next().filter(|_| ends.next().is_none());
    // A longer request may end with a listed name: `AMD Ryzen Threadripper 3970X` ends with `Threadripper 3970X`. A
    // listed name of one word is not accepted in this way, because the end of many longer names is the same word.
    let is_within = |words: &Vec<String>| words.len() > 1 && asked.ends_with(words);
    let within = || PLATFORMS.iter().find(|platform| platform.names.iter().any(is_within));
    let Some(platform) = whole.or(only).or_else(within) else {
        return Err(CatalogueError::UnknownHost { name: text.trim().to_owned(), near: near(&asked) });
    };
    let mut host = Host::new(total);
    host.cpu = Some(platform.name.to_owned());
    host.physical_cores = Some(platform.cores);
    host.bandwidth = Some(platform.memory);
    Ok(host)
}

/// Similar names: the names whose model number is the same up to its last character. If there are none, the names that
/// contain the request.
fn near(asked: &[String]) -> Vec<String> {
    let is_model = |word: &&String| word.len() >= 2 && word.chars().any(|c| c.is_ascii_digit());
    let begins = |name: &[String], word: &str| {
        // `7950y` is near `7950x`.
        let stem = &word[..word.char_indices().last().map_or(0, |(last, _)| last)];
        name.iter().any(|own| own == word || (stem.len() >= 3 && own.starts_with(stem)))
    };
    let has = |platform: &&Platform| {
        asked.iter().filter(is_model).any(|word| platform.names.iter().any(|name| begins(name, word)))
    };
    let named = PLATFORMS.iter().filter(has).map(|platform| platform.name.to_owned());
    let mut names: Vec<String> = named.take(MAX_NEAR_NAMES).collect();
    if names.is_empty() {
        let joined = asked.concat();
        let is_like = |platform: &&Platform| {
            let of = |name: &Vec<String>| !joined.is_empty() && name.concat().contains(&joined);
            platform.names.iter().any(of)
        };
        names =
            PLATFORMS.iter().filter(is_like).take(MAX_NEAR_NAMES).map(|platform| platform.name.to_owned()).collect();
    }
    names
}

/// The words of a processor's name in lower case, without generic words, the clock and the GPU: `13th Gen Intel(R)
/// Core(TM) i9-13900K @ 3.00GHz`, `AMD RYZEN AI MAX+ 395 w/ Radeon 8060S`.
fn words(text: &str) -> Vec<String> {
    const NOISE: [&str; 9] = ["cpu", "core", "processor", "gen", "11th", "12th", "13th", "14th", "chip"];
    let text = text.to_lowercase();
    let text = text.split('@').next().unwrap_or_default();
    let text = text.split(" w/").next().unwrap_or_default();
    // This drops `16-Core` from `16-Core Processor`.
    let parts: Vec<&str> = text.split_whitespace().filter(|part| !part.ends_with("-core")).collect();
    let words = Name::parse(&parts.join(" ")).words;
    words.into_iter().filter(|word| !NOISE.contains(&word.as_str())).collect()
}

/// The peak bandwidth of a memory by its notation: `DDR5-5600 x2` (channels of 64 bits), `LPDDR5X-8000 256-bit`,
/// `DDR4`. The bandwidth is the transfers per second times the width of the bus.
pub(in crate::machine) fn memory(text: &str) -> Result<Bandwidth, ParseError> {
    let wrong = |what| ParseError::new(text.trim(), what);
    let lower = text.trim().to_ascii_lowercase();
    let mut words = lower.split_ascii_whitespace();
    let grade = words.next().unwrap_or_default();
    let (kind, transfers) = grade.split_once('-').map_or((grade, None), |(kind, transfers)| (kind, Some(transfers)));
    let memory = MEMORIES.iter().find(|memory| memory.name.eq_ignore_ascii_case(kind));
    let memory = memory.ok_or_else(|| {
        wrong("not a known memory type: use DDR3 to DDR5 or LPDDR4 to LPDDR5X, as in `DDR5-5600 x2` or `LPDDR5X-8000 256-bit`")
    })?;
    let [least, most] = memory.sold;
    let mega_transfers = match transfers {
        None => memory.usual,
        Some(text) => text
            .parse()
            .ok()
            // Speeds up to a quarter above the fastest listed one are accepted, because overclocked modules are also
            // sold.
            .filter(|number| (least..=most + most / 4).contains(number))
            .ok_or_else(|| wrong("not a speed that this memory is sold in: the type is followed by millions of transfers per second, as in `DDR5-5600`"))?,
    };
    let bits = match (words.next(), words.next()) {
        (None, _) => Some(memory.bits),
        (Some(width), None) => match width.strip_prefix('x') {
            Some(channels) => {
                channels.parse().ok().filter(|n| (1..=MAX_CHANNELS).contains(n)).map(|n: u64| n * CHANNEL)
            }
            None => width.strip_suffix("-bit").and_then(|bits| bits.parse().ok()),
        },
        _ => None,
    };
    let is_bus = |bits: &u64| (16..=MAX_CHANNELS * CHANNEL).contains(bits) && bits.is_multiple_of(16);
    let bits = bits.filter(is_bus).ok_or_else(|| {
        wrong("not a memory width: the speed is followed by 1 to 24 channels or the bits of the bus, as in `x2` or `256-bit`")
    })?;
    Ok(Bandwidth::new(mega_transfers * 1_000_000 * bits / 8, BandwidthSource::Catalogue))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{MEMORIES, PLATFORMS, host, memory, words};
    use crate::machine::{BandwidthSource, gib};

    fn mb_per_second(text: &str) -> Option<u64> {
        Some(memory(text).ok()?.bytes_per_second / 1_000_000)
    }

    #[test]
    fn memory_is_transfers_times_width() {
        for (text, expected) in [
            ("DDR5-5600 x2", 89_600),
            ("ddr4-3200", 51_200),
            ("DDR4", 51_200),
            ("DDR4-3200 x1", 25_600),
            ("LPDDR5X-8000 256-bit", 256_000),
            ("DDR5-4800 x12", 460_800),
            ("DDR5-6000 x24", 1_152_000),
            ("DDR3L-1600 x2", 25_600),
            ("LPDDR4X-4267 32-bit", 17_068),
        ] {
            assert_eq!(mb_per_second(text), Some(expected), "{text}");
        }
        assert_eq!(memory("DDR5-5600 x2").unwrap().source, BandwidthSource::Catalogue);
        let wrong = ", DDR6, DDR5-0, DDR5-5600 x0, DDR5-5600 x25, DDR5-5600 x, DDR5-5600 2, DDR5-1 x2, DDR5-5600 x2 x2, DDR5-99999 x2, DDR5-5600 7-bit, LPDDR5X-8000 18446744073709551615-bit";
        for text in wrong.split(", ") {
            let error = memory(text).unwrap_err().to_string();
            assert!(error.contains("memory"), "{text}: {error}");
        }
    }

    #[test]
    fn every_table_line_is_a_row_and_each_name_finds_its_computer() {
        for (table, rows) in
            [(include_str!("platforms.txt"), PLATFORMS.len()), (include_str!("memories.txt"), MEMORIES.len())]
        {
            assert_eq!(table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count(), rows);
        }
        assert!(PLATFORMS.len() > 120, "{}", PLATFORMS.len());
        let mut seen = BTreeSet::new();
        let lines = include_str!("platforms.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for (line, platform) in lines.zip(PLATFORMS.iter()) {
            for name in line.split('|').next().unwrap().split(',') {
                assert!(seen.insert(words(name)), "{name} occurs twice");
                let host = host(name, gib(64)).unwrap();
                assert_eq!(host.cpu.as_deref(), Some(platform.name), "{name}");
                assert_eq!((host.physical_cores, host.total), (Some(platform.cores), gib(64)));
            }
            // The range reaches from a Raspberry Pi to an Apple Ultra.
            let peak = platform.memory.bytes_per_second / 1_000_000_000;
            assert!((15..=1000).contains(&peak) && (4..=192).contains(&platform.cores), "{}: {peak}", platform.name);
        }
    }

    /// Bandwidths in GB/s that makers publish. The source of each figure is a page that quotes the maker, read on
    /// 2026-11-28.
    const PUBLISHED: [(&str, f64, &str); 12] = [
        ("EPYC 9654", 460.8, "tomshardware.com/news/amd-confirms-12-ddr5-memory-channels-on-genoa"),
        ("EPYC 9124", 460.8, "the same: the whole series has twelve channels"),
        ("EPYC 7763", 204.8, "the same, of the series before"),
        ("EPYC 7742", 204.8, "the same"),
        ("Core i9-12900K", 76.8, "gizbot.com, review of 2021-11-23"),
        ("M3 Pro", 150.0, "americanfork.business, on the M4 Pro's 273 GB/s"),
        ("M3 Max", 400.0, "macmegasite.com, 2024-10-30"),
        ("M4", 120.0, "americanfork.business"),
        ("M4 Pro", 273.0, "americanfork.business"),
        ("M4 Max", 546.0, "macmegasite.com, 2024-10-30"),
        ("M1 Pro", 200.0, "Apple's press release of 2021-10-18"),
        // The memory controller reaches 301 GB/s (Hot Chips 2025), but the computer is sold with 273 GB/s.
        ("DGX Spark", 273.0, "groundy.com, June 2026"),
    ];

    #[test]
    fn bandwidths_are_those_that_makers_publish() {
        for (name, published, source) in PUBLISHED {
            let rate = host(name, gib(1)).unwrap().bandwidth.unwrap().bytes_per_second as f64 / 1e9;
            // Apple rounds down.
            assert!(
                rate >= published * 0.999 && rate <= published * 1.03,
                "{name}: {rate} GB/s, {published} by {source}"
            );
        }
    }

    #[test]
    fn a_processor_is_found_by_the_names_that_systems_and_people_write() {
        for (text, name) in [
            ("AMD Ryzen 9 7950X 16-Core Processor", "Ryzen 9 7950X"),
            ("7950x", "Ryzen 9 7950X"),
            ("13th Gen Intel(R) Core(TM) i9-13900K", "Core i9-13900K"),
            ("Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz", "Core i7-9700K"),
            ("Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", "Core i7-8700"),
            ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "Ryzen AI Max+ 395"),
            ("strix halo", "Ryzen AI Max+ 395"),
            ("DGX Spark", "GB10"),
            ("Apple M3 Max", "M3 Max"),
            ("m3", "M3"),
            ("Mac Studio M3 Ultra", "M3 Ultra"),
            ("EPYC 9654", "EPYC 9654"),
        ] {
            let found = host(text, gib(1)).map(|host| host.cpu);
            assert_eq!(found, Ok(Some(name.to_owned())), "{text}");
        }
    }

    #[test]
    fn an_unknown_or_ambiguous_name_is_answered_with_similar_names() {
        let error = host("Ryzen 9 7950Y", gib(1)).unwrap_err().to_string();
        assert!(error.contains("Ryzen 9 7950X"), "{error}");
        for text in ["Max", "", "x", "@", "w/", "\u{130}\u{1f}"] {
            assert!(host(text, gib(1)).is_err(), "{text}");
        }
    }
}
