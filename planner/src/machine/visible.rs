//! `CUDA_VISIBLE_DEVICES`: the cards that CUDA will not list, though NVIDIA's driver does.

use super::mig::MigSlice;
use super::note::Notes;
use super::nvidia::NvidiaGpu;

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
        let Some(list) = self.devices.as_deref() else {
            return;
        };
        if cards.is_empty() {
            return;
        }
        let by_number = self.pci_order || cards.windows(2).all(|pair| pair[0].name == pair[1].name);
        let mut shown = vec![false; cards.len()];
        for entry in list.split(',').map(str::trim) {
            let is_named = |card: &NvidiaGpu| {
                card.uuid
                    .as_deref()
                    .is_some_and(|uuid| uuid.starts_with(entry))
            };
            let place = match entry.parse::<usize>() {
                Ok(_) if !by_number => {
                    notes.add(VARIABLE, format!("is {list}: which of these different cards that means is CUDA's choice, all are listed"));
                    return;
                }
                Ok(number) => Some(number),
                Err(_) if entry.starts_with("GPU-") => cards.iter().position(is_named),
                // Of slices CUDA takes the first, and nothing else.
                Err(_) if entry.starts_with("MIG-") => {
                    let Some(place) = take_slice(cards, entry) else {
                        notes.add(
                            VARIABLE,
                            format!(
                                "is {list}: which card that MIG slice is on is not known, all are listed"
                            ),
                        );
                        return;
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

/// Puts the slice of this identity before the others of its card, and says which card that is.
fn take_slice(cards: &mut [NvidiaGpu], uuid: &str) -> Option<usize> {
    let found = |slices: &Vec<MigSlice>| {
        slices.iter().position(|slice| {
            let known = slice.uuid.as_deref();
            known.is_some_and(|known| known.starts_with(uuid))
        })
    };
    cards.iter_mut().position(|card| {
        let Some(slices) = &mut card.mig else {
            return false;
        };
        let place = found(slices);
        if let Some(taken) = place.map(|place| slices.remove(place)) {
            slices.insert(0, taken);
        }
        place.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::{CudaVisibility, NvidiaGpu};
    use crate::machine::note::Notes;

    /// The places of the cards shown, and whether a note was taken.
    fn shown(list: Option<&str>, pci_order: bool, names: &[&str]) -> (Vec<usize>, bool) {
        let card = |(place, name): (usize, &&str)| {
            let mut card = NvidiaGpu::new(u32::try_from(place).unwrap(), *name);
            card.uuid = Some(format!("GPU-{place}abc-def"));
            card
        };
        let mut cards: Vec<NvidiaGpu> = names.iter().enumerate().map(card).collect();
        let mut notes = Notes::default();
        CudaVisibility {
            devices: list.map(str::to_owned),
            pci_order,
        }
        .apply(&mut cards, &mut notes);
        let places = (0..cards.len())
            .filter(|&place| !cards[place].hidden)
            .collect();
        (places, !notes.into_vec().is_empty())
    }

    #[test]
    fn unset_shows_every_card_and_empty_shows_none() {
        assert_eq!(shown(None, false, &["a", "b"]), (vec![0, 1], false));
        assert_eq!(shown(Some(""), false, &["a", "a"]), (vec![], false));
        assert_eq!(shown(Some("-1"), false, &["a", "a"]), (vec![], false));
    }

    #[test]
    fn numbers_mean_cards_where_the_order_is_known() {
        assert_eq!(shown(Some("1"), false, &["a", "a"]), (vec![1], false));
        assert_eq!(
            shown(Some("1,0"), true, &["a", "b", "c"]),
            (vec![0, 1], false)
        );
    }

    #[test]
    fn numbers_among_different_cards_hide_nothing_and_say_so() {
        assert_eq!(shown(Some("1"), false, &["a", "b"]), (vec![0, 1], true));
    }

    #[test]
    fn a_uuid_may_be_abbreviated() {
        assert_eq!(shown(Some("GPU-1a"), false, &["a", "b"]), (vec![1], false));
    }

    #[test]
    fn the_list_ends_at_its_first_wrong_entry() {
        assert_eq!(shown(Some("0,7,1"), true, &["a", "b"]), (vec![0], false));
        assert_eq!(shown(Some("0,x,1"), true, &["a", "b"]), (vec![0], false));
    }

    #[test]
    fn a_mig_slice_of_no_known_card_hides_nothing_and_says_so() {
        assert_eq!(shown(Some("MIG-1"), false, &["a", "b"]), (vec![0, 1], true));
    }
}
