//! How advice is worded, and where it is silent.

use super::change::PerSecond;
use super::{Advice, Change, Effect, Outcome, Pointless};
use crate::plan::Workload;

fn change(kinds: &[&str]) -> Change {
    let kind = |json: &&str| serde_json::from_str(json).unwrap();
    Change {
        kinds: kinds.iter().map(kind).collect(),
        effect: Effect::Fits,
        outcome: Outcome { n_gpu_layers: 81, layers: 81, parted_blocks: 0, full: true, tokens_per_second: Some(19.2) },
        speedup: None,
    }
}

/// What may be changed, as JSON and in words.
const KINDS: &str = r#"
{"kv_type":"Q8_0"} | keys and values as Q8_0
{"context":8192} | a context of 8192 tokens
{"swa_full":false} | sliding windows only (swa_full off)
{"ubatch":256} | 256 tokens computed at once
{"close_process":{"name":"ollama","pid":4711,"gpu":0,"gpu_name":"RTX 4090","bytes":2254438400}} | closing ollama (process 4711), which holds 2.1 GiB of RTX 4090
{"quantisation":{"to":"Q2_K","file_bytes":27917287424}} | Q2_K (26.0 GiB)
{"another_card":{"name":"RTX A6000","gpu":0,"gpu_name":"RTX 4090"}} | RTX A6000 in place of RTX 4090
{"second_card":{"gpu":0,"gpu_name":"RTX 4090"}} | a second RTX 4090
"#;

#[test]
fn each_item_is_a_line_and_plain_data() {
    for case in KINDS.trim().lines() {
        let (json, words) = case.split_once(" | ").unwrap();
        let change = change(&[json]);
        let line = format!("to fit: {words}: all 81 layers, about 19 tok/s");
        assert_eq!(change.to_string(), line);
        assert_eq!(serde_json::to_string(&change.kinds[0]).unwrap(), json);
        let advice = Advice { changes: vec![change], pointless: None, workload: Workload::typical(16384) };
        let text = serde_json::to_string(&advice).unwrap();
        assert_eq!(serde_json::from_str::<Advice>(&text).unwrap(), advice);
    }
}

#[test]
fn what_helps_in_part_says_so() {
    let mut change = change(&[r#"{"kv_type":"Q8_0"}"#, r#"{"context":4096}"#]);
    change.effect = Effect::More;
    change.outcome.full = false;
    change.outcome.n_gpu_layers = 60;
    change.outcome.tokens_per_second = Some(3.94);
    let kinds = "keys and values as Q8_0 and a context of 4096 tokens";
    let line = format!("for more: {kinds}: 60 of 81 layers, about 3.9 tok/s");
    assert_eq!(change.to_string(), line);
    change.effect = Effect::Loads;
    change.outcome.n_gpu_layers = 0;
    change.outcome.tokens_per_second = None;
    change.kinds.truncate(1);
    let line = "to load: keys and values as Q8_0: every layer on the host";
    assert_eq!(change.to_string(), line);
    change.outcome.n_gpu_layers = 81;
    change.outcome.parted_blocks = 12;
    let line = "to load: keys and values as Q8_0: all 81 layers, parts of 12 blocks on the host";
    assert_eq!(change.to_string(), line);
}

#[test]
fn pointless_layers_stand_first_and_no_advice_is_no_line() {
    let advice = Advice {
        changes: vec![change(&[r#"{"context":8192}"#])],
        pointless: Some(Pointless { n_gpu_layers: 4, layers: 81, tokens_per_second: 1.23, all_on_host: 1.18 }),
        workload: Workload::typical(16384),
    };
    assert_eq!(
        advice.to_string(),
        "pointless: 4 of 81 layers on GPUs generate about 1.2 tok/s, the host alone 1.2\n\
         to fit: a context of 8192 tokens: all 81 layers, about 19 tok/s"
    );
    assert_eq!(Advice::default().to_string(), "");
}

#[test]
fn speeds_have_as_many_digits_as_can_be_trusted() {
    for (speed, text) in [(3.94, "3.9"), (9.96, "10"), (19.2, "19")] {
        assert_eq!(PerSecond(speed).to_string(), text);
    }
}
