//! The probe: llama.cpp's own answer to "how many bytes", from a load that allocates nothing (`no_alloc`).
//!
//! In: a file, the devices, the parameters of the load. Out: [`Footprints`] as a real load would have them. Exact for every
//! architecture of llama.cpp, at the price of reading the header, vocabulary included (0.2 to 0.7 s for 128k tokens).

use std::path::Path;

use llama_sys::{Context, Device, LoadMode, MemoryBreakdown, Model, ModelParams};

use super::{ContextParams, Footprint, Footprints};

/// Asks llama.cpp what it would allocate with `n_gpu_layers` layers on `devices`.
///
/// The buffer of logits is not in its answer ([`Footprints::output`] is 0), nor is what a driver takes for itself.
///
/// # Errors
///
/// Whatever keeps llama.cpp from loading the file or making the context.
pub(crate) fn probe(
    path: &Path,
    devices: &[Device],
    params: &ContextParams,
    n_gpu_layers: u32,
) -> Result<Footprints, llama_sys::Error> {
    let model = Model::load(
        path,
        ModelParams {
            n_gpu_layers: n_gpu_layers.try_into().unwrap_or(i32::MAX),
            devices: Some(devices.to_vec()),
            // A mapped file cannot be simulated (llama-model.cpp:1857 asserts it); the sizes of tensors are the same.
            load_mode: LoadMode::None,
            no_alloc: true,
            use_extra_bufts: params.repack,
            ..ModelParams::default()
        },
    )?;
    let context = Context::new(&model, params.to_native())?;
    Ok(footprints(&context.memory_breakdown()?, devices))
}

/// Sums a breakdown by device: what lies in no device's own memory lies on the host, pinned and repacked buffers included.
pub(crate) fn footprints(breakdown: &MemoryBreakdown, devices: &[Device]) -> Footprints {
    let sum = |rows: &mut dyn Iterator<Item = &llama_sys::BufferUse>| {
        rows.fold(Footprint::default(), |mut sum, row| {
            sum += Footprint::new(row.model, row.context, row.compute);
            sum
        })
    };
    let gpus = devices
        .iter()
        .map(|device| sum(&mut breakdown.on(device)))
        .collect();
    Footprints::new(gpus, sum(&mut breakdown.on_host()))
}
