//! Plans in files, valid and invalid: a file may contain anything.

use proptest::prelude::{any, prop, prop_assert, proptest};
use serde_json::{Value, json};

use crate::gguf::{Builder, TensorType};
use crate::machine::{Gpu, Host, Machine, gib, mib};
use crate::plan::{Plan, Request};

use super::{SavedPlan, SavedPlanError};
use test_support::plans::{plan, two_gpus};

/// [`plan`] as a saved plan of a model.
pub(super) fn saved() -> SavedPlan {
    save(plan())
}

/// A machine on which the plan fits.
pub(super) fn machine() -> Machine {
    let card = Gpu::new("RTX 3050").total(gib(6)).free(mib(5632)).device("CUDA0");
    Machine::new(Host::new(gib(32)).available(gib(24))).with_gpu(card)
}

fn save(plan: Plan) -> SavedPlan {
    let header = Builder::new("llama")
        .str("general.name", "Llama 8B")
        .tensor("output.weight", TensorType::F32, &[4, 2])
        .header()
        .unwrap();
    SavedPlan::new(plan, Request::new(), &header).unwrap()
}

fn json_of(saved: &SavedPlan) -> Value {
    serde_json::from_str(&saved.to_json().unwrap()).unwrap()
}

#[track_caller]
fn refused(json: &Value) -> String {
    SavedPlan::from_json(&json.to_string()).unwrap_err().to_string()
}

#[test]
fn errors_name_the_wrong_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.json");
    let written = saved();
    written.write(&file).unwrap();
    assert_eq!(SavedPlan::read(&file).unwrap(), written);
    let (too_long, deep) = (" ".repeat(5 << 20), "[".repeat(100_000));
    let twice = written.to_json().unwrap().repeat(2);
    for (content, words) in [
        (None, ""),
        (Some("{"), "EOF while parsing an object at line 1 column 1"),
        (Some("name = \"x\"\n"), "expected ident at line 1 column 2"),
        (Some("GGUF\u{3}\u{0}"), "it is a GGUF file"),
        (Some("\u{0}"), "expected value"),
        (Some("[]"), "invalid length 0"),
        (Some("{\"version\": 1}"), "missing field"),
        (Some(&deep), "recursion limit"),
        (Some(&twice), "trailing"),
        (Some(&too_long), "which no saved plan or machine has"),
    ] {
        let _ = std::fs::remove_file(&file);
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let error = SavedPlan::read(&file).unwrap_err().to_string();
        assert!(error.starts_with(&file.display().to_string()), "{error}");
        assert!(error.contains(words), "{error}");
        assert_eq!(
            error.ends_with("; a plan is a file that `autoplace plan --save` writes"),
            content.is_some(),
            "{error}"
        );
    }
    std::fs::write(&file, b"{\"made_by\": \"\xff\"}").unwrap();
    let error = SavedPlan::read(&file).unwrap_err().to_string();
    assert!(error.contains("byte 13 is not text in UTF-8; a plan is a file"), "{error}");
}

#[test]
fn unknown_keys_are_ignored_and_a_newer_format_version_is_refused() {
    let mut json = json_of(&saved());
    assert_eq!(json["version"], 1);
    json["weather"] = "fine".into();
    json["plan"]["colour"] = "green".into();
    assert_eq!(SavedPlan::from_json(&json.to_string()).unwrap(), saved());
    for version in [0, 2] {
        json["version"] = version.into();
        assert!(refused(&json).starts_with(&format!("version is {version}")));
    }
}

#[test]
fn a_key_of_an_earlier_version_is_read() {
    let mut json = json_of(&saved());
    let blocks = json["plan"].as_object_mut().unwrap().remove("split_blocks").unwrap();
    json["plan"]["parted_blocks"] = blocks;
    assert_eq!(SavedPlan::from_json(&json.to_string()).unwrap(), saved());
    json["plan"]["parted_blocks"] = 33.into();
    assert!(refused(&json).starts_with("plan.split_blocks is 33"));
    json["plan"]["parted_blocks"] = "x".into();
    assert!(refused(&json).starts_with("plan.parted_blocks: invalid type"), "{}", refused(&json));
    json["plan"].as_object_mut().unwrap().remove("parted_blocks");
    assert_eq!(SavedPlan::from_json(&json.to_string()).unwrap(), saved());
}

