//! `CUDA_VISIBLE_DEVICES`: the cards that NVIDIA's driver reports but CUDA will not list.

use super::mig::MigSlice;
use super::nvidia::NvidiaGpu;
use super::tree::Note;

const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The two variables that select CUDA's devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CudaVisibility {
    /// `CUDA_VISIBLE_DEVICES`. `None` if it is not set; all cards are then visible.
    pub(super) devices: Option<String>,
    /// Whether `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`. If so, CUDA numbers the cards as NVML does.
    pub(super) pci_order: bool,
}

impl CudaVisibility {
    pub(super) fn from_environment() -> Self {
        Self {
            devices: std::env::var(VARIABLE).ok(),
            pci_order: std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID"),
        }
    }

    /// Marks the cards that CUDA will not list, and moves the MIG slice that CUDA will use to the front of its card's
    /// slices. CUDA ignores the list from the first entry on that names no card (CUDA C++ Programming Guide,
    /// environment variables).
    ///
    /// Without `PCI_BUS_ID` order, CUDA puts the fastest card first, so a number identifies a card only if all cards
    /// are equal. If an entry cannot be matched to a card, nothing is marked and a note is returned.
    pub(super) fn apply(&self, cards: &mut [NvidiaGpu]) -> Option<Note> {
        let list = self.devices.as_deref().filter(|_| !cards.is_empty())?;
        let unknown = |why: &str| Some(Note::new(VARIABLE, format!("is {list}: {why}, so all cards are listed")));
        let are_equal = cards.windows(2).all(|pair| pair[0].gpu.description == pair[1].gpu.description);
        let mut shown = vec![false; cards.len()];
        for entry in list.split(',').map(str::trim) {
            let begins = |uuid: &Option<String>| uuid.as_ref().is_some_and(|uuid| uuid.starts_with(entry));
            let place = match entry.parse::<usize>() {
                Ok(_) if !self.pci_order && !are_equal => {
                    let set =
                        "these cards differ, so without CUDA_DEVICE_ORDER=PCI_BUS_ID only CUDA knows which of them";
                    return unknown(&format!("{set} a number means"));
                }
                Ok(number) => Some(number),
                Err(_) if entry.starts_with("GPU-") => cards.iter().position(|card| begins(&card.uuid)),
                // CUDA takes the first listed slice, and no card in addition.
                Err(_) if entry.starts_with("MIG-") => {
                    let Some(place) = take_slice(cards, |slice| begins(&slice.uuid)) else {
                        return unknown("no card has a MIG slice of this name");
                    };
                    shown.fill(false);
                    shown[place] = true;
                    break;
                }
                Err(_) => None,
            };
            match place.and_then(|place| shown.get_mut(place)) {
                Some(shown) => *shown = true,
                None => break,
            }
        }
        for (card, shown) in cards.iter_mut().zip(shown) {
            card.hidden = !shown;
        }
        None
    }
}

/// Moves this slice to the front of its card's slices and returns the card's index.
fn take_slice(cards: &mut [NvidiaGpu], is_it: impl Fn(&MigSlice) -> bool) -> Option<usize> {
    cards.iter_mut().position(|card| {
        let slices = card.slices.as_deref_mut().unwrap_or_default();
        let place = slices.iter().position(&is_it);
        if let Some(place) = place {
            slices[..=place].rotate_right(1);
        }
        place.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::{CudaVisibility, NvidiaGpu};
    use crate::machine::Gpu;

    /// The indices of the visible cards, and whether a note reports that the list was not understood.
    fn shown(list: Option<&str>, pci_order: bool, names: &str) -> (Vec<usize>, bool) {
        let card = |(place, name): (usize, &str)| {
            let uuid = Some(format!("GPU-{place}abc-def"));
            NvidiaGpu { gpu: Gpu::new(name), uuid, ..NvidiaGpu::default() }
        };
        let mut cards: Vec<NvidiaGpu> = names.split(' ').enumerate().map(card).collect();
        let note = CudaVisibility { devices: list.map(str::to_owned), pci_order }.apply(&mut cards);
        ((0..cards.len()).filter(|&place| !cards[place].hidden).collect(), note.is_some())
    }

    #[test]
    fn the_list_hides_cards_that_cuda_would_not_list_or_none_if_that_is_unknown() {
        for (list, pci_order, names, expected) in [
            (None, false, "a b", (vec![0, 1], false)),
            (Some(""), false, "a a", (vec![], false)),
            (Some("-1"), false, "a a", (vec![], false)),
            // Numbers identify cards if the order is known.
            (Some("1"), false, "a a", (vec![1], false)),
            (Some("1,0"), true, "a b c", (vec![0, 1], false)),
            (Some("1"), false, "a b", (vec![0, 1], true)),
            // A UUID may be abbreviated.
            (Some("GPU-1a"), false, "a b", (vec![1], false)),
            (Some(" GPU-0abc-def , GPU-2"), false, "a b c", (vec![0, 2], false)),
            // CUDA ignores the list from the first wrong entry on.
            (Some("0,7,1"), true, "a b", (vec![0], false)),
            (Some("0,x,1"), true, "a b", (vec![0], false)),
            // A MIG slice that no known card has.
            (Some("MIG-1"), false, "a b", (vec![0, 1], true)),
        ] {
            assert_eq!(shown(list, pci_order, names), expected, "{list:?} of {names}");
        }
    }
}
