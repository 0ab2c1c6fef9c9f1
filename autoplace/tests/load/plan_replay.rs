//! A saved plan is followed exactly, or it is refused with a list of the changes. The tests make real loads on
//! simulated GPUs.

use crate::sim_support::card;
use autoplace::gguf::Header;
use autoplace::machine::mib;
use autoplace::memory::{Headroom, Place, TensorOverride};
use autoplace::plan::{MachineChange, Plan, Request, SavedPlan, SavedPlanError};
use autoplace::{Model, ModelBuilder, load};
use test_support::demo_path;
use test_support::tiny::tiny_llama;

fn request() -> Request {
    Request::new().headroom(Headroom::Bytes(0))
}

fn builder() -> ModelBuilder {
    Model::builder(demo_path()).request(request()).n_threads(1)
}

/// A builder with no settings, because a saved plan contains all of them.
fn by_plan() -> ModelBuilder {
    Model::builder(demo_path()).n_threads(1)
}

/// A plan for the demo model on the machine as it is now.
fn saved() -> SavedPlan {
    save(builder().plan().unwrap())
}

fn save(plan: Plan) -> SavedPlan {
    SavedPlan::new(plan, request(), &Header::open(demo_path()).unwrap()).unwrap()
}

#[track_caller]
fn changes(result: Result<Plan, load::Error>) -> Vec<MachineChange> {
    match result.unwrap_err() {
        load::Error::SavedPlan(SavedPlanError::Changed { changes, .. }) => changes,
        other => panic!("{other}"),
    }
}

#[test]
fn a_plan_is_loaded_from_its_file_exactly_and_each_card_gets_its_layers() {
    own_process!();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    for n in [1, 2] {
        let cards: Vec<_> = (0..n).map(|_| card(mib(8))).collect();
        let saved = saved();
        assert_eq!(saved.plan.gpus().count(), n, "{}", saved.plan);
        assert!(n > 1 || !saved.plan.full_offload, "{}", saved.plan);
        saved.write(&file).unwrap();
        let model = by_plan().follow(SavedPlan::read(&file).unwrap()).load().unwrap();
        assert_eq!(*model.placement(), saved.plan);
        for (card, gpu) in cards.iter().zip(saved.plan.gpus()) {
            assert_eq!(card.used(), gpu.footprint.total());
        }
        assert!(!model.generate("And it came to pass").max_tokens(8).text().unwrap().is_empty());
    }
    // Other settings would have no effect. They are not dropped silently, but refused.
    for asked in [by_plan().n_ctx(128), by_plan().mtp(true), by_plan().draft(demo_path())] {
        assert_matches!(asked.follow(saved()).plan(), Err(load::Error::Conflict { late }) if late == "follow");
    }
    let twice = by_plan().n_ctx(128).request(request()).plan();
    assert_matches!(twice, Err(load::Error::Conflict { late }) if late == "request");
}

#[test]
fn a_card_that_is_gone_is_named_and_a_larger_one_will_do() {
    own_process!();
    let gpu = card(mib(64));
    let saved = saved();
    drop(gpu);
    let found = changes(by_plan().follow(saved.clone()).plan());
    assert_matches!(found[..], [MachineChange::GpuGone { .. }]);
    let _gpu = card(mib(96));
    assert_eq!(by_plan().follow(saved.clone()).plan().unwrap(), saved.plan);
}

#[test]
fn a_plan_that_no_longer_fits_is_planned_again_if_allowed() {
    own_process!();
    let gpu = card(mib(8));
    let saved = saved();
    let layers = saved.plan.n_gpu_layers;
    let replanned = |saved: &SavedPlan| by_plan().follow_or_replan(saved.clone()).load().unwrap().placement();
    // As long as the plan fits, it is followed.
    assert_eq!(*replanned(&saved), saved.plan);
    gpu.set_taken(mib(4));
    let plan = replanned(&saved);
    assert!(plan.n_gpu_layers < layers, "{plan}");
    let note = plan.notes.iter().find(|note| note.contains("planned again")).unwrap();
    assert!(note.contains("cannot be followed") && note.contains("SIM card"), "{note}");
    drop(gpu);
    assert_eq!(replanned(&saved).n_gpu_layers, 0);

    // If a plan uses only the host, and is planned again, the cards of the machine are used.
    let mut on_host = save(builder().n_gpu_layers(0).plan().unwrap());
    on_host.request = request();
    on_host.plan.placements[0].footprint.weights = 1 << 50;
    let _gpu = card(mib(64));
    assert!(replanned(&on_host).n_gpu_layers > 0);
}

