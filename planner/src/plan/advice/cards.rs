//! Advice on hardware: the cheapest catalogue card that can hold the whole model, and a second card of the same kind as
//! an existing card.
//!
//! No prices are known here, so a card with less memory counts as cheaper. Of cards with equal memory, the card with
//! the lower bandwidth counts as cheaper, unless it is slower than the replaced card.

use crate::machine::{Gpu, GpuKind, every_card};
use crate::plan::Planner;
use crate::plan::search::MAX_GPUS;

use super::trials::Trials;
use super::{Change, ChangeKind, Effect};

/// Prefixes of the names that drivers give to consumer cards. All other cards are for workstations and data centres.
const CONSUMERS: [&str; 5] = ["NVIDIA GeForce ", "AMD Radeon RX ", "AMD Radeon VII", "Intel Arc A", "Intel Arc B"];

/// Words in the names that drivers give to cards for a desktop or workstation. All other cards (A40, H100, Instinct)
/// have no fan or are built into a server's board.
const FOR_A_DESK: [&str; 6] = ["GeForce", "RTX", "Quadro", "TITAN", "Radeon", "Arc"];

/// Words in names of chips that are soldered into a computer or made for a server.
const SOLDERED: [&str; 5] = ["Laptop", "Max-Q Design", "Mobile", "Notebook", "Server"];

/// Tokens per second that are enough for a person who reads along. A first card is advised only for a computer that
/// generates more slowly.
const READING_SPEED: f64 = 20.0;

/// Advice to replace the smallest GPU, and advice to add a second card like the largest GPU.
pub(super) fn other_cards(trials: &Trials<'_>) -> Vec<Change> {
    [another(trials), second(trials)].into_iter().flatten().collect()
}

/// For a machine without a GPU whose host generates fewer tokens per second than [`READING_SPEED`]: the cheapest
/// consumer card that can hold the whole model.
pub(super) fn first_card(trials: &Trials<'_>) -> Option<Change> {
    let is_slow = |tokens_per_second: f64| tokens_per_second < READING_SPEED;
    let host_is_enough =
        trials.before.is_some_and(|plan| plan.speed.as_ref().is_none_or(|speed| !is_slow(speed.tokens_per_second)));
    let wants_none = trials.planner.request.gpu_layers.is_exact();
    if !trials.planner.machine.gpus.is_empty() || host_is_enough || wants_none {
        return None;
    }
    let effect = if trials.before.is_some() { Effect::Faster } else { Effect::Fits };
    let mut cards: Vec<_> = every_card().filter(|(_, card)| is_for_consumers(card) && can_be_bought(card)).collect();
    by_price(&mut cards, 0);
    let change = cheapest(trials, cards, |name| ChangeKind::FirstCard { name })?;
    Some(Change { effect, ..change })
}

/// The cheapest larger card that can replace the smallest GPU so that the whole model fits. A consumer card is replaced
/// by a consumer card if possible, and any other card by another such card.
fn another(trials: &Trials<'_>) -> Option<Change> {
    let gpus = trials.planner.machine.gpus.iter().enumerate();
    let (index, gpu) = gpus.filter(|(_, gpu)| can_be_bought(gpu)).min_by_key(|(_, gpu)| gpu.total)?;
    let (mine, others): (Vec<_>, Vec<_>) =
        larger(gpu).into_iter().partition(|(_, card)| is_for_consumers(card) == is_for_consumers(gpu));
    [mine, others].into_iter().find_map(|mut cards| {
        by_price(&mut cards, peak(gpu));
        let kind = |name| ChangeKind::AnotherCard { name, gpu: index, gpu_name: gpu.name.clone() };
        cheapest(trials, cards, kind)
    })
}

/// A second card like the largest GPU.
fn second(trials: &Trials<'_>) -> Option<Change> {
    let gpus = &trials.planner.machine.gpus;
    if gpus.len() >= MAX_GPUS {
        return None;
    }
    // The order is reversed because `max_by_key` returns the last of equal cards, and the first of them is wanted.
    let all = gpus.iter().enumerate().rev();
    let (index, gpu) = all.filter(|(_, gpu)| can_be_bought(gpu)).max_by_key(|(_, gpu)| gpu.total)?;
    trials.worthwhile(&[ChangeKind::SecondCard { gpu: index, gpu_name: gpu.name.clone() }])
}

