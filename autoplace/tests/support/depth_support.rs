//! Plans with two placements, which cross at a depth that the tests choose. The tests in which models follow the depth
//! use these plans.

use std::path::Path;

use autoplace::gguf::Header;
use autoplace::plan::{Plan, Request, SavedPlan};
use serde_json::json;

/// A saved plan. It begins with the placement `shallow`; from `crossing` live tokens on, it has the placement `deep`.
/// On its own side of the crossing, a placement takes a thousandth of the time of the other placement, which takes a
/// second for each token. So a move is worthwhile even for a prompt of a few tokens.
pub(crate) fn crossing(path: &Path, request: &Request, [shallow, deep]: [&Plan; 2], crossing: u32) -> SavedPlan {
    let (fast, slow) = (0.001, 1.0);
    let at = |depth: u32, here: f64, there: f64| json!({"depth": depth, "token": [here, there], "prompt_token": [here, there]});
    let mut plan = serde_json::to_value(shallow).unwrap();
    plan["by_depth"] = json!({
        "crossing": crossing,
        "is_deeper": true,
        "plan": deep,
        "moving_seconds": 0.001,
        "workload_seconds": 1.0,
        "seconds": [at(0, fast, slow), at(crossing - 1, fast, slow), at(crossing, slow, fast), at(crossing + 1, slow, fast)],
    });
    let plan = serde_json::from_value(plan).unwrap();
    let saved = SavedPlan::new(plan, request.clone(), &Header::open(path).unwrap()).unwrap();
    // The plan is read as from a file. So the values that the tests have chosen must pass the checks.
    SavedPlan::from_json(&saved.to_json().unwrap()).unwrap()
}