#[test]
fn room_for_a_file_that_is_not_known_is_not_planned_again() {
    own_process!();
    let gpu = card(mib(256));
    let saved = save(builder().draft(demo_path()).plan().unwrap());
    gpu.set_taken(mib(250));
    // The file of the draft model is not given.
    let found = changes(by_plan().follow_or_replan(saved.clone()).plan());
    assert_matches!(found[..], [MachineChange::LessFree { .. }]);
    let plan = by_plan().draft(demo_path()).follow_or_replan(saved).plan().unwrap();
    assert!(plan.notes.iter().any(|note| note.contains("planned again")), "{plan}");
}

#[test]
fn room_for_companions_is_requested_too() {
    own_process!();
    let gpu = card(mib(256));
    let saved = save(builder().draft(demo_path()).plan().unwrap());
    let placement = saved.plan.gpus().next().unwrap();
    assert!(placement.companions > 0, "{}", saved.plan);
    assert_eq!(saved.changes(&load::detect().unwrap()), []);
    // The free memory is exactly enough for the model by itself.
    gpu.set_taken(gpu.total() - placement.footprint.total() - placement.headroom.total());
    let found = changes(by_plan().follow(saved).plan());
    assert_matches!(found[..], [MachineChange::LessFree { .. }]);
}

#[test]
fn a_plan_of_another_model_or_changed_by_hand_is_refused_as_one_from_a_file() {
    own_process!();
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.gguf");
    tiny_llama().write_sparse(&other).unwrap();
    let error = Model::builder(&other).follow(saved()).load().unwrap_err();
    assert_matches!(error, load::Error::SavedPlan(SavedPlanError::OtherModel { .. }));
    let refused = |change: fn(&mut Plan)| {
        let mut saved = saved();
        change(&mut saved.plan);
        by_plan().follow(saved).load().unwrap_err().to_string()
    };
    let error = refused(|plan| plan.context.n_ctx = 0);
    assert!(error.contains("plan.context.n_ctx is 0"), "{error}");
    let error = refused(|plan| plan.model.blocks = 7);
    assert_eq!(error, "plan.model.blocks is 7, but the model has 6");
}

#[test]
fn weights_that_were_moved_to_the_host_are_moved_again() {
    own_process!();
    let gpu = card(mib(64));
    let mut saved = saved();
    let whole = saved.plan.gpus().next().unwrap().footprint.weights;
    let moved = TensorOverride::new(r"blk\.[0-2]\.ffn_", Place::Host);
    saved.plan.overrides = vec![moved.clone()];
    let model = by_plan().follow(saved.clone()).load().unwrap();
    let held = model.allocated().gpus[0].weights;
    assert!(held < whole, "{held} of {whole}");
    assert!(gpu.used() < mib(64));
    drop(model);

    // With this pattern, llama.cpp itself would search for hours.
    let hours = TensorOverride::new("(.|.|.|..)+!", Place::Gpu(0));
    saved.plan.overrides = vec![hours, moved];
    assert_eq!(by_plan().follow(saved).load().unwrap().allocated().gpus[0].weights, held);
}

/// Changes every number and every flag in the parameters of the plan, one after the other. If the checks accept a
/// change, the result is a plan, or an error from llama.cpp or from us. The process never ends.
#[test]
fn numbers_that_were_changed_by_hand_end_in_an_error_or_a_plan() {
    own_process!();
    let _gpu = card(mib(64));
    let json: serde_json::Value = serde_json::from_str(&saved().to_json().unwrap()).unwrap();
    // The new values, written as JSON.
    let values = r#"0 1 3 257 100000 999999999 2147483647 4294967295 false true "on" "off" "Q4_0" "F32" [1.0] [1e-30]"#;
    let values: Vec<serde_json::Value> = values.split(' ').map(|value| serde_json::from_str(value).unwrap()).collect();
    let mut outcomes = [0; 3];
    let fields = json["plan"]["context"].as_object().unwrap().keys().map(|key| format!("/plan/context/{key}"));
    let others = ["n_gpu_layers", "tensor_split", "split_blocks"];
    for pointer in fields.chain(others.map(|key| format!("/plan/{key}"))) {
        for value in &values {
            let mut json = json.clone();
            *json.pointer_mut(&pointer).unwrap() = value.clone();
            let Ok(saved) = SavedPlan::from_json(&json.to_string()) else {
                outcomes[0] += 1;
                continue;
            };
            match by_plan().follow(saved).plan() {
                Err(_) => outcomes[1] += 1,
                Ok(_) => outcomes[2] += 1,
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count >= 10), "{outcomes:?}");
}
