//! Several files of one model are planned, and a preference decides which of them is chosen.

use autoplace_hub::{Outcome, PlannedFile, Preference, choose, choose_measured};
use autoplace_planner::gguf::{Builder, Header, TensorType as T};
use autoplace_planner::machine::{Gpu, Host, Machine, gib};
use autoplace_planner::plan::Request;

use test_support::synthetic::shapes::{LLAMA_8B, Shape};

/// For each quantisation of Llama 3.1 8B, the types of its weights.
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

/// Files with some of these quantisations. They are headers without data.
fn of_quants(indices: &[usize]) -> Vec<PlannedFile> {
    let of = |(name, types): (&str, _)| {
        let (bytes, file_bytes) = Shape { types, ..LLAMA_8B }.builder().encoded().unwrap();
        let header = Header::parse_shards([(bytes.into(), file_bytes)]).unwrap();
        PlannedFile::new(format!("llama-{name}.gguf"), Some(name.to_owned()), header)
    };
    indices.iter().map(|&index| of(QUANTS[index])).collect()
}

/// Files with four of the quantisations.
fn files() -> Vec<PlannedFile> {
    of_quants(&[0, 3, 6, 7])
}

pub(crate) fn machine(card: &str, free: u64) -> Machine {
    Machine::new(Host::new(gib(64)).bandwidth(50_000_000_000)).with_gpu(Gpu::named(card).unwrap().free(free))
}

#[test]
fn each_row_has_the_figures_of_its_plan_and_the_best_fast_file_is_chosen() {
    let machine = machine("RTX 3060 12GB", gib(7));
    let choice = choose(&files(), &machine, &Request::new(), Preference::Auto);
    let rows = &choice.rows;
    assert!(rows.is_sorted_by(|a, b| a.bytes < b.bytes && a.bits_per_weight < b.bits_per_weight));
    assert!((4.7..4.9).contains(&rows[1].bits_per_weight), "{}", rows[1].bits_per_weight);
    let (whole, part) = (rows[1].placed().unwrap(), rows[3].placed().unwrap());
    assert_eq!((whole.n_gpu_layers, whole.layers, whole.full_offload), (33, 33, true));
    assert!(part.n_gpu_layers + part.split_blocks < 66 && !part.full_offload);
    assert!(part.tokens_per_second < whole.tokens_per_second);
    let json = serde_json::to_value(&choice).unwrap();
    assert_eq!((&json["chosen"], &json["rows"][1]["placed"]["n_gpu_layers"]), (&1.into(), &33.into()));
    assert_eq!(json["reason"], choice.reason);
    // On a large card, the best file is chosen.
    let large = crate::choice::machine("RTX 4090", gib(22));
    assert_eq!(choose(&files(), &large, &Request::new(), Preference::Auto).chosen, Some(3));
}

/// Adds the host's rates for these types, in GB/s. The rate for IQ4_XS is lower.
fn with_rates(mut machine: Machine, types: &[(T, bool)]) -> Machine {
    let rate = |ty: T| if ty == T::IQ4_XS { 18.2e9 } else { 36.0e9 };
    let weights = types.iter().map(|(ty, _)| serde_json::json!({ "type": ty, "bytes_per_second": rate(*ty) as u64 }));
    let rates = serde_json::json!({ "weights": weights.collect::<Vec<_>>() });
    machine.host.rates = serde_json::from_value(rates).unwrap();
    machine
}

#[test]
fn missing_rates_are_measured_before_the_choice_if_a_part_stays_on_the_host() {
    let files = of_quants(&[2, 3]);
    let host = Machine::new(Host::new(gib(64)).bandwidth(50_000_000_000));
    let by_bytes = choose(&files, &host, &Request::new(), Preference::Auto);
    assert_eq!(by_bytes.chosen, Some(0), "{}", by_bytes.reason);
    let mut asked = Vec::new();
    let measured = choose_measured(&files, &host, &Request::new(), Preference::Auto, |machine, types| {
        asked = types.to_vec();
        with_rates(machine, types)
    });
    assert!([T::IQ4_XS, T::Q4_K, T::Q6_K].iter().all(|&ty| asked.contains(&(ty, false))), "{asked:?}");
    assert_eq!(measured.chosen, Some(1), "{}", measured.reason);
    assert!(measured.reason.contains("; llama-IQ4_XS.gguf is smaller, but takes 1."), "{}", measured.reason);
    // A rate that is known is not measured again. If everything is on the card, the rates of the host do not matter.
    let not_again = |_: Machine, types: &[(T, bool)]| -> Machine { panic!("{types:?} are measured") };
    let known = with_rates(host, &asked);
    assert_eq!(choose_measured(&files, &known, &Request::new(), Preference::Auto, not_again), measured);
    choose_measured(&files, &machine("RTX 4090", gib(22)), &Request::new(), Preference::Auto, not_again);
}

#[test]
fn a_file_that_cannot_be_loaded_is_in_the_table_with_the_reason() {
    let projector = PlannedFile::new("mmproj", None, Builder::new("clip").header().unwrap());
    let broken = PlannedFile::new("broken", None, Builder::new("llama").header().unwrap());
    let mut files = files();
    files.truncate(1);
    files.extend([projector, broken]);
    let tiny = Machine::new(Host::new(gib(1)));
    let choice = choose(&files, &tiny, &Request::new(), Preference::Auto);
    let words = [&["does not fit", "missing on"][..], &["a projector (mmproj)"], &["llama.block_count"]];
    for (row, words) in choice.rows.iter().zip(words) {
        let Outcome::Refused(reason) = &row.outcome else { panic!("{} is placed", row.label) };
        assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
    }
    assert_eq!(choice.chosen, None);
    let reason = "none of 3 can be placed on this machine; mmproj: a projector";
    assert!(choice.reason.starts_with(reason), "{}", choice.reason);
}
