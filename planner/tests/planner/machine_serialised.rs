//! A machine can be written to JSON and read back.

use autoplace_planner::machine::{Gpu, Host, Machine, gib};
use serde_json::{Value, json};

#[test]
fn a_completely_known_machine_is_written_as_it_was_read() {
    // The file has GPUs and bandwidths of every kind.
    let complete: Value = serde_json::from_str(include_str!("machine_serialised.json")).unwrap();
    for limit in [
        json!({ "bound": "stated" }),
        json!({ "bound": "system" }),
        json!({ "bound": "cgroup", "file": "memory.max", "bytes": 5 }),
        json!({ "bound": "address_space", "bytes": 5 }),
        json!({ "bound": "data_segment", "bytes": 5 }),
        json!({ "bound": "memory_nodes", "nodes": "0", "bytes": 5 }),
        json!({ "bound": "unknown" }),
    ] {
        let mut json = complete.clone();
        json["host"]["limit"] = limit;
        let machine = Machine::from_json(&json.to_string()).unwrap();
        let written: Value = serde_json::from_str(&machine.to_json().unwrap()).unwrap();
        assert_eq!(written, json);
    }
    let mut over = complete;
    over["gpus"][1]["pools"]["own"]["free"] = 5.into();
    let error = Machine::from_json(&over.to_string()).unwrap_err().to_string();
    assert!(error.starts_with("gpus[1].pools.own.free is 5"), "{error}");
}

#[test]
fn unknown_facts_are_not_written() {
    let machine = Machine::new(Host::new(gib(64))).with_gpu(Gpu::new("X").total(gib(8)));
    let json = serde_json::to_value(&machine).unwrap();
    let keys = |value: &Value| {
        let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort();
        keys.join(" ")
    };
    assert_eq!(keys(&json), "gpus host");
    assert_eq!(keys(&json["gpus"][0]), "backend description device free kind name pci_id total");
    assert_eq!(keys(&json["host"]), "available limit system_available total");
}
