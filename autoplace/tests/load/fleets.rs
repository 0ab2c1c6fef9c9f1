//! Plans on simulated fleets. In each case, a random model is planned, loaded and run, on random cards and with a
//! random request. The bytes that the cards count are exactly those of the plan, and never more than the free memory.
//!
//! The number of a case determines everything in it. `cargo test` runs the first 150 cases. This command runs all
//! 1,000:
//!
//! ```text
//! cargo test -p autoplace --test load fleets:: -- --ignored --nocapture
//! ```

use autoplace::memory::KvType;
use autoplace::plan::PlacementKind;

use crate::fleets_support::{Case, Models, run, run_all};

/// The minimum number of cases of each kind among a thousand cases.
const MIN_PER_THOUSAND: [(&str, u64); 13] = [
    ("loaded", 500),
    ("several GPUs", 100),
    ("three or four GPUs", 15),
    ("all layers on GPUs", 100),
    ("some layers on GPUs", 100),
    ("host only", 50),
    ("host only, GPUs there", 20),
    ("experts or feed-forward matrices on the host", 30),
    ("a single copy of the graph", 10),
    ("cache on the host", 30),
    ("quantised cache", 100),
    ("grown context", 50),
    ("a GPU in the host's memory", 10),
];

fn fleets(cases: u64) {
    let models = Models::write();
    run_all(cases, &MIN_PER_THOUSAND, |number| {
        let case = Case::new(number, &models);
        let model = case.model(&models);
        let outcome = run(&case, &models).map_err(|fault| format!("{}\n    {fault}", case.describe(&models)))?;
        let Some(plan) = outcome else {
            return Ok(vec!["refused".to_owned(), format!("refused: {}", model.title)]);
        };
        let n = plan.gpus().count();
        let params = &plan.context;
        let kinds = [
            true,
            n > 1,
            n > 2,
            n > 0 && plan.full_offload,
            n > 0 && !plan.full_offload,
            n == 0,
            n == 0 && case.has_gpus(),
            plan.split_blocks > 0,
            plan.overrides.iter().any(|rule| rule.pattern == "^$"),
            n > 0 && !params.offload_kqv,
            params.type_k != KvType::F16,
            params.n_ctx > case.request.context.tokens(&model.profile),
            plan.gpus().any(|gpu| gpu.kind == PlacementKind::SharedGpu),
        ];
        let kinds = MIN_PER_THOUSAND.iter().zip(kinds).filter(|(_, holds)| *holds);
        let mut kinds: Vec<String> = kinds.map(|((kind, _), _)| (*kind).to_owned()).collect();
        kinds.extend([format!("{n} GPUs"), format!("loaded: {}", model.title)]);
        Ok(kinds)
    });
}

#[test]
fn cards_count_the_planned_bytes_on_random_fleets() {
    own_process!();
    fleets(150);
}

#[test]
#[ignore = "minutes: the 150 above and 850 more"]
fn cards_count_the_planned_bytes_on_1000_random_fleets() {
    own_process!();
    fleets(1000);
}
