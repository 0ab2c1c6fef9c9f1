//! `CUDA_VISIBLE_DEVICES`: the cards that CUDA will not list, though NVIDIA's driver does.

use super::cards::MigSlice;
use super::nvidia::NvidiaGpu;
use super::tree::Notes;

const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The two variables by which CUDA chooses its devices, as this process would find them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CudaVisibility {
    /// `CUDA_VISIBLE_DEVICES`; `None` when it is not set, which shows every card.
    pub(super) devices: Option<String>,
    /// Whether `CUDA_DEVICE_ORDER=PCI_BUS_ID`, which makes CUDA's numbers NVML's.
    pub(super) pci_order: bool,
}

impl CudaVisibility {
    pub(super) fn from_environment() -> Self {
        Self {
            devices: std::env::var(VARIABLE).ok(),
            pci_order: std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID"),
        }
    }

    /// Marks the cards that CUDA will not list. The list ends at its first entry that names no card (CUDA C++
    /// Programming Guide, environment variables).
    ///
    /// Without `PCI_BUS_ID` order CUDA counts the fastest card first. Which card a number means is then known only
    /// among equal cards; otherwise nothing is hidden and a note says so.
    pub(super) fn apply(&self, cards: &mut [NvidiaGpu], notes: &mut Notes) {
        let Some(list) = self.devices.as_deref().filter(|_| !cards.is_empty()) else {
            return;
        };
        let by_number =
            self.pci_order || cards.windows(2).all(|pair| pair[0].gpu.description == pair[1].gpu.description);
        let mut shown = vec![false; cards.len()];
        let mut all_shown = |why: &str| notes.add(VARIABLE, format!("is {list}: {why}, all are listed"));
        for entry in list.split(',').map(str::trim) {
            let begins = |uuid: &Option<String>| uuid.as_ref().is_some_and(|uuid| uuid.starts_with(entry));
            let place = match entry.parse::<usize>() {
                Ok(_) if !by_number => {
                    return all_shown("which of these different cards that means is CUDA's choice");
                }
                Ok(number) => Some(number),
                Err(_) if entry.starts_with("GPU-") => cards.iter().position(|card| begins(&card.uuid)),
                // Of slices CUDA takes the first, and nothing else.
                Err(_) if entry.starts_with("MIG-") => {
                    let is_it = |slice: &MigSlice| begins(&slice.uuid);
                    let Some(place) = take_slice(cards, is_it) else {
                        return all_shown("which card that MIG slice is on is not known");
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
    }
}

/// Puts this slice before the others of its card, and says which card that is.
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
    use crate::machine::tree::Notes;

    /// The places of the cards shown, and whether a note was taken.
    fn shown(list: Option<&str>, pci_order: bool, names: &str) -> (Vec<usize>, bool) {
        let card = |(place, name): (usize, &str)| {
            let uuid = Some(format!("GPU-{place}abc-def"));
            NvidiaGpu { gpu: Gpu::new(name), uuid, ..NvidiaGpu::default() }
        };
        let mut cards: Vec<NvidiaGpu> = names.split(' ').enumerate().map(card).collect();
        let mut notes = Notes::default();
        let devices = list.map(str::to_owned);
        CudaVisibility { devices, pci_order }.apply(&mut cards, &mut notes);
        let places = (0..cards.len()).filter(|&place| !cards[place].hidden);
        (places.collect(), !notes.into_vec().is_empty())
    }

    #[test]
    fn the_list_hides_what_cuda_would_not_list_and_nothing_where_that_is_not_known() {
        for (list, pci_order, names, expected) in [
            (None, false, "a b", (vec![0, 1], false)),
            (Some(""), false, "a a", (vec![], false)),
            (Some("-1"), false, "a a", (vec![], false)),
            // Numbers mean cards where the order is known.
            (Some("1"), false, "a a", (vec![1], false)),
            (Some("1,0"), true, "a b c", (vec![0, 1], false)),
            (Some("1"), false, "a b", (vec![0, 1], true)),
            // A UUID may be abbreviated.
            (Some("GPU-1a"), false, "a b", (vec![1], false)),
            // The list ends at its first wrong entry.
            (Some("0,7,1"), true, "a b", (vec![0], false)),
            (Some("0,x,1"), true, "a b", (vec![0], false)),
            // A MIG slice of no known card.
            (Some("MIG-1"), false, "a b", (vec![0, 1], true)),
        ] {
            assert_eq!(shown(list, pci_order, names), expected, "{list:?} of {names}");
        }
    }
}
