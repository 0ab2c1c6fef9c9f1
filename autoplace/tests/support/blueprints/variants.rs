//! Which models are made of an architecture, and what each says of itself.

use autoplace::gguf::TensorType;

use super::Blueprint;
use super::decisions::head_of_decisions;
use super::dims::dims;
use super::header::keys;
use super::keys::Keys;
use super::lists::{EXPERTS_ONLY, EXPERTS_TOO, PREDICTS};
use super::predicting::predicting;
use super::twists::TWISTS;

/// Ends of the names of tensors that few files have.
const USUALLY_ABSENT: &[&str] = &["scale", "cls.output.weight", "cls.output.bias"];

/// The models of this architecture.
pub(crate) fn all(arch: &str) -> Vec<Blueprint> {
    let dense = !EXPERTS_ONLY.contains(&arch);
    let experts = !dense || EXPERTS_TOO.contains(&arch);
    let mut all = Vec::new();
    let mut push = |name, keys: Keys, matrices| {
        all.push(Blueprint {
            name,
            keys: keys.build(),
            matrices,
            ..Blueprint::plain(arch)
        });
    };
    let small = dims(arch, false);
    let large = dims(arch, true);
    if dense {
        push("dense", keys(arch, small, false), TensorType::F32);
    }
    if experts {
        push("experts", keys(arch, small, true), TensorType::F32);
    }
    push("deep", keys(arch, large, !dense), TensorType::Q8_0);
    push("tied", keys(arch, large, !dense), TensorType::Q4_0);
    let tied = all.last_mut().expect("just pushed");
    tied.without = vec!["output.weight".to_owned(), "output.bias".to_owned()];
    // What files have that somebody publishes: no scales, and few biases.
    let usual: [(&str, bool, _, &[&str]); 4] = [
        ("dense-usual", !dense, TensorType::F16, USUALLY_ABSENT),
        ("experts-usual", true, TensorType::F16, USUALLY_ABSENT),
        ("deep-usual", !dense, TensorType::Q8_0, USUALLY_ABSENT),
        (
            "bare",
            !dense,
            TensorType::Q8_0,
            &["scale", ".bias", "cls.output.weight"],
        ),
    ];
    for (name, with_experts, matrices, lacks) in usual {
        // What these lack would be no option, or tells nothing: their law is unknown.
        if matches!(arch, "clef" | "eagle3" | "gemma4") {
            break;
        }
        let made = match name {
            "dense-usual" => dense,
            "experts-usual" => experts,
            _ => true,
        };
        if made {
            let of = if name == "dense-usual" || name == "experts-usual" {
                small
            } else {
                large
            };
            all.push(Blueprint {
                name,
                keys: keys(arch, of, with_experts).build(),
                matrices,
                lacks,
                ..Blueprint::plain(arch)
            });
        }
    }
    if PREDICTS.contains(&arch) {
        all.push(predicting(arch, large, !dense));
    }
    for twist in TWISTS.iter().filter(|twist| twist.arch == arch) {
        all.push(Blueprint {
            name: twist.name,
            keys: twist.keys(!dense).build(),
            lacks: USUALLY_ABSENT,
            ..Blueprint::plain(arch)
        });
    }
    if arch == "rwkv6qwen2" {
        // With this tensor it is taken for another model, half of which is missing.
        for model in &mut all {
            let first = |il| format!("blk.{il}.time_mix_first.weight");
            model.without.extend((0..large.n_layer).map(first));
        }
    }
    if arch == "clef" {
        for model in &mut all {
            head_of_decisions(model, large);
        }
    }
    all
}
