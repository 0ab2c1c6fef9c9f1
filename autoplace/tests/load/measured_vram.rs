//! Planned bytes are compared with the numbers that `nvidia-smi` shows on a real card: Qwen2.5-Coder-14B-Instruct in
//! Q4_K_M, on an RTX 5060 Ti with 16 GB, in llama-server with CUDA 12.4 on Windows. The context has 4096 tokens, and
//! everything else has its default (github.com/InventiveHQ/local-llm-benchmarks, experiments/vram-offload-cliff).
//!
//! The source's "MB" are MiB, because `nvidia-smi` prints MiB. If they were 10^6 bytes, the last row would be smaller
//! than the weights. The column in the source is the difference in the memory that is used on the card. llama.cpp's
//! buffers do not contain the share of the driver, but this difference does.

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::load::NativeProbe;
use autoplace::machine::{Gpu, Host, Machine, gib, mib};
use autoplace::plan::{GpuLayers, Planner, Request};
use autoplace::profile::ModelProfile;
use test_support::shapes::QWEN_14B;

/// Values of `-ngl`, each with the MiB that are in use.
const SWEEP: [(u32, u64); 6] = [(8, 2161), (16, 3509), (24, 4875), (32, 6241), (40, 7593), (99, 9179)];

/// The memory of CUDA's context alone, on an RTX 4060 Ti. In the previous generation, this card had the same class
/// (llama.cpp PR 23604). For the 5060 Ti itself, no number was published. This number was chosen after the rows had
/// shown that the difference is always between 133 and 139 MiB.
const CONTEXT: u64 = mib(107);
/// The size of cuBLAS' workspace, from compute capability 9.0 on (`cublasSetWorkspace`). The 5060 Ti has 12.0.
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
        // The plan sets aside at least as much memory (footprint and headroom) as was really taken.
        let kept = footprint + planned.headroom.driver + planned.headroom.growth;
        assert!(kept >= measured, "{layers} layers: {kept} < {measured}");
        left_out.push(measured.checked_sub(footprint).unwrap());
    }
    // The remainder is the same in every row. So it is a constant, such as a context, and not a share of weights, cache
    // or compute buffers.
    let (least, most) = (left_out.iter().min().unwrap(), left_out.iter().max().unwrap());
    assert!(most - least <= mib(8), "{left_out:?}");
}
