//! The orders in which GPUs may share the layers. llama.cpp gives each GPU a run of layers, and the first GPU gets the
//! lowest run.

use crate::machine::{Gpu, GpuKind};
use crate::plan::speed::Rate;

/// Maximum number of GPUs for which the search tries every order.
const MAX_GPUS_IN_ALL_ORDERS: usize = 4;

/// Maximum number of GPUs that llama.cpp schedules in addition to the CPU (ggml-backend.cpp,
/// `GGML_SCHED_MAX_BACKENDS`).
pub(in crate::plan) const MAX_GPUS: usize = 15;

/// Indices of GPUs, in the order in which they take layers.
pub(super) type Order = Vec<usize>;

/// Every order of every subset of GPUs that may work together. If an order uses some of several identical GPUs, it uses
/// the first of them.
///
/// With more than four GPUs there are too many orders. The search then tries the fastest GPU, the two fastest, and so
/// on. It tries each of these sets in three orders: the machine's order, from the fastest to the slowest, and from the
/// slowest to the fastest.
///
/// An integrated GPU reads no faster than the host and always works alone. It is left out if there is a discrete card,
/// as in llama.cpp (llama.cpp, `llama_prepare_model_devices`), unless the request is for `exactly` a number of layers.
pub(super) fn orders(gpus: &[&Gpu], rates: &[Rate], exactly: bool) -> Vec<Order> {
    let (own, shared): (Vec<usize>, Vec<usize>) =
        (0..gpus.len()).partition(|&gpu| gpus[gpu].kind != GpuKind::Integrated);
    let has_card = gpus.iter().any(|gpu| gpu.kind == GpuKind::Discrete);
    let shared = shared.into_iter().filter(|_| exactly || !has_card);
    let mut all: Vec<Order> = shared.map(|gpu| vec![gpu]).collect();
    if own.len() <= MAX_GPUS_IN_ALL_ORDERS {
        // A GPU without its names, so that only the fields on which a plan depends are compared.
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
        for n in 1..=fastest.len().min(MAX_GPUS) {
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

/// Adds every order that begins with `begun`.
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

    fn indices(gpus: &[Gpu]) -> Vec<Vec<usize>> {
        let gpus: Vec<&Gpu> = gpus.iter().collect();
        let rates: Vec<Rate> = (0..gpus.len()).map(|n| Rate::new(n as f64)).collect();
        orders(&gpus, &rates, false)
    }

    #[test]
    fn unequal_gpus_come_in_every_order_and_equal_gpus_in_one() {
        let card = |free| Gpu::new("card").total(gib(24)).free(gib(free));
        assert_eq!(indices(&[card(8), card(9)]), [vec![0], vec![1], vec![0, 1], vec![1, 0]]);
        assert_eq!(indices(&[card(8), card(8)]), [vec![0], vec![0, 1]]);
        // Four different GPUs have 4 + 12 + 24 + 24 orders.
        assert_eq!(indices(&[card(5), card(6), card(7), card(8)]).len(), 64);
        assert_eq!(indices(&[card(5), card(5), card(5), card(5)]).len(), 4);
    }

    #[test]
    fn an_integrated_gpu_works_alone_and_does_not_replace_a_card() {
        let shared = Gpu::new("shared").kind(GpuKind::Integrated).total(gib(8));
        assert_eq!(indices(&[shared.clone(), Gpu::new("card").total(gib(8))]), [vec![1]]);
        assert_eq!(indices(&[shared]), [vec![0]]);
    }

    #[test]
    fn the_fastest_of_many_gpus_are_taken() {
        let cards: Vec<Gpu> = (1..=15).map(|n| Gpu::new("card").total(gib(24)).free(gib(n))).collect();
        let all = indices(&cards);
        assert!(all.len() <= 45, "{}", all.len());
        assert!(all.contains(&(0..15).collect()) && all.contains(&vec![14]));
    }
}
