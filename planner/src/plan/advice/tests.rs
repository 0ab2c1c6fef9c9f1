//! How a change is worded and written.

use super::{Advice, Change, Effect, Outcome};
use crate::plan::Workload;

/// What may be changed, as JSON and in words.
const KINDS: &str = r#"
{"kv_type":"Q8_0"} | keys and values as Q8_0
{"context":8192} | a context of 8192 tokens
{"swa_full":false} | sliding windows only (swa_full off)
{"ubatch":256} | 256 tokens computed at once
{"close_process":{"name":"ollama","pid":4711,"gpu":0,"gpu_name":"RTX 4090","bytes":2254438400}} | closing ollama (process 4711), which holds 2.1 GiB of RTX 4090
{"quantisation":{"to":"Q2_K","file_bytes":27917287424}} | Q2_K (26.0 GiB)
"#;

#[test]
fn each_item_is_a_line_and_plain_data() {
    for case in KINDS.trim().lines() {
        let (json, words) = case.split_once(" | ").unwrap();
        let change = Change {
            kinds: vec![serde_json::from_str(json).unwrap()],
            effect: Effect::Fits,
            outcome: Outcome {
                n_gpu_layers: 81,
                layers: 81,
                parted_blocks: 0,
                full: true,
                tokens_per_second: Some(19.2),
            },
            speedup: None,
        };
        let line = format!("to fit: {words}: all 81 layers, about 19 tok/s");
        assert_eq!(change.to_string(), line);
        assert_eq!(serde_json::to_string(&change.kinds[0]).unwrap(), json);
        let advice = Advice { changes: vec![change], pointless: None, workload: Workload::typical(16384) };
        let text = serde_json::to_string(&advice).unwrap();
        assert_eq!(serde_json::from_str::<Advice>(&text).unwrap(), advice);
    }
}
