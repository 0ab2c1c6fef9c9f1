//! Adds a card's slot to ggml's registry, and removes it again.

use std::sync::Arc;

use super::card::Card;
use super::slot::{self, Interfaces, MAX_CARDS, Slot};
use super::{backend, buffer_type, device};
use crate::safe::call::Error;
use crate::safe::device::{Backend, registry};

/// All slots, which the first call makes.
pub(super) fn slots() -> &'static [Slot] {
    slot::make(&Interfaces {
        reg: device::REG,
        device: device::DEVICE,
        buft: buffer_type::DEVICE,
        host_buft: buffer_type::HOST,
        mapped_buft: buffer_type::MAPPED,
    })
}

/// Puts `card` into a free slot, and adds the slot to ggml's registry.
pub(super) fn register(card: &Arc<Card>) -> Result<&'static Slot, Error> {
    Backend::init()?;
    let mut changing = registry::changing()?;
    if backend::cpu_device().is_null() {
        return Err(Error::parameter(
            "device",
            "CPU",
            "simulated GPUs compute with the CPU's backend, which is not loaded",
        ));
    }
    let free = slots().iter().find(|slot| !changing.lists(slot.reg) && slot.occupy(card));
    let Some(slot) = free else {
        return Err(Error::parameter(
            "simulated GPUs",
            MAX_CARDS + 1,
            format!(
                "at most {MAX_CARDS} can be registered at once; a card makes room when its SimGpu and the models and contexts on \
                 it are dropped"
            ),
        ));
    };
    // SAFETY: the entry lives until the process ends, and is not listed. The callbacks that run meanwhile do not lock
    // the registry (device.rs).
    unsafe { changing.add(slot.reg) };
    Ok(slot)
}

/// Removes a slot from ggml's registry. If `Reading`s exist, the slot is removed later, when the last of them is
/// dropped. This call never waits.
pub(super) fn unregister(slot: &'static Slot) {
    registry::remove(slot.reg);
}

#[cfg(test)]
mod tests {
    use crate::sim::SimGpu;

    use super::registry::{is_leaving, is_listed, reading};

    #[test]
    fn a_card_dropped_while_somebody_reads_leaves_when_the_last_one_is_done() {
        let gpu = SimGpu::builder("SIM reader").register().unwrap();
        let entry = gpu.slot.reg;
        assert!(is_listed(entry));
        let (first, second) = (reading(), reading());
        drop(gpu);
        assert!(is_listed(entry));
        drop(first);
        assert!(is_listed(entry));
        drop(second);
        // Another test may have taken the slot meanwhile, so the entry may be listed again. But it does not wait to be
        // removed.
        assert!(!is_leaving(entry));
    }

    #[test]
    fn a_thread_that_reads_cannot_register_and_others_wait_for_it() {
        let here = reading();
        assert!(SimGpu::builder("SIM here").register().is_err());
        let elsewhere = std::thread::spawn(|| SimGpu::builder("SIM elsewhere").register().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!elsewhere.is_finished());
        drop(here);
        assert!(is_listed(elsewhere.join().unwrap().slot.reg));
    }
}
