//! The catalogue of common GPUs, computers and memories. Its sizes and speeds come from their makers, and are used for
//! hypothetical machines and for properties that a driver does not report.
//!
//! A name flows in, as a person or a driver writes it. A hypothetical [`Gpu`] or [`Host`](super::Host), or the
//! bandwidth of a detected card, flows out. A driver's name must match the card's whole name: `RTX 4090 Laptop GPU` is
//! not an `RTX 4090`. A person may write only the distinctive words, such as `R9700`. For a card that is sold with two
//! sizes of memory, the name must include the size.

mod hosts;
mod name;

use std::sync::LazyLock;

use super::bandwidth::{Bandwidth, BandwidthSource};
use super::bytes::gib;
use super::gpu::{Gpu, GpuKind, short_name};
pub(super) use hosts::{host, memory};
use name::Name;

/// The rows of `cards.txt`, which documents its columns. The tests check that each line is a row.
static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    let lines = include_str!("cards.txt").lines();
    lines.filter(|line| !line.starts_with('#')).filter_map(Card::parse).collect()
});

/// NVIDIA's drivers keep 1 to 3 % of a card's memory: 638 MiB on a card of 24 GiB (Ollama #18201). This fraction (1/32)
/// of a hypothetical card counts as not free.
const DRIVERS_SHARE: u64 = 32;

#[derive(Debug)]
struct Card {
    maker: &'static str,
    name: &'static str,
    key: String,
    gib: Vec<u64>,
    bandwidth: Bandwidth,
    memory: Memory,
    resident_threads: Option<u32>,
    multiprocessors: Option<Multiprocessors>,
}

/// The processors of a card that compute independently: NVIDIA's multiprocessors, AMD's compute units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Multiprocessors {
    /// The number of multiprocessors.
    pub(crate) count: u32,
    pub(crate) generation: Generation,
}

/// The generation of the multiprocessors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// NVIDIA's generation, by the major and minor number of the compute capability: `(8, 9)` for Ada.
    Cuda(u32, u32),
    /// AMD's generation, by the name of the architecture: `RDNA 3.5`.
    Amd(&'static str),
}

/// The owner of the memory, and how much of it is usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Own,
    /// The card's own memory. Error correction (on by default) takes a sixteenth of it: `nvidia-smi` shows 15360 MiB
    /// for a T4's 16 GB.
    Ecc,
    Host,
}

/// The name does not identify one card or computer of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message explains the fields.
pub enum CatalogueError {
    /// No card has this name. `near` lists similar names.
    #[error(
        "`{name}` is not in the catalogue of GPUs{}",
        if near.is_empty() { String::new() } else { format!("; similar names are {}", near.join(", ")) }
    )]
    Unknown { name: String, near: Vec<String> },
    /// The card comes with several memory sizes, and the name states none of them.
    #[error("`{name}` could mean {}", sizes.join(", "))]
    Sizes { name: String, sizes: Vec<String> },
    /// The chip uses the host's memory, and the system decides how much.
    #[error("`{name}` uses the host's memory: state how much the GPU has, as in `{name} 64GB`")]
    NoSize { name: String },
    /// No processor, or more than one, has this name. `near` lists similar names.
    #[error(
        "`{name}` is not in the catalogue of processors{}",
        if near.is_empty() { String::new() } else { format!("; similar names are {}", near.join(", ")) }
    )]
    UnknownHost { name: String, near: Vec<String> },
}

