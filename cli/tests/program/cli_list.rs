//! The output of `autoplace list`, for people and for scripts.

use std::fs;

use crate::cli_support::{User, demo};

#[test]
fn models_of_a_folder_are_listed_with_layers_and_speed_and_copies_are_marked() {
    let user = User::new();
    let folder = user.path("models");
    fs::create_dir_all(folder.join("copy")).unwrap();
    for file in ["demo.gguf", "copy/demo.gguf"] {
        fs::copy(demo(), folder.join(file)).unwrap();
    }
    fs::write(folder.join("page.gguf"), "<!doctype html>").unwrap();
    let folder = folder.to_str().unwrap();
    let words = user.says(&["list", folder]);
    assert_eq!(words.matches("(the same as ").count(), 1, "{words}");
    assert!(words.contains("tok/s") && words.contains("speeds are predicted, from "), "{words}");
    assert!(words.contains("page.gguf: not a GGUF file"), "{words}");
    let json = user.json(&["list", folder]);
    let models = json["models"].as_array().unwrap();
    assert_eq!((models.len(), &json["duplicates"]), (2, &serde_json::json!([[0, 1]])));
    for model in models {
        assert_eq!(model["bytes"], fs::metadata(demo()).unwrap().len());
        assert!(model["placed"]["tokens_per_second"].as_f64().unwrap() > 0.0, "{model}");
    }
    assert_eq!(json["skipped"][0]["problem"], true);
    user.fails(&["list", &format!("{folder}/gone")], 1, &["gone", "cannot be read"]);
}

#[test]
fn a_whole_model_that_is_named_like_a_shard_is_listed_as_one() {
    let user = User::new();
    let folder = user.path("models");
    fs::create_dir_all(&folder).unwrap();
    for file in ["demo-00001-of-00002.gguf", "other-00002-of-00002.gguf"] {
        fs::copy(demo(), folder.join(file)).unwrap();
    }
    let json = user.json(&["list", folder.to_str().unwrap()]);
    let names = json["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["demo-00001-of-00002", "other-00002-of-00002"]);
    assert!(json["models"][0]["placed"]["layers"].as_u64().unwrap() > 1, "{json}");
    assert_eq!(json["skipped"], serde_json::json!([]));
}
