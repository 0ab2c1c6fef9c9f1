//! Properties of every headroom, and the memory that each headroom leaves for a model on a small or crowded card.

use autoplace_planner::machine::{Gpu, Host, LearnedHeadroom, Machine, Reading, gib, mib};
use autoplace_planner::memory::{Headroom, PeakSizes};
use autoplace_planner::plan::{Plan, Request};
use proptest::option;
use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use test_support::shapes::{QWEN3_8B, Shape};

const PRESETS: [Headroom; 3] = [Headroom::Tight, Headroom::Default, Headroom::Cautious];

/// A card of any backend and size, with or without a measured headroom. Its memory was read before or after ggml opened
/// the card.
fn gpu() -> impl Strategy<Value = Gpu> {
    let backend = prop::sample::select(&["CUDA", "ROCm", "Vulkan", "MTL", "Other"]);
    let learned = (any::<u64>(), any::<u64>(), any::<(u64, u64)>())
        .prop_map(|(driver, growth, work)| LearnedHeadroom::new(driver, growth).work(work.0, work.1));
    let sizes = prop_oneof![(0..gib(200), 0..gib(200)), any::<(u64, u64)>()];
    let known = (option::of(learned), any::<Option<u32>>(), any::<bool>(), any::<bool>());
    (backend, sizes, known).prop_map(|(backend, (total, free), (learned, threads, open, versioned))| {
        let mut gpu = Gpu::new("card").total(total).free(free).backend(backend);
        gpu.resident_threads = threads;
        gpu.learned = learned;
        gpu.ggml = open.then(|| Reading::new(total, free));
        gpu.driver = versioned.then(|| "550.54.14".to_owned());
        gpu
    })
}

fn workload() -> impl Strategy<Value = PeakSizes> {
    prop_oneof![(0..gib(4), 0..gib(4)), any::<(u64, u64)>()].prop_map(|(activations, decoded_matrix)| {
        let mut workload = PeakSizes::default();
        (workload.activations, workload.decoded_matrix) = (activations, decoded_matrix);
        workload
    })
}

fn any_headroom() -> impl Strategy<Value = Headroom> {
    let (bytes, shares) = (any::<u64>().prop_map(Headroom::Bytes), (0.0f32..100.0).prop_map(Headroom::Percent));
    prop_oneof![3 => prop::sample::select(&PRESETS), 1 => bytes, 1 => shares]
}

proptest! {
    #[test]
    fn presets_keep_their_order_and_uncertainty_and_cautious_keeps_15_percent(
        gpu in gpu(),
        workload in workload(),
        unsure in prop_oneof![0..gib(2), any::<u64>()],
        wsl in any::<bool>(),
    ) {
        let parts = |preset: Headroom, unsure| preset.of_gpu(&gpu, &workload, unsure, wsl);
        let small = unsure.min(gib(2));
        let [tight, default, cautious] = PRESETS.map(|preset| parts(preset, small).total());
        prop_assert!(tight <= default && default <= cautious);
        prop_assert!(u128::from(cautious) * 100 >= u128::from(gpu.total) * 15);
        for preset in PRESETS {
            let (sure, unsured) = (parts(preset, 0), parts(preset, unsure));
            prop_assert!(unsured.margin >= sure.margin && unsured.margin >= unsure);
            prop_assert_eq!((unsured.driver, unsured.growth), (sure.driver, sure.growth));
        }
    }

    #[test]
    fn more_free_bytes_more_work_and_windows_never_leave_less_free(
        gpu in gpu(),
        headroom in any_headroom(),
        workload in workload(),
        more in any::<(u64, u64)>(),
        wsl in any::<bool>(),
    ) {
        let total = |gpu: &Gpu, workload, wsl| headroom.of_gpu(gpu, workload, 0, wsl).total();
        let budget = |gpu: &Gpu| gpu.free.saturating_sub(total(gpu, &workload, wsl));
        let mut freer = gpu.clone();
        freer.free = gpu.free.saturating_add(more.0);
        prop_assert!(budget(&freer) >= budget(&gpu));
        let mut larger = workload;
        larger.activations = workload.activations.saturating_add(more.0);
        larger.decoded_matrix = workload.decoded_matrix.saturating_add(more.1);
        prop_assert!(total(&gpu, &larger, false) >= total(&gpu, &workload, false));
        prop_assert!(total(&gpu, &workload, true) >= total(&gpu, &workload, false));
    }
}

/// Qwen3 0.6B: about 370 MiB in Q4_K_M.
const QWEN3_600M: Shape = Shape { n_layer: 28, n_embd: 1024, n_ff: 3072, n_head: 16, tied: true, ..QWEN3_8B };

fn plan(gpu: Gpu, headroom: Headroom, wsl: bool) -> Plan {
    let mut machine = Machine::new(Host::new(gib(16))).with_gpu(gpu);
    machine.wsl = wsl;
    let request = Request::new().n_ctx(2048).headroom(headroom);
    crate::plan(&QWEN3_600M.profile(), &machine, &request).unwrap()
}

/// The card has 8 GiB, of which other programs use 7 GiB. A fixed margin of 1 GiB would leave nothing for the model.
#[test]
fn a_small_model_that_fits_into_1_gib_of_free_memory_is_on_the_gpu() {
    let gpu = Gpu::named("RTX 4060").unwrap().free(gib(1));
    for headroom in [Headroom::Tight, Headroom::Default] {
        let plan = plan(gpu.clone(), headroom, false);
        assert!(plan.full_offload, "{headroom:?}: {plan}");
        let taken = plan.gpus().next().unwrap();
        let needed = taken.footprint.total() + taken.headroom.driver + taken.headroom.growth;
        assert!(needed > mib(600) && needed < gib(1), "{plan}");
    }
    // `Cautious` keeps 15 % of the total free. These 1.2 GiB are more than the other programs have left free.
    assert_eq!(plan(gpu, Headroom::Cautious, false).n_gpu_layers, 0);
    // For a card whose name is unknown, the plan leaves memory for a large context of the driver.
    let unknown = plan(Gpu::new("A card").total(gib(8)).free(gib(1)), Headroom::Default, false);
    assert!(unknown.n_gpu_layers > 0 && !unknown.full_offload, "{unknown}");
}

#[test]
fn a_plan_under_wsl_leaves_more_memory_free() {
    let gpu = || Gpu::named("RTX 4060").unwrap();
    let [margin, inside] =
        [false, true].map(|wsl| plan(gpu(), Headroom::Default, wsl).gpus().next().unwrap().headroom.margin);
    assert_eq!(inside, margin + mib(512));
}

#[test]
fn the_bytes_of_a_prompt_store_stay_free_on_the_host() {
    let with = |host: u64, store: u64| {
        let mut request = Request::new().n_ctx(2048);
        request.prompt_store = store;
        crate::plan(&QWEN3_600M.profile(), &Machine::new(Host::new(host)), &request)
    };
    let plan = with(gib(2), gib(1)).unwrap();
    let host = plan.host().unwrap();
    assert_eq!(host.headroom.prompt_store, gib(1));
    assert!(host.footprint.total() + host.headroom.total() <= gib(2), "{plan}");
    assert!(plan.to_string().contains("kept free for stored prompts"), "{plan}");
    // The model fits in half of the host's memory without the store. With the store it does not fit, and the error
    // counts the store.
    assert!(with(gib(1), 0).is_ok());
    assert!(with(gib(1), gib(1) / 2).is_err());
}
