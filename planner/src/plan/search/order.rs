//! In which orders GPUs may share the layers: llama.cpp gives each of them a run of layers, the first GPU the lowest.

use crate::machine::{Gpu, GpuKind};
use crate::plan::speed::Rate;

/// Every order of up to this many GPUs is tried.
const ALL_ORDERS: usize = 4;

/// The most GPUs that llama.cpp schedules beside the CPU (ggml-backend.cpp, `GGML_SCHED_MAX_BACKENDS`).
pub(in crate::plan) const MOST_GPUS: usize = 15;

/// GPUs in the order in which they take layers, as indices.
pub(super) type Order = Vec<usize>;

/// Every order of every set of GPUs that may work together. Of GPUs that are equal in all that counts only the
/// first ones are taken.
///
/// More than four GPUs have too many orders: of those the fastest one, the two fastest, ... are taken, as they come in
/// the machine, from the fastest to the slowest, and the other way round.
///
/// A GPU in the host's memory reads no faster than the host. It never stands in for a card, and llama.cpp leaves it out
/// beside one too (llama.cpp, `llama_prepare_model_devices`); where `exactly` so many layers are asked for, it may be
/// what holds them. It works alone.
pub(super) fn orders(gpus: &[&Gpu], rates: &[Rate], exactly: bool) -> Vec<Order> {
    let (own, shared): (Vec<usize>, Vec<usize>) =
        (0..gpus.len()).partition(|&gpu| gpus[gpu].kind != GpuKind::Integrated);
    let has_card = gpus.iter().any(|gpu| gpu.kind == GpuKind::Discrete);
    let shared = shared.into_iter().filter(|_| exactly || !has_card);
    let mut all: Vec<Order> = shared.map(|gpu| vec![gpu]).collect();
    if own.len() <= ALL_ORDERS {
        // All that a plan depends on: of equals one may stand for the other in every plan.
        let nameless = |gpu: &&Gpu| {
            let Gpu { name, description, device, pci_id, processes, nvml, .. } = Gpu::default();
            Gpu { name, description, device, pci_id, processes, nvml, ..Gpu::clone(gpu) }
        };
        let nameless: Vec<Gpu> = gpus.iter().map(nameless).collect();
        let equal = |a: usize, b: usize| nameless[a] == nameless[b];
        extend(&mut all, &mut Vec::new(), &own, &equal);
    } else {
        let mut fastest = own;
        fastest.sort_by(|&a, &b| {
            let rate = |gpu: usize| rates[gpu].bytes_per_second;
            rate(b).total_cmp(&rate(a)).then(gpus[b].free.cmp(&gpus[a].free))
        });
        for n in 1..=fastest.len().min(MOST_GPUS) {
            let fastest = &fastest[..n];
            let mut in_place = fastest.to_vec();
            in_place.sort_unstable();
            all.extend([in_place, fastest.to_vec(), fastest.iter().rev().copied().collect()]);
        }
    }
    all.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    all.dedup();
    all
}

/// Every order that begins with `begun`.
fn extend(all: &mut Vec<Order>, begun: &mut Order, gpus: &[usize], equal: &impl Fn(usize, usize) -> bool) {
    for &gpu in gpus {
        let unused = |other: &usize| !begun.contains(other);
        let twin = gpus.iter().filter(|other| unused(other)).any(|&other| other < gpu && equal(other, gpu));
        if !unused(&gpu) || twin {
            continue;
        }
        begun.push(gpu);
        all.push(begun.clone());
        extend(all, begun, gpus, equal);
        begun.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::orders;
    use crate::machine::{Gpu, GpuKind, gib};
    use crate::plan::speed::Rate;

    fn of(gpus: &[Gpu]) -> Vec<Vec<usize>> {
        let gpus: Vec<&Gpu> = gpus.iter().collect();
        let rates: Vec<Rate> = (0..gpus.len()).map(|n| Rate::new(n as f64)).collect();
        orders(&gpus, &rates, false)
    }

    #[test]
    fn unequal_gpus_come_in_every_order_and_equal_ones_in_one() {
        let card = |free| Gpu::new("card").total(gib(24)).free(gib(free));
        assert_eq!(of(&[card(8), card(9)]), [vec![0], vec![1], vec![0, 1], vec![1, 0]]);
        assert_eq!(of(&[card(8), card(8)]), [vec![0], vec![0, 1]]);
        // 4 + 12 + 24 + 24 of four unequal ones.
        assert_eq!(of(&[card(5), card(6), card(7), card(8)]).len(), 64);
        assert_eq!(of(&[card(5), card(5), card(5), card(5)]).len(), 4);
    }

    #[test]
    fn one_that_shares_the_hosts_memory_works_alone_and_not_in_place_of_a_card() {
        let shared = Gpu::new("shared").kind(GpuKind::Integrated).total(gib(8));
        assert_eq!(of(&[shared.clone(), Gpu::new("card").total(gib(8))]), [vec![1]]);
        assert_eq!(of(&[shared]), [vec![0]]);
    }

    #[test]
    fn of_many_the_fastest_are_taken() {
        let cards: Vec<Gpu> = (1..=15).map(|n| Gpu::new("card").total(gib(24)).free(gib(n))).collect();
        let all = of(&cards);
        assert!(all.len() <= 45, "{}", all.len());
        assert!(all.contains(&(0..15).collect()) && all.contains(&vec![14]));
    }
}
