//! Whether there still is room for a plan when its load begins, and what a load that failed all the same lacked.
//!
//! Time passes between plan and load, and a GPU is shared: another process may have taken what the plan counted on.
//! llama.cpp would then fail on whichever buffer comes last, after minutes of reading, and name that buffer alone. Here
//! flow in a plan and the devices it names; out comes an [`Error::OutOfMemory`] that names the device, all that the
//! plan takes of it, and what is left. Headroom is not counted: it is there to be used.

use llama_sys::{Device, DeviceMemory};

use super::Error;
use crate::plan::{Placement, Plan};

/// Refuses a plan that no longer fits the GPUs as they are now. `devices` are those of the plan, in its order.
///
/// A device that does not tell its memory is left to the load.
pub(super) fn check(plan: &Plan, devices: &[Device]) -> Result<(), Error> {
    let mut lacking = plan
        .gpus()
        .zip(devices)
        .filter_map(|(gpu, device)| lack(gpu, device));
    lacking.next().map_or(Ok(()), Err)
}

/// Why a load, a context or a computation failed for lack of memory. Where llama.cpp names a GPU of the plan that had
/// no room for a buffer, and there still is too little for the plan, that is the answer; where it names none, the first
/// GPU that has too little is. Any other failure stays as it is.
///
/// To be called once all of the failed load has been freed, so that what is free is what was free for it.
pub(super) fn explain(error: llama_sys::Error, plan: &Plan, devices: &[Device]) -> Error {
    let named = error.out_of_memory().map(|failed| &failed.buffer_type);
    let lacking = plan
        .gpus()
        .zip(devices)
        .filter(|(_, device)| named.is_none_or(|name| device.name() == *name))
        .find_map(|(gpu, device)| lack(gpu, device));
    lacking.unwrap_or_else(|| error.into())
}

/// The error, if this device has too little for what the plan takes of it.
fn lack(gpu: &Placement, device: &Device) -> Option<Error> {
    // A total of 0 is how ggml says "unknown".
    let DeviceMemory { free, .. } = device.memory().ok().filter(|memory| memory.total > 0)?;
    let needed = gpu.footprint.total().saturating_add(gpu.companions);
    (needed > free).then(|| Error::OutOfMemory {
        device: device.name(),
        name: gpu.name.clone(),
        needed,
        free,
    })
}
