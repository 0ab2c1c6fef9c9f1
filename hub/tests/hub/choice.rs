//! Files of one model, planned for a machine, and the one that meets a wish.

use autoplace_hub::{Contender, Outcome, Wish, choose};
use autoplace_planner::gguf::{Builder, Header, TensorType as T};
use autoplace_planner::machine::{Gpu, Host, Machine, gib};
use autoplace_planner::plan::Request;

use crate::synthetic::shapes::{LLAMA_8B, Shape};

/// The kinds of weights that quantisations of Llama 3.1 8B have.
pub(crate) const QUANTS: [(&str, (T, T, T)); 8] = [
    ("Q2_K", (T::Q2_K, T::Q3_K, T::Q6_K)),
    ("Q3_K_M", (T::Q3_K, T::Q4_K, T::Q6_K)),
    ("IQ4_XS", (T::IQ4_XS, T::Q5_K, T::Q6_K)),
    ("Q4_K_M", (T::Q4_K, T::Q6_K, T::Q6_K)),
    ("Q5_K_M", (T::Q5_K, T::Q6_K, T::Q6_K)),
    ("Q6_K", (T::Q6_K, T::Q6_K, T::Q6_K)),
    ("Q8_0", (T::Q8_0, T::Q8_0, T::Q8_0)),
    ("F16", (T::F16, T::F16, T::F16)),
];

/// Four of them, as headers whose data is elsewhere.
fn files() -> Vec<Contender> {
    let of = |(name, types): (&str, _)| {
        let (bytes, file_bytes) = Shape { types, ..LLAMA_8B }.builder().encoded().unwrap();
        let header = Header::parse_shards([(bytes.into(), file_bytes)]).unwrap();
        Contender::new(format!("llama-{name}.gguf"), Some(name.to_owned()), header)
    };
    [0, 3, 6, 7].map(|index| of(QUANTS[index])).into()
}

pub(crate) fn machine(card: &str, free: u64) -> Machine {
    Machine::new(Host::new(gib(64)).bandwidth(50_000_000_000)).with_gpu(Gpu::named(card).unwrap().free(free))
}

#[test]
fn each_row_has_the_bytes_the_layers_and_the_speed_of_its_plan_and_the_best_that_is_fast_enough_is_chosen() {
    let machine = machine("RTX 3060 12GB", gib(7));
    let choice = choose(&files(), &machine, &Request::new(), Wish::Auto);
    let rows = &choice.rows;
    assert!(rows.is_sorted_by(|a, b| a.bytes < b.bytes && a.bits_per_weight < b.bits_per_weight));
    assert!((4.7..4.9).contains(&rows[1].bits_per_weight), "{}", rows[1].bits_per_weight);
    let (whole, part) = (rows[1].placed().unwrap(), rows[3].placed().unwrap());
    assert_eq!((whole.n_gpu_layers, whole.layers, whole.full_offload), (33, 33, true));
    assert!(part.n_gpu_layers + part.parted_blocks < 66 && !part.full_offload);
    assert!(part.tokens_per_second < whole.tokens_per_second);
    let json = serde_json::to_value(&choice).unwrap();
    assert_eq!((&json["chosen"], &json["rows"][1]["placed"]["n_gpu_layers"]), (&1.into(), &33.into()));
    assert_eq!(json["reason"], choice.reason);
    // A large card has the best at once.
    let large = crate::choice::machine("RTX 4090", gib(22));
    assert_eq!(choose(&files(), &large, &Request::new(), Wish::Auto).chosen, Some(3));
}

#[test]
fn what_cannot_be_loaded_is_in_the_table_with_the_reason() {
    let projector = Contender::new("mmproj", None, Builder::new("clip").header().unwrap());
    let broken = Contender::new("broken", None, Builder::new("llama").header().unwrap());
    let mut files = files();
    files.truncate(1);
    files.extend([projector, broken]);
    let tiny = Machine::new(Host::new(gib(1)));
    let choice = choose(&files, &tiny, &Request::new(), Wish::Auto);
    let words = [&["does not fit", "missing on"][..], &["a projector (mmproj)"], &["llama.block_count"]];
    for (row, words) in choice.rows.iter().zip(words) {
        let Outcome::Refused(reason) = &row.outcome else { panic!("{} is placed", row.label) };
        assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
    }
    assert_eq!(choice.chosen, None);
    let reason = "none of 3 can be placed on this machine; mmproj: a projector";
    assert!(choice.reason.starts_with(reason), "{}", choice.reason);
}
