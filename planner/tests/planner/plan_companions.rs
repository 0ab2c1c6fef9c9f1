//! Companions of the model. A plan keeps memory free for them.

use std::sync::LazyLock;

use autoplace_planner::machine::{Machine, gib, mib};
use autoplace_planner::memory::companion::DraftOptions;
use autoplace_planner::memory::{Companion, KvType};
use autoplace_planner::plan::{Context, Error, HostParts, Plan, PlannedCompanion, Planner, Request};
use autoplace_planner::profile::ModelProfile;

use crate::machine;
use test_support::shapes::{LLAMA_8B, Shape};
use test_support::synthetic::mmproj;

static LLAMA_8B_PROFILE: LazyLock<ModelProfile> = LazyLock::new(|| LLAMA_8B.profile());

/// A draft with the same vocabulary.
fn draft() -> Companion {
    let shape = Shape { n_layer: 4, n_embd: 512, n_ff: 2048, n_head: 8, n_head_kv: 2, head_dim: 64, ..LLAMA_8B };
    Companion::draft(&shape.header()).unwrap()
}

/// Plans Llama 8B with the draft.
fn plan(machine: &Machine, request: Request) -> Result<Plan, Error> {
    Planner::new(&LLAMA_8B.profile(), machine).request(request).beside(draft()).plan()
}

#[test]
fn a_draft_takes_room_on_the_gpu_and_layers_make_way_for_it() {
    let machine = machine(gib(64), &[gib(5)]);
    let request = Request::new().host_parts(HostParts::None);
    let alone = crate::plan(&LLAMA_8B.profile(), &machine, &request).unwrap();
    let both = plan(&machine, request).unwrap();
    assert!(both.n_gpu_layers < alone.n_gpu_layers, "{both}");
    let companion = &both.companions[0];
    assert_eq!(companion.gpu.as_deref(), Some("card 0"));
    let card = both.gpus().next().unwrap();
    assert_eq!(card.free, gib(5));
    assert!(card.companions >= companion.bytes.gpu.total());
    let all = card.footprint.total() + card.companions + card.headroom.total();
    assert!(all <= card.free, "{both}");
    assert_eq!(card.budget, card.free - card.companions - card.headroom.total());
    assert!(both.notes.iter().any(|note| note.contains("on card 0")), "{both}");
    let text = serde_json::to_string(&both).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), both);
}

#[test]
fn a_draft_goes_to_the_gpu_on_which_it_costs_least() {
    // The model fills the first card, and the draft fits on the second.
    let both = plan(&machine(gib(64), &[gib(5) + mib(700), mib(1500)]), Request::new()).unwrap();
    assert!(both.full_offload, "{both}");
    assert_eq!(both.companions[0].gpu.as_deref(), Some("card 1"));
}

#[test]
fn a_draft_without_room_on_a_gpu_goes_to_the_host() {
    let both = plan(&machine(gib(64), &[mib(300)]), Request::new()).unwrap();
    assert_eq!(both.companions[0].gpu, None);
    let host = both.host().unwrap();
    assert_eq!(host.free, gib(64));
    assert!(host.companions > 0);
}

#[test]
fn a_draft_has_the_stated_device_and_number_of_layers() {
    let machine = machine(gib(64), &[gib(20), gib(20)]);
    let with = |set: &dyn Fn(&mut DraftOptions)| {
        let mut options = DraftOptions::default();
        set(&mut options);
        let planner = Planner::new(&LLAMA_8B_PROFILE, &machine).request(Request::new().n_ctx(8192));
        planner.beside(draft().draft_options(options)).plan()
    };
    let on = |set: &dyn Fn(&mut DraftOptions)| with(set).unwrap().companions.remove(0);
    let given = on(&|_| {});
    for name in ["card 1", "CARD 1"] {
        let stated = on(&|options| options.device = Some(name.to_owned()));
        assert_eq!((stated.gpu.as_deref(), stated.bytes), (Some("card 1"), given.bytes));
    }
    let error = with(&|options| options.device = Some("card 7".to_owned())).unwrap_err().to_string();
    assert!(error.contains("`card 7`, which this machine lacks: there are card 0, card 1"), "{error}");
    for host in [
        on(&|options| options.device = Some(DraftOptions::HOST.to_owned())),
        on(&|options| options.n_gpu_layers = Some(0)),
    ] {
        assert_eq!((host.gpu, host.bytes.gpu.total()), (None, 0));
    }
    // The first request is for two of five layers, including the output layer. The next one is for more layers than the
    // draft has.
    let two = on(&|options| options.n_gpu_layers = Some(2));
    assert!(two.bytes.gpu.weights < given.bytes.gpu.weights && two.bytes.gpu.kv * 4 == given.bytes.gpu.kv, "{two:?}");
    assert_eq!(two.bytes.gpu.kv + two.bytes.host.kv, given.bytes.gpu.kv);
    assert_eq!(on(&|options| options.n_gpu_layers = Some(99)).bytes, given.bytes);
    // In Q8_0, 32 elements take 34 bytes instead of 64. Each layer has a matrix of 64 x 64 floats that rotates keys and
    // another one for values. The backend's padding is added.
    let small = on(&|options| (options.type_k, options.type_v) = (Some(KvType::Q8_0), Some(KvType::Q8_0)));
    let packed = given.bytes.gpu.kv / 64 * 34 + 4 * 2 * (4 * 64 * 64);
    assert!((packed..packed + 16_384).contains(&small.bytes.gpu.kv), "{small:?}");
    // A saved plan has the stated options.
    let text = serde_json::to_string(&small).unwrap();
    assert_eq!(serde_json::from_str::<PlannedCompanion>(&text).unwrap(), small);
    assert_eq!(small.draft.type_k, Some(KvType::Q8_0));
    assert!(!serde_json::to_string(&given).unwrap().contains("type_k"));
}

