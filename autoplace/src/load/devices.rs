//! ggml's devices as plain data for the machine room, and back by name.

use llama_sys::{Backend, Device, DeviceKind};

use super::Error;
use crate::machine::{Detector, GgmlDevice, GgmlKind, Machine};

/// This computer, as every compiled-in backend and NVIDIA's driver see it.
///
/// Asks each GPU for its free memory, which on CUDA opens a context there (107 to 555 MiB).
///
/// # Errors
///
/// [`Error::Native`] when the native code cannot run on this CPU.
pub fn detect() -> Result<Machine, Error> {
    let backend = Backend::init()?;
    let devices: Vec<GgmlDevice> = backend.devices().iter().map(describe).collect();
    Ok(Detector::new()
        .backends(backend.names())
        .detect_with(&devices))
}

fn describe(device: &Device) -> GgmlDevice {
    let kind = match device.kind() {
        DeviceKind::Cpu => GgmlKind::Cpu,
        DeviceKind::IntegratedGpu => GgmlKind::IntegratedGpu,
        DeviceKind::Accelerator => GgmlKind::Accelerator,
        DeviceKind::Meta => GgmlKind::Meta,
        _ => GgmlKind::Gpu,
    };
    // A device that cannot say what it has is listed as unusable, with the reason.
    let (total, free) = device.memory().map_or_else(
        |error| {
            tracing::warn!("{}: {error}", device.name());
            (0, 0)
        },
        |memory| (memory.total, memory.free),
    );
    let described = GgmlDevice::new(device.name(), device.backend(), kind)
        .description(device.description())
        .memory(total, free);
    match device.pci_id() {
        Some(id) => described.device_id(id),
        None => described,
    }
}

/// The devices of these names, in their order: ggml's name, and the GPU's for people. A GPU without a device is one that this
/// process cannot use, and leaving it out would silently put its layers on the host.
pub(super) fn by_name<'a>(
    names: impl Iterator<Item = (Option<&'a str>, &'a str)>,
) -> Result<Vec<Device>, Error> {
    let all = Backend::init()?.devices();
    names
        .map(|(device, name)| {
            device
                .and_then(|device| all.iter().find(|known| known.name() == device))
                .cloned()
                .ok_or_else(|| Error::DeviceGone {
                    device: device.unwrap_or(name).to_owned(),
                    present: all
                        .iter()
                        .filter(|device| device.is_gpu())
                        .map(Device::name)
                        .collect(),
                })
        })
        .collect()
}
