//! Translates ggml's devices into plain data, and finds them again by name.

use llama_sys::sim::MAX_CARDS;
use llama_sys::{Backend, Device, DeviceKind, DeviceMemory};

use super::Error;
use crate::machine::{Detector, GgmlDevice, GgmlKind, Gpu, Machine};
use crate::plan::{Placement, Plan};

/// Describes this computer, as every compiled-in backend and NVIDIA's driver report it.
///
/// Reads the free memory of each GPU. On CUDA this creates a driver context of 107 to 555 MiB.
///
/// # Errors
///
/// [`Error::Native`] if the native code cannot run on this CPU, or no runtime can be opened.
pub fn detect() -> Result<Machine, Error> {
    let backend = Backend::init()?;
    let devices: Vec<GgmlDevice> = backend.devices().iter().map(describe).collect();
    let machine = Detector::new().backends(backend.names()).for_build(build_name()).detect_with(&devices);
    #[cfg(feature = "prebuilt-runtime")]
    let machine = with_shortcomings(machine);
    Ok(machine)
}

/// Adds notes about reasons for missing GPUs.
#[cfg(feature = "prebuilt-runtime")]
fn with_shortcomings(mut machine: Machine) -> Machine {
    let notes = llama_sys::runtime::shortcomings().into_iter();
    machine.notes.extend(notes.map(|text| crate::machine::Note::new("runtime", text)));
    machine
}

/// The name of this build. The name contains everything that affects the memory of a GPU. It is used for
/// [`Detector::for_build`](crate::machine::Detector::for_build) and
/// [`MeasurementCache`](crate::machine::MeasurementCache).
pub fn build_name() -> String {
    let build = llama_sys::build_info();
    format!("autoplace {}, llama.cpp {} ({})", env!("CARGO_PKG_VERSION"), build.llama_cpp, build.backends.join(", "))
}

/// The name of this build, and the feature on which the messages between application and worker depend.
pub(crate) fn worker_build() -> String {
    build_name() + if cfg!(feature = "constraints") { ", constraints" } else { "" }
}

/// Whether the device is simulated. The devices of [`llama_sys::sim`] are named `SIM0` to `SIM14`.
pub(super) fn is_simulated(device: &str) -> bool {
    let number = device.strip_prefix("SIM");
    number.is_some_and(|number| number.parse::<usize>().is_ok_and(|n| n < MAX_CARDS))
}

fn describe(device: &Device) -> GgmlDevice {
    let kind = match device.kind() {
        DeviceKind::Cpu => GgmlKind::Cpu,
        DeviceKind::IntegratedGpu => GgmlKind::IntegratedGpu,
        DeviceKind::Accelerator => GgmlKind::Accelerator,
        DeviceKind::Meta => GgmlKind::Meta,
        _ => GgmlKind::Gpu,
    };
    // A device that does not report its memory is listed as unusable, with the reason.
    let memory = device.memory().inspect_err(|error| tracing::warn!("{}: {error}", device.name()));
    let (total, free) = memory.map_or((0, 0), |memory| (memory.total, memory.free));
    let described = GgmlDevice::new(device.name(), device.backend(), kind).description(device.description());
    device.pci_id().into_iter().fold(described.memory(total, free), GgmlDevice::device_id)
}

/// The GPU of a placement in this machine.
pub(crate) fn gpu_of<'m>(machine: &'m Machine, placement: &Placement) -> Option<&'m Gpu> {
    machine.gpus.iter().find(|gpu| gpu.device.is_some() && gpu.device == placement.device)
}

/// The device with this ggml name.
pub(crate) fn named<'d>(devices: &'d [Device], name: Option<&str>) -> Option<&'d Device> {
    devices.iter().find(|device| Some(device.name().as_str()) == name)
}

/// The devices with these ggml names, in order. The second name of each pair is the GPU's display name, for the error.
/// A missing device is an error, because leaving it out would silently put its layers on the host.
pub(super) fn by_name<'a>(names: impl Iterator<Item = (Option<&'a str>, &'a str)>) -> Result<Vec<Device>, Error> {
    let all = Backend::init()?.devices();
    let device = |(device, name): (Option<&str>, &str)| {
        named(&all, device).cloned().ok_or_else(|| Error::DeviceGone {
            device: device.unwrap_or(name).to_owned(),
            present: all.iter().filter(|device| device.is_gpu()).map(Device::name).collect(),
        })
    };
    names.map(device).collect()
}

pub(super) fn of_plan(plan: &Plan) -> Result<Vec<Device>, Error> {
    by_name(plan.gpus().map(|gpu| (gpu.device.as_deref(), gpu.name.as_str())))
}

/// The memory that a device reports. A total of 0 means "unknown" in ggml.
pub(crate) fn memory(device: &Device) -> Option<DeviceMemory> {
    device.memory().ok().filter(|memory| memory.total > 0)
}

/// Free bytes of each device that reports them.
pub(super) fn free(devices: &[Device]) -> Vec<Option<u64>> {
    devices.iter().map(|device| Some(memory(device)?.free)).collect()
}

/// Free bytes of the device with this ggml name, if it reports them.
pub(super) fn free_of(name: &str) -> Option<u64> {
    Some(memory(named(&Backend::init().ok()?.devices(), Some(name))?)?.free)
}

/// Limits the free bytes of each GPU to the number that it reports now.
pub(super) fn bounded_by_now(mut machine: Machine) -> Result<Machine, Error> {
    let devices = Backend::init()?.devices();
    for gpu in &mut machine.gpus {
        if let Some(memory) = named(&devices, gpu.device.as_deref()).and_then(memory) {
            gpu.free = gpu.free.min(memory.free);
        }
    }
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use super::is_simulated;

    #[test]
    fn a_simulated_gpu_is_known_by_its_name() {
        for name in ["SIM0", "SIM14"] {
            assert!(is_simulated(name), "{name}");
        }
        for name in ["SIM", "SIM15", "SIMD0", "CUDA0", "Vulkan0", ""] {
            assert!(!is_simulated(name), "{name}");
        }
    }
}