#[test]
fn stated_layers_of_a_draft_that_fit_on_no_gpu_are_an_error() {
    let machine = machine(gib(64), &[mib(300)]);
    let planned = |layers| {
        let mut options = DraftOptions::default();
        options.n_gpu_layers = layers;
        Planner::new(&LLAMA_8B_PROFILE, &machine).beside(draft().draft_options(options)).plan()
    };
    assert_eq!(planned(None).unwrap().companions[0].gpu, None);
    assert!(matches!(planned(Some(5)), Err(Error::Beside { .. })));
    // On a machine without a GPU, the stated number of GPU layers has no effect.
    let alone = crate::machine(gib(64), &[]);
    let mut options = DraftOptions::default();
    options.n_gpu_layers = Some(5);
    let plan = Planner::new(&LLAMA_8B_PROFILE, &alone).beside(draft().draft_options(options)).plan().unwrap();
    assert_eq!(plan.companions[0].gpu, None);
}

#[test]
fn a_longer_context_also_makes_the_draft_larger() {
    let planned = |context| plan(&machine(gib(64), &[gib(20)]), Request::new().context(context)).unwrap();
    let taken = |n_ctx| planned(Context::Tokens(n_ctx)).gpus().next().unwrap().companions;
    assert!(taken(32_768) > taken(4096));
    // The draft's cache was counted for the smallest context, so the context keeps this size.
    assert_eq!(planned(Context::AtLeast(8192)).context.n_ctx, 8192);
}

#[test]
fn the_error_says_that_model_and_draft_do_not_fit_together() {
    let mut machine = machine(gib(64), &[mib(300)]);
    // The host has enough memory for the model alone, but not for the model and the draft.
    machine.host.available = mib(6000);
    assert!(crate::plan(&LLAMA_8B.profile(), &machine, &Request::new()).is_ok());
    let error = plan(&machine, Request::new()).unwrap_err();
    assert!(matches!(error, Error::Beside { .. }), "{error}");
    assert!(error.to_string().contains("beside the model"), "{error}");
    // The advice is in the inner error. First there is none, and then `advised` adds it.
    assert!(error.advice().is_none());
    let planner = Planner::new(&LLAMA_8B_PROFILE, &machine).beside(draft());
    let advised = planner.advised(error);
    assert!(advised.advice().is_some(), "{advised}");
}

#[test]
fn an_image_with_non_causal_rows_raises_the_ubatch_and_its_minimum() {
    let machine = machine(gib(64), &[gib(20)]);
    let eyes = || Companion::mmproj(&mmproj::gemma3(4096).header().unwrap()).unwrap();
    let plan = |request: Request| Planner::new(&LLAMA_8B_PROFILE, &machine).request(request).beside(eyes()).plan();
    assert_eq!(eyes().rows_at_once(), Some(256));
    let raised = plan(Request::new().n_ubatch(128)).unwrap();
    assert_eq!(raised.context.n_ubatch, 256);
    assert!(raised.notes.iter().any(|note| note.contains("up to 256 rows")), "{raised}");
    let chosen = plan(Request::new().min_ubatch(64)).unwrap();
    assert!(chosen.context.n_ubatch >= 256, "{chosen}");
    let usual = plan(Request::new()).unwrap();
    assert!(!usual.notes.iter().any(|note| note.contains("rows")), "{usual}");
    // The rows of LLaVA's images are computed like tokens.
    let causal = Companion::mmproj(&mmproj::named("LLaVA 1.5").header().unwrap()).unwrap();
    assert_eq!(causal.rows_at_once(), None);
}