/// A hypothetical card of the catalogue: see [`Gpu::named`].
pub(super) fn named(text: &str) -> Result<Gpu, CatalogueError> {
    let asked = Name::parse(text);
    let name = text.trim().to_owned();
    let called = |key: &str| CARDS.iter().filter(|card| card.key == key).collect::<Vec<&Card>>();
    let mut cards = called(&asked.key);
    if cards.is_empty()
        && let Some(key) = only_with_words(&asked)
    {
        cards = called(key);
    }
    if cards.is_empty() {
        return Err(CatalogueError::Unknown { name, near: near(&asked.key) });
    }
    if let [card] = cards[..]
        && card.gib.is_empty()
    {
        return Ok(card.gpu(asked.gib.filter(|&gib| gib > 0).ok_or(CatalogueError::NoSize { name })?));
    }
    let sizes = cards.iter().flat_map(|&card| card.gib.iter().map(move |&size| (card, size)));
    let is_meant = |&(_, size): &(&Card, u64)| asked.gib.is_none_or(|asked| asked == size);
    let mut meant = sizes.clone().filter(is_meant);
    match (meant.next(), meant.next()) {
        (Some((card, size)), None) => Ok(card.gpu(size)),
        _ => {
            let sizes = sizes.map(|(card, size)| card.with_size(size)).collect();
            Err(CatalogueError::Sizes { name, sizes })
        }
    }
}

/// The key of the card whose name contains these words one after the other, if there is only one such card: `R9700` is
/// the Radeon AI PRO R9700.
fn only_with_words(asked: &Name) -> Option<&'static str> {
    const MIN_KEY_LENGTH: usize = 3;
    let has_words = |card: &&Card| {
        let words = Name::parse(card.name).words;
        words.windows(asked.words.len().max(1)).any(|words| words == asked.words)
    };
    let mut keys = CARDS.iter().filter(has_words).map(|card| card.key.as_str());
    let first = keys.next().filter(|_| asked.key.len() >= MIN_KEY_LENGTH)?;
    // A card with several sizes has several rows.
    keys.all(|key| key == first).then_some(first)
}

/// Up to five names that contain the requested name, or that the requested name contains.
fn near(asked: &str) -> Vec<String> {
    let is_near = |card: &&Card| !asked.is_empty() && (card.key.contains(asked) || asked.contains(&card.key));
    let mut names: Vec<String> = CARDS.iter().filter(is_near).map(|card| short_name(card.name).to_owned()).collect();
    // Rows with the same name are adjacent.
    names.dedup();
    names.truncate(5);
    names
}

/// Every card of the catalogue that has its own memory. [`Gpu::named`] resolves the name to exactly this card.
pub(crate) fn every_card() -> impl Iterator<Item = (String, Gpu)> {
    CARDS.iter().flat_map(|card| {
        card.gib.iter().map(|&size| {
            let short = short_name(card.name);
            let name = match named(short) {
                Ok(_) => short.to_owned(),
                Err(_) => card.with_size(size),
            };
            (name, card.gpu(size))
        })
    })
}

/// A card of the same kind that no program uses: see [`Gpu::another`].
pub(super) fn another(gpu: &Gpu) -> Gpu {
    let other = Gpu { device: None, pci_id: None, pcie: None, processes: None, ggml: None, nvml: None, ..gpu.clone() };
    other.free(gpu.total - gpu.total / DRIVERS_SHARE)
}

/// The peak bandwidth and the number of resident threads of a detected card, which is identified by the driver's name
/// and the usable bytes.
///
/// `None` if no card has this name and size, for example after somebody has soldered on more memory.
pub(super) fn data_sheet(description: &str, total: u64) -> (Option<Bandwidth>, Option<u32>) {
    let name = Name::parse(description);
    let cards = CARDS.iter().filter(|card| card.key == name.key && card.may_have(total, name.gib));
    let mut peaks = cards.clone().map(|card| card.bandwidth);
    // If the rows differ, no bandwidth is returned. For the threads, the larger number is returned, because it is the
    // safe one.
    let peak = peaks.next().filter(|&peak| peaks.all(|other| other == peak));
    (peak, cards.filter_map(|card| card.resident_threads).max())
}

