//! Takes samples of a loaded model. The values come from NVIDIA's driver for NVIDIA's GPUs, from ggml's devices for
//! other GPUs, and from the model's own token counters.

use std::sync::{Arc, Weak};

use llama_sys::{Backend, Device};

use super::depth::DepthCost;
use super::sample::{DeviceSample, Sample, Source, Watched, WatchedDevice};
use crate::gguf::Header;
use crate::load::{self, GenerationCounters, Model, Pacer, WeakModel, gpu_of, named};
use crate::machine::nvidia::Driver;
use crate::machine::{Gpu, GpuKind, HostSample, Machine, PciId, mib};
use crate::memory::WSL_HEADROOM;
use crate::plan::{Placement, PlacementKind, Plan};
use crate::profile::ModelProfile;

/// Minimum number of bytes that another program must take before it counts as the likely cause of a slowdown.
const MIN_NOTABLE: u64 = mib(64);

/// Watches a loaded model without keeping it loaded.
///
/// # Memory that must stay free
///
/// Each GPU must keep the plan's growth ([`HeadroomParts::growth`](crate::memory::HeadroomParts)) free, for workspaces
/// and pools that are created on first use. Once the workspaces and pools exist, only the plan's margin and the unused
/// rest are left, so at most half of these two together must stay free. Under WSL, Windows starts to move memory to the
/// host while some memory still counts as free, so this memory must stay free too.
#[derive(Debug)]
pub struct ModelSource {
    model: WeakModel,
    counters: Weak<GenerationCounters>,
    devices: Vec<DeviceSource>,
    driver: Option<Driver>,
}

/// Where the values for one GPU come from.
#[derive(Debug)]
struct DeviceSource {
    ggml: Option<Device>,
    /// The PCI address of the card, if NVIDIA's driver knows it.
    nvidia: Option<PciId>,
    /// Whether the bytes that the driver reports are those of this device. False if the device is a slice of a card, or
    /// if it uses the host's memory.
    counts: bool,
    /// Whether the GPU is not used by the model, so that only its free memory matters.
    is_spare: bool,
    /// Windows' limit of this GPU's memory for this process; `None` if two GPUs have the same name.
    #[cfg(windows)]
    video: Option<llama_sys::VideoMemory>,
}

impl ModelSource {
    /// A source of samples of this model.
    pub fn new(model: &Model) -> Self {
        Self { model: model.downgrade(), counters: Arc::downgrade(model.counters()), devices: Vec::new(), driver: None }
    }

    fn sample_device(&mut self, n: usize, processes: bool) -> DeviceSample {
        let Some(source) = self.devices.get(n) else { return DeviceSample::default() };
        let mut sample = DeviceSample::default();
        if let (Some(card), Some(driver)) = (source.nvidia, &mut self.driver) {
            let state = driver.state(card);
            if source.counts {
                sample.free = state.memory.map(|memory| memory.free);
            }
            if !source.is_spare {
                sample.throttle = state.throttle;
                (sample.temperature, sample.clock_mhz) = (state.temperature, state.clock_mhz);
            }
            if processes && !source.is_spare {
                // If the list does not contain this process, the process ids in the list come from another namespace,
                // and one of them may be that of this model.
                let listed = driver.processes(card).filter(|listed| listed.knows_us);
                sample.processes = listed.map(|listed| listed.others);
            }
        }
        if sample.free.is_none() {
            let memory = source.ggml.as_ref().and_then(load::memory);
            // Vulkan may report a negative number as unsigned (ggml-vulkan.cpp, `ggml_backend_vk_get_device_memory`).
            sample.free = memory.map(|memory| match i64::try_from(memory.free) {
                Ok(_) => memory.free.min(memory.total),
                Err(_) => 0,
            });
        }
        #[cfg(windows)]
        if let Some(video) = source.video.as_ref().and_then(llama_sys::VideoMemory::usage) {
            // The budget already excludes the memory of other programs.
            let left = video.budget.saturating_sub(video.used);
            sample.free = Some(sample.free.map_or(left, |free| free.min(left)));
            sample.on_host = Some(video.on_host);
        }
        sample
    }
}

/// Windows' report about the GPU with this name; `None` if two GPUs have this name, because ggml's description cannot
/// distinguish them.
#[cfg(windows)]
fn video_memory(description: &str) -> Option<llama_sys::VideoMemory> {
    let mut all = llama_sys::VideoMemory::adapters().into_iter();
    let mut same = all.by_ref().filter(|one| one.description() == description);
    let found = same.next()?;
    same.next().is_none().then_some(found)
}