/// The first of these cards with which all layers are on GPUs.
fn cheapest(trials: &Trials<'_>, cards: Vec<(String, Gpu)>, kind: impl Fn(String) -> ChangeKind) -> Option<Change> {
    cards.into_iter().find_map(|(name, _)| {
        let kinds = [kind(name)];
        // Most cards are too small even for the weights. Checking the weights takes less time than making a plan.
        if !kinds.iter().fold(trials.planner.clone(), Planner::with).has_room_for_weights() {
            return None;
        }
        let change = trials.attempt(&kinds).filter(|change| change.outcome.full)?;
        Some(Change { effect: Effect::Fits, ..change })
    })
}

/// Whether this is a card that people install in their own computer.
fn can_be_bought(gpu: &Gpu) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| gpu.description.contains(part));
    let is_card = gpu.kind == GpuKind::Discrete && gpu.total > 0 && gpu.backend != "MTL";
    is_card && has(&FOR_A_DESK) && !has(&SOLDERED)
}

fn is_for_consumers(gpu: &Gpu) -> bool {
    CONSUMERS.iter().any(|begin| gpu.description.starts_with(begin))
}

fn peak(gpu: &Gpu) -> u64 {
    gpu.bandwidth.map_or(0, |peak| peak.bytes_per_second)
}

/// Sorts by bytes, then by bandwidth. Among cards of equal size, the cards that are slower than `least` come last.
fn by_price(cards: &mut [(String, Gpu)], least: u64) {
    cards.sort_by_key(|(_, card)| (card.total, peak(card) < least, peak(card)));
}

/// The larger cards that the same backend drives. For CUDA these are NVIDIA's cards. Vulkan drives the cards of every
/// maker, but only cards of the same maker are returned.
fn larger(gpu: &Gpu) -> Vec<(String, Gpu)> {
    let maker = match gpu.backend.as_str() {
        "CUDA" => "NVIDIA ",
        "ROCm" => "AMD ",
        "SYCL" => "Intel ",
        _ => ["NVIDIA ", "AMD ", "Intel "]
            .into_iter()
            // Vulkan reports `Intel(R) Arc(tm)`.
            .find(|maker| gpu.description.starts_with(maker.trim_end()))
            .unwrap_or("no maker"),
    };
    every_card()
        .filter(|(_, card)| card.total > gpu.total && can_be_bought(card))
        .filter(|(_, card)| card.description.starts_with(maker))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{by_price, can_be_bought, larger, peak};
    use crate::machine::{Gpu, GpuKind};

    fn named(name: &str) -> Gpu {
        Gpu::named(name).unwrap()
    }

    #[test]
    fn soldered_and_remote_gpus_are_not_cards_to_buy() {
        assert!(can_be_bought(&named("RTX PRO 6000 Blackwell Max-Q Workstation Edition")));
        for gpu in [
            named("RTX 4090 Laptop GPU"),
            named("Apple M2 16GB"),
            named("A100-SXM4 80GB"),
            named("A40"),
            named("RTX PRO 6000 Blackwell Server Edition"),
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
            let of = |(_, card): &(String, Gpu)| card.description.starts_with(maker) && card.total > gpu.total;
            !cards.is_empty() && cards.iter().all(of)
        };
        assert!(all_of(&named("RTX 4090"), "NVIDIA "));
        assert!(all_of(&named("RX 7600"), "AMD "));
        assert!(all_of(&named("RX 7600").backend("Vulkan"), "AMD "));
        assert!(all_of(&named("Arc A380"), "Intel "));
        let unknown = Gpu::new("llvmpipe").total(1 << 33).backend("Vulkan");
        assert!(larger(&unknown).is_empty());
    }

    #[test]
    fn the_slowest_card_that_is_not_slower_comes_first_of_those_large_enough() {
        let card = named("RTX 3060 12GB");
        let mut cards = larger(&card);
        by_price(&mut cards, peak(&card));
        for pair in cards.windows(2) {
            let ((_, one), (_, next)) = (&pair[0], &pair[1]);
            let is_slower = |gpu: &Gpu| peak(gpu) < peak(&card);
            assert!(one.total <= next.total);
            assert!(one.total < next.total || is_slower(one) <= is_slower(next));
        }
    }
}