/// The multiprocessors of a whole card, by its name. If cards of this name differ, the smallest number is returned.
/// `None` for a card that is not listed, for a slice of a card, and for cards of makers other than NVIDIA and AMD.
pub(crate) fn multiprocessors(gpu: &Gpu) -> Option<Multiprocessors> {
    let key = Name::parse(&gpu.description).key;
    let cards = CARDS.iter().filter(|card| gpu.mig.is_none() && card.key == key);
    cards.filter_map(|card| card.multiprocessors).min_by_key(|multiprocessors| multiprocessors.count)
}

impl Card {
    fn parse(line: &'static str) -> Option<Self> {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [maker, name, sizes, gb_per_second, memory, ..] = fields[..] else {
            return None;
        };
        let sizes = sizes.split_ascii_whitespace().map(|size| size.parse().ok());
        let memory = match memory {
            "own" => Memory::Own,
            "ecc" => Memory::Ecc,
            "host" => Memory::Host,
            _ => return None,
        };
        let threads = |field: &&str| {
            let (processors, each) = field.split_once(" x ")?;
            processors.parse::<u32>().ok()?.checked_mul(each.parse().ok()?)
        };
        let count = |field: &&str| field.split(" x ").next()?.parse().ok();
        let generation = |field: &&'static str| match maker {
            "AMD" => Some(Generation::Amd(field)),
            _ => {
                let (major, minor) = field.split_once('.')?;
                Some(Generation::Cuda(major.parse().ok()?, minor.parse().ok()?))
            }
        };
        let multiprocessors = fields.get(5).and_then(count).zip(fields.get(6).and_then(generation));
        let peak = gb_per_second.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
        Some(Self {
            maker,
            name,
            key: Name::parse(name).key,
            gib: sizes.collect::<Option<_>>()?,
            bandwidth: Bandwidth::new(peak, BandwidthSource::Catalogue),
            memory,
            resident_threads: fields.get(5).and_then(threads),
            multiprocessors: multiprocessors.map(|(count, generation)| Multiprocessors { count, generation }),
        })
    }

    fn with_size(&self, size: u64) -> String {
        format!("{} {size}GB", short_name(self.name))
    }

    fn gpu(&self, size: u64) -> Gpu {
        let backend = match self.maker {
            "NVIDIA" => "CUDA",
            "AMD" => "ROCm",
            "Apple" => "MTL",
            _ => "Vulkan",
        };
        let mut gpu = Gpu::new(format!("{} {}", self.maker, self.name)).backend(backend);
        gpu.bandwidth = Some(self.bandwidth);
        gpu.resident_threads = self.resident_threads;
        let size = gib(size);
        match self.memory {
            Memory::Host => gpu.kind(GpuKind::Integrated).total(match self.maker {
                "Apple" if size < gib(36) => size / 3 * 2,
                "Apple" => size / 4 * 3,
                _ => size,
            }),
            Memory::Own => gpu.total(size).free(size - size / DRIVERS_SHARE),
            Memory::Ecc => {
                let total = size - size / 16;
                gpu.total(total).free(total - total / DRIVERS_SHARE)
            }
        }
    }

    /// Whether a device with `total` usable bytes can be this card. At most a tenth of a card's own memory is missing,
    /// because of error correction and the driver. An integrated GPU gets a part of the host's memory whose size the
    /// system and its owner decide. A size in the name must match, because half of an A100 80GB has as many bytes as an
    /// A100 40GB.
    fn may_have(&self, total: u64, named: Option<u64>) -> bool {
        let is_named = |size: &&u64| named.is_none_or(|named| named == **size);
        let fits = |size: &u64| match self.memory {
            Memory::Own | Memory::Ecc => total <= gib(*size) && total >= gib(*size) / 10 * 9,
            // Metal never lets a GPU use all of the memory. On a Jetson, the GPU can use all of it.
            Memory::Host if self.maker == "Apple" => total < gib(*size) && total >= gib(*size) / 5 * 3,
            Memory::Host => total <= gib(*size) && total >= gib(*size) / 5 * 3,
        };
        total > 0 && (self.gib.is_empty() || self.gib.iter().filter(is_named).any(fits))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CARDS, CatalogueError, Generation, Memory, data_sheet, every_card, multiprocessors, named};
    use crate::machine::{Gpu, GpuKind, gib, mib};

    #[test]
    fn every_card_of_the_table_is_found_by_its_name_and_by_its_drivers_name() {
        let lines = include_str!("cards.txt").lines();
        let rows = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(CARDS.len(), rows.count());
        let mut seen = BTreeSet::new();
        for card in CARDS.iter() {
            assert_eq!(card.resident_threads.is_some(), card.maker == "NVIDIA", "{}", card.name);
            let is_known = match card.multiprocessors.map(|multiprocessors| multiprocessors.generation) {
                // The generations from Pascal to Blackwell.
                Some(Generation::Cuda(major, _)) => card.maker == "NVIDIA" && (6..=12).contains(&major),
                Some(Generation::Amd(name)) => {
                    card.maker == "AMD" && ["GCN", "RDNA", "CDNA"].iter().any(|kind| name.starts_with(kind))
                }
                None => !["NVIDIA", "AMD"].contains(&card.maker),
            };
            assert!(is_known, "{}", card.name);
            // The range reaches from a Jetson Orin Nano to a B300.
            let threads = card.resident_threads.unwrap_or(12_288);
            assert!((4 * 1536..=160 * 2048).contains(&threads), "{}", card.name);
            for &size in &card.gib {
                assert!(seen.insert((&card.key, size)), "{} {size}GB", card.name);
                let gpu = named(&card.with_size(size)).unwrap();
                assert!(gpu.free <= gpu.total && gpu.total <= gib(size), "{gpu}");
                assert!(gpu.total >= gib(size) / 3 * 2, "{gpu}");
                assert_eq!(gpu.bandwidth, Some(card.bandwidth));
                let again = data_sheet(&gpu.description, gpu.total).0;
                assert_eq!(again, Some(card.bandwidth), "{gpu}");
                assert_eq!(gpu.kind == GpuKind::Integrated, card.memory == Memory::Host);
            }
        }
        assert!(seen.len() > 100);
        let listed: BTreeSet<String> = every_card().map(|(name, _)| name).collect();
        assert_eq!(listed.len(), every_card().count());
        assert!(listed.contains("RTX 4090") && listed.contains("RTX 3060 12GB"));
        for (name, gpu) in every_card() {
            assert_eq!(named(&name).unwrap(), gpu);
        }
    }

    #[test]
    fn another_card_of_the_same_kind_is_unused() {
        let process = crate::machine::GpuProcess::new(7).bytes(gib(20));
        let mut card = named("RTX 4090").unwrap().free(gib(2)).device("CUDA0");
        card.processes = Some(vec![process]);
        assert_eq!(card.another(), named("RTX 4090").unwrap());
    }

    #[test]
    fn a_name_may_be_written_as_drivers_and_as_people_write_it() {
        let ways = "RTX 4090|rtx4090|NVIDIA GeForce RTX 4090| GeForce  RTX-4090 |RTX 4090 24GB|RTX 4090 24 GiB";
        for text in ways.split('|') {
            let gpu = named(text).unwrap();
            assert_eq!((gpu.name.as_str(), gpu.total), ("RTX 4090", gib(24)));
            assert_eq!(gpu.description, "NVIDIA GeForce RTX 4090");
        }
        // The chip of a laptop counts as a separate card.
        for (text, expected) in [("RTX 4090 Laptop GPU", 576), ("RTX 4090 laptop", 576), ("RTX 4090", 1_008)] {
            let peak = named(text).unwrap().bandwidth.unwrap().bytes_per_second;
            assert_eq!(peak, expected * 1_000_000_000, "{text}");
        }
    }

    #[test]
    fn drivers_names_find_their_cards_and_no_others() {
        for (description, total, expected) in [
            ("NVIDIA GeForce RTX 4060 Ti", gib(8) - mib(12), Some(288)),
            ("NVIDIA GeForce RTX 3060", gib(12) - mib(200), Some(360)),
            ("NVIDIA GeForce RTX 3060", gib(8) - mib(200), Some(240)),
            ("NVIDIA A100-SXM4-80GB", gib(79), Some(2_039)),
            ("NVIDIA A100 80GB PCIe", gib(79), Some(1_935)),
            ("NVIDIA H100 80GB HBM3", mib(81_000), Some(3_350)),
            ("Tesla T4", mib(14_914), Some(320)),
            ("AMD Radeon RX 7900 XTX (RADV NAVI31)", gib(24), Some(960)),
            ("AMD Instinct MI300X", gib(192) - mib(16), Some(5_300)),
            ("AMD Radeon 8060S Graphics (RADV GFX1151)", gib(96), Some(256)),
            ("Intel(R) Arc(tm) A770 Graphics (DG2)", gib(16), Some(560)),
            ("NVIDIA B200", mib(183_359), Some(8_000)),
            ("NVIDIA GB10", mib(122_570), Some(273)),
            ("Orin", mib(62_841), Some(205)),
            ("Orin", mib(15_656), Some(102)),
            ("NVIDIA Thor", mib(125_772), Some(273)),
            ("Quadro P6000", mib(24_446), Some(432)),
            ("Apple M5 Max", gib(96), Some(614)),
            ("Apple M5 Pro", gib(48) / 4 * 3, Some(307)),
            ("Apple M3 Max", gib(27), Some(300)),
            ("Apple M3 Max", gib(36), Some(400)),
            ("NVIDIA GeForce RTX 4070 Ti Laptop GPU", gib(12), None),
            ("NVIDIA GeForce RTX 3080 Laptop GPU", gib(8), Some(448)),
            ("NVIDIA GeForce RTX 2070 with Max-Q Design", gib(8), None),
            ("NVIDIA RTX 5000 Ada Generation Laptop GPU", gib(16), None),
            ("AMD Radeon RX 7600M XT", gib(8), None),
            ("Intel(R) Arc(tm) A770M Graphics (DG2)", gib(16), None),
            // A card onto which more memory was soldered.
            ("NVIDIA GeForce RTX 4090", gib(48), None),
            ("NVIDIA GeForce RTX 2080 Ti", gib(22), None),
            ("NVIDIA A100 80GB PCIe", gib(39), None),
            // A virtual share of a card.
            ("NVIDIA A40-8Q", gib(8), None),
            ("NVIDIA GeForce RTX 4090", 0, None),
            ("", gib(24), None),
            ("NVIDIA", gib(24), None),
            ("llvmpipe (LLVM 15.0.6, 256 bits)", gib(16), None),
        ] {
            let found = data_sheet(description, total).0;
            let found = found.map(|found| found.bytes_per_second / 1_000_000_000);
            assert_eq!(found, expected, "{description}");
        }
        let threads = |description, total| data_sheet(description, total).1;
        assert_eq!(threads("NVIDIA GeForce RTX 4060 Ti", gib(8) - mib(12)), Some(34 * 1536));
        assert_eq!(threads("NVIDIA A40-8Q", gib(8)), None);
        assert_eq!(threads("NVIDIA GeForce RTX 4090", gib(48)), None);
    }

    #[test]
    fn the_multiprocessors_are_those_of_the_whole_card() {
        let of = |name: &str| multiprocessors(&Gpu::new(name)).map(|found| (found.count, found.generation));
        assert_eq!(of("NVIDIA GeForce RTX 4090"), Some((128, Generation::Cuda(8, 9))));
        assert_eq!(of("NVIDIA A100-SXM4-80GB"), Some((108, Generation::Cuda(8, 0))));
        // If several computers share the name, the smallest number is used.
        assert_eq!(of("Orin"), Some((8, Generation::Cuda(8, 7))));
        assert_eq!(of("AMD Radeon RX 7900 XTX (RADV NAVI31)"), Some((96, Generation::Amd("RDNA 3"))));
        assert_eq!(of("Apple M2 Ultra"), None);
        let mut slice = Gpu::new("NVIDIA A100-SXM4-80GB");
        slice.mig = Some(crate::machine::MigSlice::new("NVIDIA A100-SXM4-80GB MIG 1g.10gb"));
        assert_eq!(multiprocessors(&slice), None);
    }

    #[test]
    fn a_card_with_two_sizes_needs_its_size_in_the_name() {
        for name in ["RTX 3060", "RTX 3060 24GB"] {
            let error = named(name).unwrap_err();
            assert!(matches!(error, CatalogueError::Sizes { .. }));
            let expected = format!("`{name}` could mean RTX 3060 8GB, RTX 3060 12GB");
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(named("RTX 3060 12GB").unwrap().total, gib(12));
        assert!(named("RTX 4090 48GB").is_err());
    }

    #[test]
    fn an_unknown_name_is_answered_with_similar_names() {
        let near = |text| match named(text).unwrap_err() {
            CatalogueError::Unknown { near, .. } => near,
            other => panic!("{other}"),
        };
        assert_eq!(near("4090")[0], "RTX 4090");
        assert_eq!(near("RTX 4095"), [""; 0]);
        assert!(near("RTX 4090Ti").contains(&"RTX 4090".to_owned()));
        assert!(near("7900").contains(&"Radeon RX 7900 XTX".to_owned()));
        assert!(near("a100").contains(&"A100-SXM4".to_owned()));
        assert!(near("RTX PRO 6000").len() >= 2);
        let none = named("toaster").unwrap_err().to_string();
        assert_eq!(none, "`toaster` is not in the catalogue of GPUs");
        assert!(named("").is_err() && named("24GB").is_err());
    }

    #[test]
    fn words_find_a_card_only_if_no_other_card_has_them() {
        for (words, name) in [
            ("R9700", "Radeon AI PRO R9700"),
            ("P6000", "Quadro P6000"),
            ("4090 laptop", "RTX 4090 Laptop GPU"),
            ("6000 Ada", "RTX 6000 Ada Generation"),
            ("MI355X", "Instinct MI355X"),
            ("B70", "Arc Pro B70"),
            ("Spark", "DGX Spark"),
            ("Jetson AGX Thor", "Jetson AGX Thor"),
        ] {
            assert_eq!(named(words).unwrap().name, name, "{words}");
        }
        // Each of these is only a part of a word, or a word that occurs in the names of several cards.
        for words in ["R970", "9700", "4090", "PRO 6000", "Ti", "A100", "Jetson"] {
            assert!(matches!(named(words), Err(CatalogueError::Unknown { .. })), "{words}");
        }
        let sizes = named("PRO 5000").unwrap_err().to_string();
        assert!(sizes.contains("48GB") && sizes.contains("72GB"), "{sizes}");
    }

    #[test]
    fn memory_kept_by_error_correction_driver_or_host_is_not_free() {
        for (name, total, free) in [
            ("T4", mib(15_360), mib(14_880)),
            ("RTX 4090", gib(24), gib(24) - mib(768)),
            // Metal's recommended working set.
            ("M2 16GB", gib(16) / 3 * 2, gib(16) / 3 * 2),
            ("M1 Max 64GB", mib(49_152), mib(49_152)),
            ("Apple M3 Pro 36GB", mib(27_648), mib(27_648)),
            ("Radeon 8060S 96GB", gib(96), gib(96)),
        ] {
            let gpu = named(name).unwrap();
            assert_eq!((gpu.total, gpu.free), (total, free), "{name}");
        }
        for name in ["Radeon 8060S", "Radeon 8060S 0GB"] {
            let error = named(name).unwrap_err().to_string();
            assert!(error.ends_with(&format!("state how much the GPU has, as in `{name} 64GB`")), "{error}");
        }
    }
}
