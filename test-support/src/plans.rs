//! Plans for tests, written by hand.
//!
//! The functions return any type that can be read from a plan's JSON, because this crate does not depend on the
//! planner.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A plan with 20 of 33 layers on a card and the other layers on the host.
pub fn plan<Plan: DeserializeOwned>() -> Plan {
    read(json())
}

/// A plan with 12 layers on the second card and then 8 on the first.
pub fn two_gpus<Plan: DeserializeOwned>() -> Plan {
    let mut plan = json();
    plan["tensor_split"] = json!([12.0, 8.0]);
    let mut second = plan["placements"][0].clone();
    second["name"] = "RTX 4060".into();
    second["device"] = "CUDA1".into();
    second["layers"] = 12.into();
    let placements = plan["placements"].as_array_mut().expect("a list");
    placements[0]["layers"] = 8.into();
    placements.insert(0, second);
    read(plan)
}

/// A plan with no layer on a GPU.
pub fn host_plan<Plan: DeserializeOwned>() -> Plan {
    let mut plan = json();
    plan["n_gpu_layers"] = 0.into();
    plan.as_object_mut().expect("an object").remove("speed");
    let placements = plan["placements"].as_array_mut().expect("a list");
    placements.remove(0);
    placements[0]["layers"] = 33.into();
    read(plan)
}

fn json() -> Value {
    serde_json::from_str(include_str!("plan.json")).expect("a plan in JSON")
}

fn read<Plan: DeserializeOwned>(plan: Value) -> Plan {
    serde_json::from_value(plan).expect("a plan in JSON")
}
