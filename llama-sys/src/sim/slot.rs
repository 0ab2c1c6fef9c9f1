//! The slots of simulated cards. ggml points to them, so they are never freed.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use super::card::Card;
use crate::raw;

/// Maximum number of simulated GPUs at once. A scheduler has at most 16 backends, and one of them is the CPU's
/// (ggml-backend.cpp, `GGML_SCHED_MAX_BACKENDS`). With more GPUs, a load that does not name its devices would end the
/// process.
pub const MAX_CARDS: usize = 15;

/// A place for a card: a registry entry with its one device and the device's buffer types. ggml cannot free any of
/// these while somebody may hold a pointer to them. So there are [`MAX_CARDS`] slots as long as the process lives, each
/// for one card after another.
pub(super) struct Slot {
    pub(super) name: CString,
    pub(super) host_name: CString,
    pub(super) mapped_name: CString,
    pub(super) reg: raw::ggml_backend_reg_t,
    pub(super) device: raw::ggml_backend_dev_t,
    pub(super) buft: raw::ggml_backend_buffer_type_t,
    pub(super) host_buft: raw::ggml_backend_buffer_type_t,
    pub(super) mapped_buft: raw::ggml_backend_buffer_type_t,
    card: RwLock<Option<Arc<Card>>>,
}

// SAFETY: the memory behind the raw structs lives until the process ends and is never written after `Slot::new`: ggml
// only reads vtables and contexts (ggml-backend-impl.h). All other fields are `Send` and `Sync`.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

/// The functions that ggml calls on a slot's entry, device and buffer types.
pub(super) struct Interfaces {
    pub(super) reg: raw::ggml_backend_reg_i,
    pub(super) device: raw::ggml_backend_device_i,
    pub(super) buft: raw::ggml_backend_buffer_type_i,
    pub(super) host_buft: raw::ggml_backend_buffer_type_i,
    pub(super) mapped_buft: raw::ggml_backend_buffer_type_i,
}

impl Slot {
    fn new(index: usize, interfaces: &Interfaces) -> Self {
        let context = index_to_context(index);
        let name = |suffix: &str| CString::new(format!("SIM{index}{suffix}")).expect("a name without NUL");
        let reg = leak(raw::ggml_backend_reg {
            api_version: raw::GGML_BACKEND_API_VERSION as i32,
            iface: interfaces.reg,
            context,
        });
        let device = leak(raw::ggml_backend_device { iface: interfaces.device, reg, context });
        let buft = |iface| leak(raw::ggml_backend_buffer_type { iface, device, context });
        Self {
            name: name(""),
            host_name: name("_Host"),
            mapped_name: name("_Mapped"),
            reg,
            device,
            buft: buft(interfaces.buft),
            host_buft: buft(interfaces.host_buft),
            mapped_buft: buft(interfaces.mapped_buft),
            card: RwLock::new(None),
        }
    }

    /// Puts `card` into this slot, unless somebody still uses the former card. The former card is no longer used if
    /// this slot has its only `Arc`. Buffers and streams get their `Arc` only through [`Slot::card`], which waits for
    /// this function.
    pub(super) fn occupy(&self, card: &Arc<Card>) -> bool {
        let mut place = self.card.write().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_some_and(|before| Arc::strong_count(before) > 1) {
            return false;
        }
        *place = Some(Arc::clone(card));
        true
    }

    /// The card in this slot, or the last card that was in it; `None` if there was none yet.
    pub(super) fn card(&self) -> Option<Arc<Card>> {
        self.card.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this is the buffer type of the card's memory, or of files that are mapped into it.
    pub(super) fn owns(&self, buft: raw::ggml_backend_buffer_type_t) -> bool {
        buft == self.buft || buft == self.mapped_buft
    }
}

static SLOTS: OnceLock<Vec<Slot>> = OnceLock::new();

/// Returns the slots. The first call creates them.
pub(super) fn make(interfaces: &Interfaces) -> &'static [Slot] {
    SLOTS.get_or_init(|| (0..MAX_CARDS).map(|index| Slot::new(index, interfaces)).collect())
}

/// All slots; empty before the first card is registered.
pub(super) fn all() -> &'static [Slot] {
    SLOTS.get().map_or(&[], Vec::as_slice)
}

/// The slot with this buffer type for its card's memory. `None` if the buffer type is not that of a simulated card.
pub(super) fn owner(buft: raw::ggml_backend_buffer_type_t) -> Option<&'static Slot> {
    all().iter().find(|slot| slot.owns(buft))
}

/// The slot that a context pointer stands for. Such a pointer is only a number, and nobody dereferences it. So it
/// cannot dangle.
pub(super) fn from_context(context: *mut c_void) -> &'static Slot {
    &all()[context.addr() - 1]
}

/// The slot of a device.
///
/// # Safety
///
/// `device` must belong to a [`Slot`].
pub(super) unsafe fn of_device(device: raw::ggml_backend_dev_t) -> &'static Slot {
    // SAFETY: ggml calls a device's functions with that device (ggml-backend.cpp, `ggml_backend_dev_*`); slots
    // are never freed.
    from_context(unsafe { (*device).context })
}

/// The slot of a buffer type.
///
/// # Safety
///
/// `buft` must belong to a [`Slot`].
pub(super) unsafe fn of_buffer_type(buft: raw::ggml_backend_buffer_type_t) -> &'static Slot {
    // SAFETY: ggml calls a buffer type's functions with that buffer type (ggml-backend.cpp, `ggml_backend_buft_*`);
    // slots are never freed.
    from_context(unsafe { (*buft).context })
}

fn index_to_context(index: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(index + 1)
}

/// A pointer to a value that lives until the process ends. It is mutable because ggml's types lack `const`, but ggml
/// only reads the value.
fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// A text that lives until the process ends. Equal texts are stored once. ggml hands out pointers to names, and does
/// not say how long they are used.
pub(super) fn intern(text: CString) -> &'static CStr {
    static TEXTS: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let texts = texts.get_or_insert_with(HashSet::new);
    match texts.get(text.as_c_str()) {
        Some(known) => known,
        None => {
            let text: &'static CStr = Box::leak(text.into_boxed_c_str());
            texts.insert(text);
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_kept_once() {
        let first = intern(c"a card".to_owned());
        assert!(std::ptr::eq(first, intern(c"a card".to_owned())));
    }

    #[test]
    fn buffer_types_know_their_slot_and_have_names_of_their_own() {
        let slots = crate::sim::registry::slots();
        assert!(std::ptr::eq(owner(slots[3].buft).unwrap(), &slots[3]));
        assert!(std::ptr::eq(owner(slots[3].mapped_buft).unwrap(), &slots[3]));
        // Pinned memory belongs to the host.
        assert!(owner(slots[3].host_buft).is_none());
        let names: HashSet<&CStr> = slots
            .iter()
            .flat_map(|slot| [&slot.name, &slot.host_name, &slot.mapped_name])
            .map(CString::as_c_str)
            .collect();
        assert_eq!(names.len(), 3 * MAX_CARDS);
    }
}
