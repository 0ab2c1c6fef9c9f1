//! Other hardware: a larger card in place of one, or a second one like it.

use std::collections::BTreeMap;

use crate::machine::{Gpu, GpuKind, every_card};
use crate::plan::search::MOST_GPUS;

use super::trials::Trials;
use super::{Change, ChangeKind};

/// What people buy for a desktop begins with this in its driver's name; the rest is for workstations and data centres.
const CONSUMERS: [&str; 5] = ["NVIDIA GeForce ", "AMD Radeon RX ", "AMD Radeon VII", "Intel Arc A", "Intel Arc B"];

/// What a chip has in its name that is soldered into a computer.
const SOLDERED: [&str; 4] = ["Laptop", "Max-Q Design", "Mobile", "Notebook"];

pub(super) fn changes(trials: &Trials<'_>) -> Vec<Change> {
    [another(trials), second(trials)].into_iter().flatten().collect()
}

/// The smallest larger card with which everything fits, in place of the smallest there is.
fn another(trials: &Trials<'_>) -> Option<Change> {
    let gpus = trials.planner.machine.gpus.iter().enumerate();
    let (index, gpu) = gpus.filter(|(_, gpu)| can_be_bought(gpu)).min_by_key(|(_, gpu)| gpu.total)?;
    let (mine, others): (Vec<_>, Vec<_>) =
        larger(gpu).into_iter().partition(|(_, card)| is_for_consumers(card) == is_for_consumers(gpu));
    [mine, others].into_iter().find_map(|cards| {
        let cards = one_per_size(cards, gpu).into_iter();
        let change = |(name, _)| vec![ChangeKind::AnotherCard { name, gpu: index, gpu_name: gpu.name.clone() }];
        trials.first_that_fits(&cards.map(change).collect::<Vec<_>>())
    })
}

/// One more of the largest card there is.
fn second(trials: &Trials<'_>) -> Option<Change> {
    let gpus = &trials.planner.machine.gpus;
    if gpus.len() >= MOST_GPUS {
        return None;
    }
    // Of equals the first.
    let all = gpus.iter().enumerate().rev();
    let (index, gpu) = all.filter(|(_, gpu)| can_be_bought(gpu)).max_by_key(|(_, gpu)| gpu.total)?;
    trials.worthwhile(&[ChangeKind::SecondCard { gpu: index, gpu_name: gpu.name.clone() }])
}

/// Whether it is a card in a slot of this computer.
fn can_be_bought(gpu: &Gpu) -> bool {
    let soldered = |part: &&str| gpu.description.contains(*part);
    gpu.kind == GpuKind::Discrete && gpu.total > 0 && gpu.backend != "MTL" && !SOLDERED.iter().any(soldered)
}

fn is_for_consumers(gpu: &Gpu) -> bool {
    let description = gpu.description.as_str();
    CONSUMERS.iter().any(|begin| description.starts_with(begin))
}

/// The larger cards that the same backend drives: of CUDA, NVIDIA's; of Vulkan, which drives all, those
/// of the same maker.
fn larger(gpu: &Gpu) -> Vec<(String, Gpu)> {
    let maker = match gpu.backend.as_str() {
        "CUDA" => "NVIDIA ",
        "ROCm" => "AMD ",
        "SYCL" => "Intel ",
        _ => ["NVIDIA ", "AMD ", "Intel "]
            .into_iter()
            // `Intel(R) Arc(tm)`.
            .find(|maker| gpu.description.starts_with(maker.trim_end()))
            .unwrap_or("no maker"),
    };
    every_card()
        .filter(|(_, card)| card.total > gpu.total && can_be_bought(card))
        .filter(|(_, card)| card.description.starts_with(maker))
        .collect()
}

/// Of each size the slowest that is no slower than the present card, else the fastest: no prices are known, and
/// speed is what costs.
fn one_per_size(cards: Vec<(String, Gpu)>, present: &Gpu) -> Vec<(String, Gpu)> {
    let speed = |gpu: &Gpu| gpu.bandwidth.map_or(0, |peak| peak.bytes_per_second);
    let least = speed(present);
    let mut by_size: BTreeMap<u64, (String, Gpu)> = BTreeMap::new();
    for (name, card) in cards {
        let key = |gpu: &Gpu| {
            let speed = speed(gpu);
            let slower = speed < least;
            (slower, if slower { u64::MAX - speed } else { speed })
        };
        let known = by_size.get(&card.total);
        if known.is_none_or(|(_, known)| key(&card) < key(known)) {
            by_size.insert(card.total, (name, card));
        }
    }
    by_size.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::{can_be_bought, larger};
    use crate::machine::{Gpu, GpuKind};

    fn named(name: &str) -> Gpu {
        Gpu::named(name).unwrap()
    }

    #[test]
    fn what_is_soldered_or_far_away_is_no_card_to_buy() {
        let desktop = "RTX PRO 6000 Blackwell Max-Q Workstation Edition";
        assert!(can_be_bought(&named(desktop)));
        for gpu in [
            named("RTX 4090 Laptop GPU"),
            named("Apple M2 16GB"),
            named("RTX 4090").kind(GpuKind::Remote),
            Gpu::new("NVIDIA GeForce RTX 2070 with Max-Q Design").total(1 << 33),
        ] {
            assert!(!can_be_bought(&gpu), "{}", gpu.name);
        }
    }

    #[test]
    fn larger_cards_are_of_the_same_maker() {
        let all_of = |gpu: &Gpu, maker| {
            let cards = larger(gpu);
            let of = |(_, card): &(String, Gpu)| card.description.starts_with(maker);
            !cards.is_empty() && cards.iter().all(of)
        };
        assert!(all_of(&named("RTX 4090"), "NVIDIA "));
        assert!(all_of(&named("RX 7600"), "AMD "));
        assert!(all_of(&named("RX 7600").backend("Vulkan"), "AMD "));
        assert!(all_of(&named("Arc A380"), "Intel "));
        let unknown = Gpu::new("llvmpipe").total(1 << 33).backend("Vulkan");
        assert!(larger(&unknown).is_empty());
    }
}
