//! Memory that a GPU needs outside the buffers that llama.cpp counts. The figure was measured on the device, or comes
//! from a table that names its sources.

use super::PeakSizes;
use crate::machine::{Gpu, LearnedHeadroom, mib};
use crate::memory::backend::Family;

/// A CUDA context on an unknown card. Published values range from 107 MiB (RTX 4060 Ti) to 555 MiB (RTX PRO 6000),
/// measured at the first `cudaMemGetInfo` (llama.cpp PR 23604).
const CUDA_CONTEXT: u64 = mib(560);

/// The fixed part of a CUDA context, and the additional part for each thread that the multiprocessors can hold at once.
///
/// CUDA reserves local memory for as many threads as the card can hold, once per context ("`MAX_THREADS_PER_SM` x SMs x
/// `LOCAL_MEM_PER_THREAD`": forums.developer.nvidia.com, "Local memory management"). Two cards were measured: one with
/// 52224 threads and 107 MiB, the other with 288768 threads and 555 MiB. They lie on the line of 8 MiB plus 1986 bytes
/// per thread; with these constants, both predictions are higher than measured. The constants predict 124 MiB for an
/// RTX 5060 Ti, where about 107 were measured (`tests/load/measured_vram.rs`).
const CUDA_CONTEXT_BASE: u64 = mib(16);
const CUDA_CONTEXT_PER_THREAD: u64 = 2048;

/// The workspace of cuBLAS at first use: 32 MiB from compute capability 9.0 on, 4 MiB before (cuBLAS documentation,
/// `cublasSetWorkspace`).
const CUBLAS_WORKSPACE: u64 = mib(32);

/// A Vulkan device with its pipelines. No figure is published; this is about CUDA's value for small cards.
const VULKAN_DEVICE: u64 = mib(128);

/// Bytes that the driver will take for itself from now on.
pub(super) fn driver(gpu: &Gpu) -> u64 {
    let is_open = gpu.free_is_after_opening();
    let table = match Family::from_backend(&gpu.backend) {
        Family::Cuda if is_open => cuda_context(gpu) / 2,
        Family::Cuda | Family::Other => cuda_context(gpu),
        Family::Vulkan => VULKAN_DEVICE,
        Family::Metal => 0,
    };
    match gpu.learned {
        // A measurement on an open device does not include the cost of opening it. A driver that reports no version may
        // have changed since the measurement.
        Some(learned) if is_open && gpu.driver.is_some() => learned.driver,
        Some(learned) if is_open => learned.driver.max(table),
        _ => table,
    }
}

/// Bytes by which the used memory will grow after the load. If the measured workload was smaller than this one, the
/// measurement can only raise the table's value.
pub(super) fn growth(gpu: &Gpu, peak_sizes: &PeakSizes) -> u64 {
    let pools = peak_sizes.activations.saturating_mul(2);
    let table = match Family::from_backend(&gpu.backend) {
        Family::Cuda => CUBLAS_WORKSPACE.saturating_add(pools),
        Family::Vulkan => peak_sizes.decoded_matrix.saturating_add(pools),
        Family::Metal => peak_sizes.activations,
        Family::Other => CUBLAS_WORKSPACE.saturating_add(peak_sizes.decoded_matrix).saturating_add(pools),
    };
    let covers = |learned: LearnedHeadroom| learned.covers(peak_sizes.activations, peak_sizes.decoded_matrix);
    match gpu.learned {
        Some(learned) if gpu.driver.is_some() && covers(learned) => learned.growth,
        Some(learned) => learned.growth.max(table),
        None => table,
    }
}

/// Bytes of a CUDA context. No figures are published for ROCm and MUSA, so they get the largest figure of CUDA.
fn cuda_context(gpu: &Gpu) -> u64 {
    match gpu.resident_threads {
        Some(threads) if gpu.backend == "CUDA" => {
            let threads = u64::from(threads).saturating_mul(CUDA_CONTEXT_PER_THREAD);
            CUDA_CONTEXT_BASE.saturating_add(threads)
        }
        _ => CUDA_CONTEXT,
    }
}

#[cfg(test)]
mod tests {
    use super::{driver, growth};
    use crate::machine::{Gpu, LearnedHeadroom, Reading, gib, mib};
    use crate::memory::PeakSizes;
    use crate::memory::headroom::tests::PEAK_SIZES;

    /// An open card that was measured with [`PEAK_SIZES`]: 20 MiB at the load, and 30 MiB after the load.
    fn measured() -> Gpu {
        let learned = LearnedHeadroom::new(mib(20), mib(30)).work(mib(28), mib(112));
        let mut gpu = Gpu::named("RTX 4090").unwrap().learned(learned);
        gpu.driver = Some("550.54.14".to_owned());
        gpu.ggml = Some(Reading::new(gpu.total, gpu.free));
        gpu
    }

    #[test]
    fn the_predicted_context_slightly_exceeds_the_measured_one_on_each_card() {
        let named = |name| Gpu::named(name).unwrap();
        for (gpu, context) in [
            // Measured: 107 and 555 MiB.
            (named("RTX 4060 Ti 8GB"), 118),
            (named("RTX PRO 6000 Blackwell Workstation Edition"), 580),
            (named("RTX 4090"), 400),
            (named("RTX 4090").backend("ROCm"), 560),
            (Gpu::new("A card of another name").total(gib(8)), 560),
        ] {
            assert_eq!(driver(&gpu) >> 20, context, "{}", gpu.name);
        }
    }

    #[test]
    fn a_measurement_replaces_only_the_figures_that_it_covers() {
        type Edit = fn(&mut Gpu);
        let cases: [(Edit, u64, u64); 4] = [
            (|_| (), 20, 30),
            // On an open device, half of a context is still to be allocated.
            (|gpu| gpu.learned = None, 200, 88),
            // The measurement did not include opening the context.
            (|gpu| gpu.ggml = None, 400, 30),
            // Without a driver version, a measurement can only raise the table's values.
            (|gpu| gpu.driver = None, 200, 88),
        ];
        for (change, at_load, after) in cases {
            let mut gpu = measured();
            change(&mut gpu);
            let parts = (driver(&gpu), growth(&gpu, &PEAK_SIZES));
            assert_eq!(parts, (mib(at_load), mib(after)));
        }
    }

    #[test]
    fn for_a_larger_workload_the_larger_of_table_and_measurement_counts() {
        let more = PeakSizes { activations: PEAK_SIZES.activations + 1, ..PEAK_SIZES };
        let mut gpu = measured();
        assert_eq!(growth(&gpu, &more), mib(32 + 2 * 28) + 2);
        gpu.learned.as_mut().unwrap().growth = gib(1);
        assert_eq!(growth(&gpu, &more), gib(1));
    }
}