impl Source for ModelSource {
    fn watched(&mut self) -> Option<Watched> {
        // The number is read before the plan, so that the next sample detects that the plan is outdated.
        let placed = self.counters.upgrade()?.placements();
        let model = self.model.upgrade()?;
        let (plan, machine, moved) = (model.placement(), model.machine(), model.report().moved.clone());
        // If the request states the size of the cache, another plan would have the same cache.
        let is_stated = model.states_moe_cache();
        drop(model);
        let ggml = Backend::init().map_or_else(|_| Vec::new(), Backend::devices);
        let source = |name: Option<&str>, gpu: Option<&Gpu>, is_spare: bool| DeviceSource {
            ggml: named(&ggml, name).cloned(),
            #[cfg(windows)]
            video: gpu.filter(|gpu| gpu.kind != GpuKind::Remote).and_then(|gpu| video_memory(&gpu.description)),
            nvidia: gpu.filter(|gpu| gpu.nvml.is_some() || gpu.processes.is_some()).and_then(|gpu| gpu.pci_id),
            counts: gpu.is_some_and(|gpu| gpu.kind == GpuKind::Discrete && gpu.nvml.is_some()),
            is_spare,
        };
        let spare = spare(&plan, &machine);
        let used = plan.gpus().map(|gpu| source(gpu.device.as_deref(), gpu_of(&machine, gpu), false));
        let unused = spare.iter().map(|gpu| source(gpu.device.as_deref(), Some(gpu), true));
        self.devices = used.chain(unused).collect();
        let has_nvidia = self.devices.iter().any(|device| device.nvidia.is_some());
        if has_nvidia && self.driver.is_none() {
            self.driver = Driver::open(None);
        }
        let used = plan.gpus().map(|placement| watched(placement, &plan, &machine));
        let devices = used.chain(spare.iter().map(|gpu| watched_for_room(gpu, &plan)));
        let depth_cost = depth_cost(&plan, &machine);
        Some(Watched {
            devices: devices.collect(),
            depth_cost,
            placement: placed,
            moved,
            expert_break_even: plan.moe_cache.filter(|_| !is_stated).and_then(|cache| cache.break_even),
        })
    }

    fn sample(&mut self, processes: bool) -> Option<Sample> {
        // The model's streams keep the counters, so without counters there is no model any more.
        let counters = self.counters.upgrade()?;
        let generated = counters.generated();
        let threads = counters.pacer().as_ref().map(Pacer::generating);
        let (placement, moving, experts) = (counters.placements(), counters.moving(), counters.expert_uses());
        drop(counters);
        if let Some(model) = self.model.upgrade() {
            model.relieve_host();
        }
        let devices = 0..self.devices.len();
        Some(Sample {
            devices: devices.map(|n| self.sample_device(n, processes)).collect(),
            generated,
            host: HostSample::now(),
            threads,
            placement,
            experts,
            moving,
        })
    }
}

fn watched(placement: &Placement, plan: &Plan, machine: &Machine) -> WatchedDevice {
    let name = placement.device.as_deref().unwrap_or(&placement.name);
    let headroom = placement.headroom;
    // The margin, and the memory that is left because it was too small for another layer.
    let left = placement.budget.saturating_sub(placement.footprint.total()).saturating_add(headroom.margin);
    let growth = headroom.growth.min(left / 2);
    let needed = if machine.wsl && headroom.margin > WSL_HEADROOM { growth.max(WSL_HEADROOM) } else { growth };
    let (footprint, layers) = (placement.footprint.total(), placement.layers.max(1));
    // More room would move a part of the model from the host to a GPU.
    let wants_room = !plan.full_offload;
    WatchedDevice {
        device: name.to_owned(),
        needed,
        // The room that one more layer needs.
        room: wants_room.then(|| footprint / u64::from(layers)),
        left: wants_room.then(|| placement.free.saturating_sub(footprint)),
        notable: headroom.margin.max(MIN_NOTABLE),
        spills: cfg!(windows) || machine.wsl || placement.kind == PlacementKind::SharedGpu,
    }
}

/// GPUs of the machine that the model does not use but could use if they had more room.
fn spare<'m>(plan: &Plan, machine: &'m Machine) -> Vec<&'m Gpu> {
    let is_used = |gpu: &Gpu| plan.gpus().any(|placement| placement.device == gpu.device);
    machine.gpus.iter().filter(|gpu| !plan.full_offload && gpu.device.is_some() && !is_used(gpu)).collect()
}

/// A GPU that the model does not use. It is watched only for room for a layer from the host.
fn watched_for_room(gpu: &Gpu, plan: &Plan) -> WatchedDevice {
    let name = gpu.device.as_deref().unwrap_or(&gpu.name);
    // A block counts as a layer on a GPU even if a part of it is on the host.
    let layers = |on_host: u32| u64::from(on_host.saturating_add(plan.split_blocks).max(1));
    let layer = plan.host().map_or(0, |host| host.footprint.total() / layers(host.layers));
    let (room, left, notable) = (Some(layer), Some(gpu.free), u64::MAX);
    WatchedDevice { device: name.to_owned(), room, left, notable, ..WatchedDevice::default() }
}

/// The cost of depth, computed from the model's file. The cost is unknown if the file can no longer be read.
fn depth_cost(plan: &Plan, machine: &Machine) -> DepthCost {
    let profile = plan.model.path.as_deref().and_then(|path| ModelProfile::from_header(&Header::open(path).ok()?).ok());
    profile.and_then(|profile| DepthCost::for_plan(&profile, plan, machine)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_block_of_which_the_host_has_a_part_counts_as_a_layer_there() {
        let mut plan = crate::load::test_plan::host_plan();
        (plan.placements[0].layers, plan.split_blocks) = (1, 32);
        let room = super::watched_for_room(&super::Gpu::new("card"), &plan).room;
        assert_eq!(room, Some(plan.placements[0].footprint.total() / 33));
    }
}
