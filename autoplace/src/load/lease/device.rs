//! What a GPU is called in every process: a card is `CUDA0` in one and `Vulkan1` or, beside other visible devices,
//! `CUDA1` in another.

use std::fmt;

use crate::load::devices::is_simulated;
use crate::machine::{Gpu, GpuKind};

/// A GPU by its name that is the same for all. Ordered, so that all who lock several do so in one order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceKey(String);

impl DeviceKey {
    /// The key of a GPU; `None` for one that is hypothetical, or simulated within this process.
    pub(super) fn of(gpu: &Gpu) -> Option<Self> {
        let device = gpu.device.as_deref()?;
        let slice = gpu.mig.as_ref().and_then(|slice| slice.uuid.clone());
        let card = || gpu.pci_id.map(|id| id.to_string());
        let name = || match gpu.kind {
            // ggml counts remote devices anew in each process and describes them by their endpoint (ggml-rpc.cpp,
            // `ggml_backend_rpc_add_server`).
            GpuKind::Remote => Some(format!("{} {}", gpu.backend, gpu.description)),
            _ if is_simulated(device) => None,
            _ => Some(format!("{} {device}", gpu.backend)),
        };
        slice.or_else(card).or_else(name).map(Self)
    }

    /// The key as the beginning of a file's name: letters, digits and hyphens.
    pub(super) fn file_name(&self) -> String {
        let safe = |letter: char| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' => letter,
            _ => '-',
        };
        self.0.chars().map(safe).take(128).collect()
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{MigSlice, PciId};

    fn key(gpu: &Gpu) -> Option<String> {
        DeviceKey::of(gpu).map(|key| key.to_string())
    }

    #[test]
    fn a_card_is_its_pci_address_whatever_drives_it() {
        let card = Gpu::new("card").pci_id(PciId::new(0, 0xc1, 0, 0));
        let cuda = card.clone().device("CUDA0");
        let vulkan = card.device("Vulkan1").backend("Vulkan");
        assert_eq!(key(&cuda).as_deref(), Some("0000:c1:00.0"));
        assert_eq!(key(&cuda), key(&vulkan));
        let name = DeviceKey::of(&cuda).unwrap().file_name();
        assert_eq!(name, "0000-c1-00-0");
    }

    #[test]
    fn a_slice_is_its_own_device_where_it_is_known_which_it_is() {
        let mut slice = Gpu::new("A100").device("CUDA0");
        slice.pci_id = Some(PciId::new(0, 1, 0, 0));
        slice.mig = Some(MigSlice::new("NVIDIA A100-SXM4-40GB MIG 1g.5gb"));
        assert_eq!(key(&slice).as_deref(), Some("0000:01:00.0"));
        slice.mig.as_mut().unwrap().uuid = Some("MIG-1".to_owned());
        assert_eq!(key(&slice).as_deref(), Some("MIG-1"));
    }

    #[test]
    fn without_an_address_it_is_the_devices_name_or_the_endpoint() {
        let apple = Gpu::new("Apple M4").device("MTL0").backend("MTL");
        assert_eq!(key(&apple).as_deref(), Some("MTL MTL0"));
        let remote = Gpu::new("10.0.0.2:50052").kind(GpuKind::Remote);
        let remote = |device: &str| key(&remote.clone().device(device).backend("RPC"));
        assert_eq!(remote("RPC0").as_deref(), Some("RPC 10.0.0.2:50052"));
        assert_eq!(remote("RPC0"), remote("RPC3"));
    }

    #[test]
    fn what_only_this_process_has_is_not_leased() {
        assert_eq!(key(&Gpu::new("RTX 4090")), None);
        let simulated = Gpu::new("SIM card").device("SIM0");
        assert_eq!(key(&simulated), None);
        assert!(key(&simulated.pci_id(PciId::new(0, 1, 0, 0))).is_some());
    }
}