#[test]
fn an_earlier_version_reads_the_number_of_split_blocks_under_its_key() {
    /// The key as earlier versions read it.
    #[derive(serde::Deserialize)]
    struct Earlier {
        #[serde(default)]
        parted_blocks: u32,
    }
    for blocks in [0, 3] {
        let split = save(Plan { split_blocks: blocks, ..plan() });
        let json = json_of(&split);
        assert_eq!(json["plan"]["split_blocks"], blocks);
        assert_eq!(serde_json::from_value::<Earlier>(json["plan"].clone()).unwrap().parted_blocks, blocks);
        assert_eq!(SavedPlan::from_json(&json.to_string()).unwrap(), split);
    }
}

/// Each line: a JSON pointer into a saved plan, a value to put there, and a part of the error.
const INVALID_FIELDS: &str = r#"
/plan/context/n_ctx           | 0                                   | plan.context.n_ctx is 0
/plan/context/n_ctx           | 4294967295                          | plan.context.n_ctx is 4294967295
/plan/context/type_k          | "Q9"                                | plan.context.type_k: unknown variant
/plan/n_gpu_layers            | 1000000000                          | plan.n_gpu_layers is 1000000000
/plan/n_gpu_layers            | -1                                  | plan.n_gpu_layers: invalid value
/plan/n_gpu_layers            | 19                                  | plan.placements have 20 layers
/plan/split_blocks            | 33                                  | plan.split_blocks is 33
/plan/split_blocks            | -1                                  | plan.split_blocks: invalid value: integer `-1`
/plan/split_blocks            | null                                | plan.split_blocks: invalid type: null
/plan/model/blocks            | 1000000000                          | plan.model.blocks is 1000000000
/plan/model/blocks            | 4294967295                          | plan.model.blocks is 4294967295
/plan/model/blocks            | 0                                   | plan.model.blocks is 0
/plan/tensor_split            | [1.0, 2.0]                          | plan.tensor_split has 2 proportions for 1 GPUs
/plan/tensor_split            | [-1.0]                              | plan.tensor_split[0] is -1
/plan/tensor_split            | [null]                              | plan.tensor_split[0]: invalid type
/plan/tensor_split            | [1e300]                             | plan.tensor_split[0]: number out of range
/plan/tensor_split            | [0.0]                               | plan.tensor_split is 0 everywhere
/plan/overrides               | [{"pattern": "(", "place": "host"}] | plan.overrides: tensor_buft_overrides `(`: 
/plan/overrides               | [{"pattern": "a", "place": {"gpu": 1}}] | plan.overrides: tensor_buft_overrides `a`: there is no GPU 1: there are 1
/plan/placements              | []                                  | plan.placements is empty
/plan/placements/0/device     | ""                                  | plan.placements[0].device is not a valid device name
/plan/placements/0/device     | "a\nb"                              | a string contains a control character
/plan/model/name              | "\u009b2J"                          | a string contains a control character
/plan/notes                   | ["\u001b[2J"]                       | a string contains a control character
/plan/notes                   | [[{"\u001B": 1}]]                   | a string contains a control character
/plan/placements/0/device     | "<257 times x>"                     | plan.placements[0].device is not a valid device name
/plan/placements/0/kind       | "host"                              | plan.placements[0].kind is the host's
/plan/placements/1/kind       | "gpu"                               | plan.placements ends with a GPU
/plan/placements/0/free       | 18446744073709551615                | plan.placements[0].free is
/plan/placements/0/layers     | 4294967295                          | plan.placements have 4294967295 layers
/plan/speed/curve             | [1.0]                               | plan.speed.curve has 1 points
/model/header                 | "xyz"                               | model.header is not 32
/model/file_bytes             | []                                  | model.file_bytes is empty
/request/params/n_batch       | 0                                   | request.params.n_batch is 0
/request/policy               | "luck"                              | request.policy: unknown variant
/made_by                      | 1                                   | made_by: invalid type
"#;

