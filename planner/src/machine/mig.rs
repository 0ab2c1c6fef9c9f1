//! Slices of a card in MIG mode.

use serde::{Deserialize, Serialize};

use super::reading::Reading;

/// A slice of a card in MIG mode. CUDA treats a slice as a card, and a process gets only the first of the visible
/// slices (NVIDIA Multi-Instance GPU User Guide, device enumeration).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MigSlice {
    /// The profile, which names the slices of compute and the bytes of memory: `1g.10gb`. `None` if it is unknown which
    /// of several slices is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The slice's UUID, which `CUDA_VISIBLE_DEVICES` accepts: `MIG-...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The slice's memory as the driver counts its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Reading>,
}

impl MigSlice {
    /// The slice with this name from the driver, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`. The profile follows the word
    /// `MIG`.
    pub fn new(name: &str) -> Self {
        let profile = name.rsplit_once("MIG ").map(|(_, profile)| profile.trim().replace(char::is_control, " "));
        Self { profile: profile.filter(|profile| !profile.is_empty()), ..Self::default() }
    }

    /// Whether a device with `total` bytes can be this slice: ggml's total is the part that CUDA can use, and is some
    /// percent smaller than the driver's total.
    fn may_have(&self, total: u64) -> bool {
        self.memory.is_some_and(|memory| total <= memory.total && total >= memory.total / 10 * 9)
    }
}

/// The slice with this total. If no slice or several slices have this total, an unknown slice.
pub(super) fn slice_of(slices: &[MigSlice], total: u64) -> MigSlice {
    let mut likely = slices.iter().filter(|slice| slice.may_have(total));
    match (likely.next(), likely.next()) {
        (Some(slice), None) => slice.clone(),
        _ => MigSlice::default(),
    }
}
