//! How advice is worded, and where it is silent.

use super::change::PerSecond;
use super::{Advice, Change, ChangeKind, Effect, Outcome, Pointless};
use crate::machine::{gib, mib};
use crate::memory::KvType;
use crate::plan::Workload;
use crate::profile::Quantisation;

fn outcome() -> Outcome {
    Outcome {
        n_gpu_layers: 81,
        layers: 81,
        parted_blocks: 0,
        full: true,
        tokens_per_second: Some(19.2),
    }
}

fn change(kinds: Vec<ChangeKind>) -> Change {
    Change {
        kinds,
        effect: Effect::Fits,
        outcome: outcome(),
        speedup: None,
    }
}

#[test]
fn each_item_is_a_line() {
    let kinds = [
        (
            ChangeKind::KvType(KvType::Q8_0),
            "to fit: keys and values as Q8_0: all 81 layers, about 19 tok/s",
        ),
        (
            ChangeKind::Context(8192),
            "to fit: a context of 8192 tokens: all 81 layers, about 19 tok/s",
        ),
        (
            ChangeKind::Ubatch(256),
            "to fit: 256 tokens computed at once: all 81 layers, about 19 tok/s",
        ),
        (
            ChangeKind::CloseProcess {
                name: Some("ollama".to_owned()),
                pid: 4711,
                gpu: 0,
                gpu_name: "RTX 4090".to_owned(),
                bytes: mib(2150),
            },
            "to fit: closing ollama (process 4711), which holds 2.1 GiB of RTX 4090: all 81 layers, about 19 tok/s",
        ),
        (
            ChangeKind::Quantisation {
                to: Quantisation::Q2_K,
                file_bytes: gib(26),
            },
            "to fit: Q2_K (26.0 GiB): all 81 layers, about 19 tok/s",
        ),
        (
            ChangeKind::AnotherCard {
                name: "RTX A6000".to_owned(),
                gpu: 0,
                gpu_name: "RTX 4090".to_owned(),
            },
            "to fit: RTX A6000 in place of RTX 4090: all 81 layers, about 19 tok/s",
        ),
        (
            ChangeKind::SecondCard {
                gpu: 0,
                gpu_name: "RTX 4090".to_owned(),
            },
            "to fit: a second RTX 4090: all 81 layers, about 19 tok/s",
        ),
    ];
    for (kind, line) in kinds {
        assert_eq!(change(vec![kind]).to_string(), line);
    }
}

#[test]
fn what_helps_in_part_says_so() {
    let together = vec![ChangeKind::KvType(KvType::Q8_0), ChangeKind::Context(4096)];
    let mut change = change(together);
    change.effect = Effect::More;
    change.outcome.full = false;
    change.outcome.n_gpu_layers = 60;
    change.outcome.tokens_per_second = Some(3.94);
    assert_eq!(
        change.to_string(),
        "for more: keys and values as Q8_0 and a context of 4096 tokens: 60 of 81 layers, about 3.9 tok/s"
    );
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
    let pointless = Pointless {
        n_gpu_layers: 4,
        layers: 81,
        tokens_per_second: 1.23,
        all_on_host: 1.18,
    };
    let advice = Advice {
        changes: vec![change(vec![ChangeKind::Context(8192)])],
        pointless: Some(pointless),
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
fn it_serialises() {
    let advice = Advice {
        changes: vec![change(vec![
            ChangeKind::Context(8192),
            ChangeKind::Quantisation {
                to: Quantisation::IQ2_M,
                file_bytes: 7,
            },
        ])],
        pointless: None,
        workload: Workload::typical(16384),
    };
    let text = serde_json::to_string(&advice).unwrap();
    assert_eq!(serde_json::from_str::<Advice>(&text).unwrap(), advice);
    assert!(text.contains(r#"{"context":8192}"#), "{text}");
}

#[test]
fn speeds_have_as_many_digits_as_can_be_trusted() {
    let print = |speed| PerSecond(speed).to_string();
    assert_eq!(print(3.94), "3.9");
    assert_eq!(print(9.96), "10");
    assert_eq!(print(19.2), "19");
}
