//! A mixture of experts on cards too small for it: our plan is at least as fast as what llama.cpp's own fit chooses there, by the
//! same speed model and with the same bytes left free (`docs/experts.md`).

#[path = "../benches/files/mod.rs"]
mod files;

mod experts_support;

use autoplace::profile::ModelProfile;

use experts_support::CASES;

fn profile() -> ModelProfile {
    let header = files::QWEN3_30B_A3B.builder().header().unwrap();
    ModelProfile::from_header(&header).unwrap()
}

#[test]
fn a_plan_is_at_least_as_fast_as_llama_cpps_own_fit() {
    let profile = profile();
    for case in CASES {
        let plan = case.plan(&profile);
        let ours = case.ours(&profile, &plan);
        let theirs = case.theirs(&profile, &plan, &case.fitted.split());
        assert!(
            ours.is_as_fast_as(&theirs),
            "{} with {} tokens: {ours:?}, the fit {theirs:?}\n{plan}",
            case.card,
            case.context
        );
    }
}

/// So that what is compared is what a plan says of itself, on a card that has room for both.
#[test]
fn plans_are_scored_as_they_say_and_both_placements_fit() {
    let profile = profile();
    for case in CASES {
        let plan = case.plan(&profile);
        let ours = case.ours(&profile, &plan);
        let said = plan.speed.as_ref().unwrap().tokens_per_second;
        let off = ours.tokens_per_second / said - 1.0;
        // What is said may be rounded.
        assert!(off.abs() < 1e-4, "{ours:?} against {said}");
        let gpu = plan.gpus().next().unwrap();
        assert_eq!(ours.card, gpu.footprint);
        assert_eq!(gpu.headroom.total(), case.margin);
        let theirs = case.theirs(&profile, &plan, &case.fitted.split());
        for on_card in [ours.card, theirs.card] {
            assert!(on_card.total() <= gpu.budget, "{on_card:?} of {gpu:?}");
        }
    }
}
