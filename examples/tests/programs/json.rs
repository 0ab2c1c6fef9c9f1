//! Tests of the `json` example: every answer is a value of the type.

use test_support::program::Program;

const JSON: Program = Program("json");

#[test]
fn whatever_the_seed_the_answer_is_a_recipe() {
    for seed in ["1", "2", "3", "4"] {
        let out = JSON.succeeds(&["--seed", seed]);
        let (recipe, total) = out.trim_end().rsplit_once('\n').expect("two parts");
        let recipe: serde_json::Value = serde_json::from_str(recipe).expect("JSON");
        let servings = recipe["servings"].as_u64().expect("a number");
        assert!((1..=12).contains(&servings), "{recipe}");
        let parts = recipe["ingredients"].as_array().expect("a list");
        assert!((1..=4).contains(&parts.len()), "{recipe}");
        let grams: u64 = parts.iter().filter_map(|part| part["grams"].as_u64()).sum();
        assert_eq!(total, format!("{grams} g in all, for {servings}"));
    }
}
