//! MIG: a data-centre card divided into slices, each with memory and memory controllers of its own.

use serde::{Deserialize, Serialize};

use super::gpu::Reading;

/// A slice of a card in MIG mode. To CUDA a slice is a card; of all that are visible a process gets the first alone
/// (NVIDIA Multi-Instance GPU User Guide, device enumeration).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MigSlice {
    /// Its profile: slices of arithmetic and bytes of memory, `1g.10gb`. `None` where it is not known
    /// which slice it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Its identity, by which `CUDA_VISIBLE_DEVICES` chooses it: `MIG-...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its memory as the driver counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Reading>,
}

impl MigSlice {
    /// A slice by the driver's name for it, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`; its profile is what follows `MIG`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let profile = name.rsplit_once("MIG ").map(|(_, profile)| profile.trim());
        Self {
            profile: profile.filter(|text| !text.is_empty()).map(str::to_owned),
            uuid: None,
            memory: None,
        }
    }

    /// Whether a device with so many bytes can be this slice: ggml's total is what CUDA can use of what the driver
    /// counts, at most some percent less.
    pub(super) fn may_have(&self, total: u64) -> bool {
        let about = |memory: Reading| total <= memory.total && total >= memory.total / 10 * 9;
        self.memory.is_some_and(about)
    }
}

/// The part of a card's bandwidth that a part of its memory has. A slice of memory has its share of both (NVIDIA
/// Multi-Instance GPU User Guide, "GPU memory slice"). In bytes per second; `None` where the card's total is not known.
pub(super) fn share(bandwidth: u64, total: u64, of: u64) -> Option<u64> {
    let share = u128::from(bandwidth)
        .checked_mul(u128::from(total.min(of)))?
        .checked_div(u128::from(of))?;
    u64::try_from(share).ok()
}

#[cfg(test)]
mod tests {
    use super::{MigSlice, Reading, share};
    use crate::machine::{gib, mib};

    #[test]
    fn the_profile_is_what_follows_mig_in_its_name() {
        let profile = |name| MigSlice::new(name).profile;
        let slice = profile("NVIDIA A100-SXM4-40GB MIG 1g.5gb");
        assert_eq!(slice.as_deref(), Some("1g.5gb"));
        assert_eq!(profile("NVIDIA A100-SXM4-40GB"), None);
        assert_eq!(profile("MIG "), None);
    }

    #[test]
    fn a_device_is_a_slice_of_about_its_size() {
        let mut slice = MigSlice::new("MIG 1g.10gb");
        assert!(!slice.may_have(gib(10)));
        slice.memory = Some(Reading::new(gib(10), gib(9)));
        assert!(slice.may_have(gib(10)) && slice.may_have(gib(10) - mib(400)));
        assert!(!slice.may_have(gib(20)) && !slice.may_have(gib(5)));
    }

    #[test]
    fn an_eighth_of_the_memory_is_read_at_an_eighth_of_the_speed() {
        assert_eq!(share(3_352, gib(10), gib(80)), Some(419));
        assert_eq!(share(3_352, gib(90), gib(80)), Some(3_352));
        assert_eq!(share(u64::MAX, u64::MAX, u64::MAX), Some(u64::MAX));
        assert_eq!(share(1, 0, 0), None);
    }
}
