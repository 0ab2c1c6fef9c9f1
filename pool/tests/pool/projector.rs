//! The bytes that a projector takes beside a model of a pool.

use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::memory::Companion;
use autoplace::plan::{GpuLayers, Planner, Request};
use autoplace::profile::ModelProfile;
use autoplace_pool::HeldBytes;
use test_support::synthetic::mmproj;
use test_support::synthetic::shapes::LLAMA_8B;

#[test]
fn a_projector_is_counted_on_its_card_also_where_no_layer_of_the_model_is() {
    let card = Gpu::named("RTX 4090").unwrap().free(gib(20));
    let machine = Machine::new(Host::new(gib(64))).with_gpu(card);
    let header = LLAMA_8B.builder().header().unwrap();
    let profile = ModelProfile::from_header(&header).unwrap();
    let projector = mmproj::named("LLaVA 1.5").header().unwrap();
    for layers in [GpuLayers::All, GpuLayers::Exactly(0)] {
        let mut request = Request::new().n_ctx(4096);
        request.gpu_layers = layers;
        let plan = |beside: bool| {
            let planner = Planner::new(&profile, &machine).request(request.clone());
            let companion = Companion::mmproj(&projector).unwrap();
            if beside { planner.beside(companion) } else { planner }.plan().unwrap()
        };
        let (with, without) = (plan(true), plan(false));
        let [companion] = &with.companions[..] else { panic!("{with}") };
        assert!(companion.gpu.is_some(), "{with}");
        let of = |plan| HeldBytes::from_plan(plan, &machine).gpus[0];
        // The difference may also contain some bytes of headroom for the projector.
        let more = of(&with) - of(&without);
        assert!(more >= companion.bytes.gpu.total() && more < gib(2), "{layers:?}: {more} of {companion:?}");
    }
}