#[test]
fn an_invalid_field_is_named() {
    for case in INVALID_FIELDS.trim().lines() {
        let [place, value, words] = case.splitn(3, '|').collect::<Vec<_>>()[..] else {
            panic!("{case}");
        };
        let value = value.replace("<257 times x>", &"x".repeat(257));
        let mut json = json_of(&saved());
        json["plan"]["overrides"] = json!([]);
        *json.pointer_mut(place.trim()).unwrap() = serde_json::from_str(&value).unwrap();
        let text = refused(&json);
        assert!(text.contains(words.trim()), "{place}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn two_gpus_need_two_names_and_two_proportions() {
    let mut json = json_of(&save(two_gpus()));
    json["plan"]["placements"][1]["device"] = "CUDA1".into();
    assert!(refused(&json).contains("plan.placements[1].device is CUDA1, which occurs twice"));
    json["plan"]["placements"][1]["device"] = "CUDA0".into();
    json["plan"]["tensor_split"] = json!([]);
    assert!(refused(&json).contains("plan.tensor_split has 0 proportions for 2 GPUs"));
}

#[test]
fn two_placements_are_read_back_and_an_invalid_one_is_named() {
    let at = |depth: u32, token: f64| json!({"depth": depth, "token": [token, 1.0], "prompt_token": [0.1, 0.1]});
    let mut json = json_of(&saved());
    let mut other = json["plan"].clone();
    other["notes"] = json!(["the other one"]);
    json["plan"]["by_depth"] = json!({
        "crossing": 1000, "is_deeper": true, "plan": other, "seconds": [at(0, 0.5), at(8192, 4.0)],
        "moving_seconds": 3.0, "workload_seconds": 100.0,
    });
    let both = SavedPlan::from_json(&json.to_string()).unwrap();
    assert_eq!(both.plan.other().unwrap().notes, ["the other one"]);
    assert_eq!(SavedPlan::from_json(&both.to_json().unwrap()).unwrap(), both);
    for (place, value, words) in [
        ("/crossing", json!(8193), "plan.by_depth.crossing is 8193, but the context has 8192 tokens"),
        ("/seconds", json!([]), "plan.by_depth.seconds has 0 points"),
        ("/seconds/1/depth", json!(0), "plan.by_depth.seconds has depths that do not ascend"),
        ("/seconds/1/token/0", json!(-1.0), "-1 is not a time"),
        ("/seconds/1/token/0", json!(1e300), "is not a time"),
        ("/moving_seconds", json!(-0.5), "is not a time"),
        ("/plan/placements", json!([]), "plan.by_depth.plan.placements is empty"),
        ("/plan/n_gpu_layers", json!(19), "plan.by_depth.plan.placements have 20 layers"),
        ("/plan/context/n_ctx", json!(4096), "plan.by_depth.plan.context is not that of the plan"),
        ("/plan/by_depth", json["plan"]["by_depth"].clone(), "plan.by_depth.plan.by_depth: a plan has two"),
    ] {
        let mut json = json.clone();
        let by_depth = json.pointer_mut("/plan/by_depth").unwrap();
        match by_depth.pointer_mut(place) {
            Some(field) => *field = value,
            None => by_depth["plan"]["by_depth"] = value,
        }
        let text = refused(&json);
        assert!(text.contains(words), "{place}: {text}");
    }
}

#[test]
fn another_model_is_refused_and_both_are_named() {
    let other = Builder::new("llama").str("general.name", "Qwen 4B");
    let error = saved().check_model(&other.header().unwrap()).unwrap_err();
    assert!(matches!(error, SavedPlanError::OtherModel { .. }));
    let text = error.to_string();
    assert!(text.contains("Llama 8B (") && text.contains("Qwen 4B ("), "{text}");
}

/// Adds a JSON pointer to every value within `value`.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                pointers(value, &format!("{at}/{key}"), all);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                pointers(value, &format!("{at}/{index}"), all);
            }
        }
        _ => {}
    }
}

proptest! {
    /// Replaces one value by another. The file is then either refused with an error of one line, or a valid plan that
    /// survives another round trip.
    #[test]
    fn no_invalid_value_passes_the_check(
        place in any::<prop::sample::Index>(),
        choice in any::<prop::sample::Index>(),
    ) {
        let mut json = json_of(&save(two_gpus()));
        let mut all = Vec::new();
        pointers(&json, "", &mut all);
        let values = [
            json!(null), json!(0), json!(1), json!(-1), json!(0.5), json!(1e300), json!(u64::MAX), json!(u32::MAX), json!(1_000_000_000),
            json!(""), json!("a\nb"), json!("CUDA0"), json!([]), json!({}), json!([[]]), json!(true), json!("x".repeat(1000)),
        ];
        let place: &String = place.get(&all);
        *json.pointer_mut(place).unwrap() = choice.get(&values).clone();
        match SavedPlan::from_json(&json.to_string()) {
            Err(error) => prop_assert!(error.to_string().lines().count() == 1, "{}", error),
            Ok(saved) => {
                let plan = &saved.plan;
                prop_assert!(saved.check().is_ok());
                prop_assert!(plan.n_gpu_layers <= plan.layers() && plan.layers() <= 513);
                prop_assert!(plan.context.sizes().is_ok());
                prop_assert!(plan.tensor_split.iter().all(|share| share.is_finite()));
                let text = saved.to_json().unwrap();
                prop_assert!(SavedPlan::from_json(&text).unwrap() == saved);
                let _ = saved.changes(&machine());
            }
        }
    }
}
