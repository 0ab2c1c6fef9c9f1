//! A plan's advice. Each advised change is made, and its outcome is checked.

use autoplace_planner::gguf::TensorType as T;
use autoplace_planner::machine::{Gpu, GpuProcess, Host, Machine, gib, mib};
use autoplace_planner::memory::{Headroom, KvType};
use autoplace_planner::plan::{
    Advice, Change, ChangeKind, Effect, Error, GpuLayers, HostParts, Outcome, Plan, Planner, Request, Workload,
};
use autoplace_planner::profile::{ModelProfile, Quantisation};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use test_support::shapes::{LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B};
use test_support::table::rows;

/// The bandwidth of two channels of DDR5-5600, in bytes per second.
const HOST: u64 = 89_000_000_000;

/// A model, a machine and a request.
type Asked = (ModelProfile, Machine, Request);

fn planner((profile, machine, request): &Asked) -> Planner<'_> {
    Planner::new(profile, machine).request(request.clone())
}

/// Makes the change, and plans again.
fn make(asked: &Asked, advice: &Advice, change: &Change) -> Result<Plan, Error> {
    let (mut profile, mut machine, mut request) = asked.clone();
    for kind in &change.kinds {
        match kind {
            ChangeKind::KvType(ty) => request = request.kv_types(*ty, *ty),
            ChangeKind::Context(tokens) => request = request.n_ctx(*tokens),
            ChangeKind::Ubatch(tokens) => request = request.n_ubatch(*tokens),
            ChangeKind::CloseProcess { pid, gpu, bytes, .. } => {
                let gpu = &mut machine.gpus[*gpu];
                let processes = gpu.processes.as_mut().unwrap();
                let held = processes.iter().find(|held| held.pid == *pid).unwrap();
                assert_eq!(held.bytes, Some(*bytes));
                processes.retain(|held| held.pid != *pid);
                *gpu = gpu.clone().free(gpu.free + bytes);
            }
            ChangeKind::Quantisation { to, .. } => profile = profile.quantised(*to),
            ChangeKind::AnotherCard { name, gpu, .. } => {
                let backend = machine.gpus[*gpu].backend.clone();
                machine.gpus[*gpu] = Gpu::named(name).unwrap().backend(backend);
            }
            ChangeKind::SecondCard { gpu, .. } => machine.gpus.push(machine.gpus[*gpu].another()),
            ChangeKind::FirstCard { name } => machine.gpus.push(Gpu::named(name).unwrap()),
            other => panic!("{other:?}"),
        }
    }
    let n_ctx = request.context.tokens(&profile);
    let workload = match advice.workload.tokens() > n_ctx {
        true => Workload::typical(n_ctx),
        false => advice.workload,
    };
    crate::plan(&profile, &machine, &request.workload(workload))
}

/// The rank of a kind by its cost to the user.
fn rank(change: &Change) -> u32 {
    let cheap = |kind: &ChangeKind| match kind {
        ChangeKind::KvType(_) => 0,
        ChangeKind::Context(_) => 1,
        ChangeKind::Ubatch(_) => 2,
        ChangeKind::CloseProcess { .. } => 4,
        ChangeKind::Quantisation { .. } => 5,
        ChangeKind::AnotherCard { .. } => 6,
        ChangeKind::SecondCard { .. } => 7,
        ChangeKind::FirstCard { .. } => 8,
        other => panic!("{other:?}"),
    };
    match &change.kinds[..] {
        [ChangeKind::KvType(_), ChangeKind::Context(_)] => 3,
        kinds => kinds.iter().map(cheap).max().unwrap(),
    }
}

/// Columns: situation | model | card, its free MiB, and the memory that programs use | GiB of the host, and whether the
/// host's bandwidth is known | request.
const CASES: &str = "\
everything fits | 8B | RTX 4090 | 64 known |
a long context | 8B | RTX 3060 12GB, 7240, 12 holds 10, ollama holds 4000 | 64 known | tokens 20000
types and context together, where neither does alone | 8B | RTX 3060 12GB, 4890 | 64 known | tokens 32768
only a smaller quantisation does | 70B | RTX 4090 | 64 known | tokens 8192
a GPU in the host's memory | 70B | Apple M2 16GB | 64 known |
no program alone holds enough | 8B | RTX 3060 12GB, 4000, 1 holds 1000, 2 holds 1000, 3 holds 1000 | 64 known |
it fits nowhere | 70B | RTX 3060 12GB | 16 known |
nothing would do | 70B |  | 0.5 |
no GPU, and it loads | 8B |  | 64 known |
no GPU, and it does not load | 8B |  | 4.4 known |
a tenth of the model, which gains nothing | 70B | RTX 3050 6GB, 5000 | 64 known | whole
layers that gain something | 8B | RTX 3060 12GB, 4096 | 64 known |
so many layers as there is room for | 8B | RTX 3060 12GB, 4840 | 64 known | layers 5
more layers than there is room for | 8B | RTX 3060 12GB, 4840 | 64 known | layers 33
guessed speeds | 8B | card, 4096 | 64 |
experts on the host | 30B A3B | RTX 3060 12GB | 64 known |
cheap types already | 8B IQ2_M | RTX 3060 12GB, 4096 | 64 known | Q4_0";

/// The model, the machine and the request of a case.
fn case([model, card, host, asked]: [&str; 4]) -> Asked {
    let profile = match model {
        "8B" => LLAMA_8B.profile(),
        "8B IQ2_M" => LLAMA_8B.profile::<ModelProfile>().quantised(Quantisation::IQ2_M),
        "70B" => LLAMA_70B.profile(),
        _ => QWEN3_30B_A3B.profile(),
    };
    let (size, known) = host.split_once(' ').unwrap_or((host, ""));
    let host = Host::new((size.parse::<f64>().unwrap() * gib(1) as f64) as u64);
    let known = !known.is_empty();
    let mut machine = Machine::new(if known { host.bandwidth(HOST) } else { host });
    let mut parts = card.split(", ");
    let name = parts.next().unwrap();
    if !name.is_empty() {
        let unknown = Gpu::new(name).total(gib(12));
        let mut gpu = Gpu::named(name).unwrap_or(unknown);
        if let Some(free) = parts.next() {
            gpu = gpu.free(mib(free.parse().unwrap()));
        }
        let held = parts.zip(1..).map(|(held, pid)| {
            let (name, bytes) = held.split_once(" holds ").unwrap();
            let process = GpuProcess::new(pid).bytes(mib(bytes.parse().unwrap()));
            process.name(name)
        });
        gpu.processes = Some(held.collect());
        machine.gpus.push(gpu);
    }
    let number = || asked.split_once(' ').unwrap().1.parse().unwrap();
    let request = match asked.split(' ').next().unwrap() {
        "tokens" => Request::new().n_ctx(number()),
        "layers" => Request::new().n_gpu_layers(GpuLayers::Exactly(number())),
        "whole" => Request::new().host_parts(HostParts::None),
        "Q4_0" => Request::new().kv_types(KvType::Q4_0, KvType::Q4_0),
        _ => Request::new(),
    };
    (profile, machine, request)
}

/// For each case, checks that every advised change has the promised outcome, and prints the advice.
#[test]
fn every_case_has_its_advice() {
    let mut text = String::new();
    for [what, model, card, host, asked] in rows(CASES) {
        let asked = case([model, card, host, asked]);
        let advice = planner(&asked).advice().unwrap();
        for change in &advice.changes {
            let plan = make(&asked, &advice, change).unwrap();
            assert_eq!(Outcome::from(&plan), change.outcome, "{what}: {change}");
        }
        assert!(advice.changes.iter().map(rank).is_sorted(), "{what}");
        text += &format!("{what}:\n{advice}\n");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn the_context_is_the_longest_with_which_everything_fits() {
    let asked = case(["8B", "RTX 3060 12GB, 5540", "64 known", "tokens 8192"]);
    let advice = planner(&asked).advice().unwrap();
    let tokens = advice.changes.iter().find_map(|change| match change.kinds[..] {
        [ChangeKind::Context(tokens)] if change.effect == Effect::Fits => Some(tokens),
        _ => None,
    });
    let tokens = tokens.unwrap();
    let full = |n_ctx| {
        let (profile, machine, request) = asked.clone();
        crate::plan(&profile, &machine, &request.n_ctx(n_ctx)).unwrap().full_offload
    };
    assert!(full(tokens) && !full(tokens + 256), "{tokens}");
}

/// Bytes of weights per second by type, in units of 100 MB, with two threads of a server processor.
const HOST_RATES: [(&str, u64); 8] = [
    ("F16", 405),
    ("Q4_K", 368),
    ("Q5_K", 350),
    ("Q6_K", 337),
    ("Q8_0", 263),
    ("IQ4_XS", 182),
    ("Q3_K", 164),
    ("Q5_0", 139),
];

/// A machine whose host has measured rates for all types except `without`.
fn measured(gpus: &[Gpu], without: &[&str]) -> Machine {
    let known = HOST_RATES.into_iter().filter(|(name, _)| !without.contains(name));
    let weights: Vec<_> =
        known.map(|(name, rate)| serde_json::json!({ "type": name, "bytes_per_second": rate * 100_000_000 })).collect();
    let mut host = Host::new(gib(64));
    host.rates = serde_json::from_value(serde_json::json!({ "weights": weights })).unwrap();
    gpus.iter().cloned().fold(Machine::new(host), Machine::with_gpu)
}

fn quantisations(advice: &Advice) -> Vec<(Effect, Quantisation)> {
    let of = |change: &Change| match change.kinds[..] {
        [ChangeKind::Quantisation { to, .. }] => Some((change.effect, to)),
        _ => None,
    };
    advice.changes.iter().filter_map(of).collect()
}

#[test]
fn a_larger_quantisation_is_advised_if_the_host_reads_it_faster() {
    let profile = LLAMA_8B.profile::<ModelProfile>().quantised(Quantisation::IQ4_XS);
    let card = Gpu::named("RTX 3060 12GB").unwrap();
    for gpus in [&[][..], &[card.clone().free(mib(2500))]] {
        let asked = (profile.clone(), measured(gpus, &[]), Request::new());
        let advice = planner(&asked).advice().unwrap();
        let found = quantisations(&advice);
        assert!(found.contains(&(Effect::Faster, Quantisation::Q4_K_M)), "{advice}");
        let change = advice.changes.iter().find(|change| change.effect == Effect::Faster).unwrap();
        let speedup = change.speedup.unwrap();
        assert!((1.2..2.2).contains(&speedup), "{advice}");
        let said = format!("for speed: Q4_K_M (4.6 GiB), which would be larger and {speedup:.1} times as fast here: ");
        assert!(change.to_string().starts_with(&said), "{change}");
        assert_eq!(Outcome::from(&make(&asked, &advice, change).unwrap()), change.outcome);
    }
    // If the whole model is on the card, the host's rates do not matter.
    let advice = planner(&(profile, measured(&[card], &[]), Request::new())).advice().unwrap();
    assert!(advice.changes.is_empty(), "{advice}");
}

#[test]
fn no_quantisation_is_advised_for_an_unmeasured_speed() {
    let asked =
        (LLAMA_8B.profile::<ModelProfile>().quantised(Quantisation::IQ4_XS), measured(&[], &["Q4_K"]), Request::new());
    let planner = planner(&asked);
    let found = quantisations(&planner.advice().unwrap());
    let missing = planner.unmeasured();
    assert!(missing.contains(&(T::Q4_K, false)) && !missing.contains(&(T::Q6_K, false)), "{missing:?}");
    let has_q4 = |to: &Quantisation| to.types().0 == T::Q4_K;
    assert!(found.iter().all(|(_, to)| !has_q4(to)), "{found:?}");
    // If no rate of the host was measured, its bandwidth counts for all types alike.
    let plain = (asked.0.clone(), Machine::new(Host::new(gib(64)).bandwidth(HOST)), Request::new());
    assert!(advised(&plain).is_empty());
}

fn advised(asked: &Asked) -> Vec<(Effect, Quantisation)> {
    quantisations(&planner(asked).advice().unwrap())
}

#[test]
fn a_smaller_quantisation_is_advised_only_if_the_host_reads_its_types_fast() {
    let card = Gpu::named("RTX 3060 12GB").unwrap().free(mib(2000));
    let asked = (LLAMA_8B.profile(), measured(&[card], &[]), Request::new());
    for (_, to) in advised(&asked) {
        let with = |profile: ModelProfile| crate::plan(&profile, &asked.1, &asked.2).unwrap().speed.unwrap();
        let (after, before) = (with(asked.0.quantised(to)), with(asked.0.clone()));
        assert!(after.tokens_per_second >= 1.09 * before.tokens_per_second, "{to}");
        assert!(![Quantisation::IQ4_XS, Quantisation::Q3_K_L].contains(&to), "{to} takes longer on this host");
    }
}

#[test]
fn advice_names_the_cheapest_card_that_suffices_and_a_second_like_the_first() {
    let cards = |asked: &Asked| -> Vec<String> {
        let advice = planner(asked).advice().unwrap();
        let of = |change: &Change| match &change.kinds[..] {
            [
                kind @ (ChangeKind::AnotherCard { .. } | ChangeKind::SecondCard { .. } | ChangeKind::FirstCard { .. }),
            ] => {
                assert!(change.outcome.tokens_per_second.is_some(), "{change}");
                Some(kind.to_string())
            }
            _ => None,
        };
        advice.changes.iter().filter_map(of).collect()
    };
    // The model has 4.6 GiB of weights and 1 GiB of cache.
    let small = case(["8B", "RTX 3050 6GB, 5000", "64 known", ""]);
    assert_eq!(cards(&small), ["RTX 3050 8GB in place of RTX 3050", "a second RTX 3050"]);
    // The model has 40 GiB, which is more than any desktop card has. The model fits on a workstation card that is not
    // slower, and on two cards.
    let large = case(["70B", "RTX 4090", "64 known", "tokens 4096"]);
    assert_eq!(cards(&large), ["RTX PRO 5000 Blackwell 48GB in place of RTX 4090", "a second RTX 4090"]);
    // No card on sale between 24 and 48 GiB is large enough for the model.
    let (profile, _, request) = &large;
    for least in [gib(32), gib(40)] {
        let smaller = Machine::new(Host::new(gib(64)).bandwidth(HOST)).with_gpu(Gpu::new("card").total(least));
        assert!(!crate::plan(profile, &smaller, request).unwrap().full_offload, "{least}");
    }
    // Without a card, a card is advised only if the host generates more slowly than people read.
    let mut host = Host::new(gib(64)).bandwidth(600_000_000_000);
    host.usable_cores = Some(32);
    let fast = (LLAMA_8B.profile(), Machine::new(host), Request::new().n_ctx(4096));
    assert!(cards(&fast).is_empty());
    let dense = cards(&case(["8B", "", "64 known", ""]));
    assert!(dense.len() == 1 && dense[0].starts_with("a card such as "), "{dense:?}");
}

/// Cards on which other programs use some memory.
fn gpus() -> impl Strategy<Value = Vec<Gpu>> {
    let name = prop::sample::select(&["RTX 3050 6GB", "RX 7600", "Arc A380", "M1 8GB"]);
    let held = prop::collection::vec(mib(1)..mib(400), 0..3);
    let gpu = (name, mib(250)..mib(1000), held).prop_map(|(name, free, held)| {
        let mut gpu = Gpu::named(name).unwrap().free(free);
        gpu.processes = Some((1..).zip(held).map(|(pid, bytes)| GpuProcess::new(pid).bytes(bytes)).collect());
        gpu
    });
    // Most cases have one card.
    let gpus = |n| prop::collection::vec(gpu.clone(), n);
    prop_oneof![4 => gpus(1..=1), 1 => gpus(2..=2), 1 => gpus(0..=0)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_advised_change_has_the_promised_outcome(
        shape in crate::any::shape(),
        gpus in gpus(),
        host in prop_oneof![mib(100)..gib(1), Just(gib(8))],
        known in any::<bool>(),
        headroom in 0..mib(200),
        n_ctx in 1000u32..60_000,
        n_ubatch in 1u32..1024,
    ) {
        let host = Host::new(host);
        let host = if known { host.bandwidth(HOST) } else { host };
        let machine = gpus.into_iter().fold(Machine::new(host), Machine::with_gpu);
        let request = Request::new().headroom(Headroom::Bytes(headroom)).n_ctx(n_ctx).n_ubatch(n_ubatch);
        let asked = (shape.profile(), machine, request);
        let planner = planner(&asked);
        let before = planner.plan();
        let advice = match planner.advice() {
            Ok(advice) => advice,
            Err(error) => {
                prop_assert_eq!(error.to_string(), before.unwrap_err().to_string());
                return Ok(());
            }
        };
        prop_assert_eq!(&advice, &planner.advice().unwrap());
        prop_assert!(advice.changes.iter().map(rank).is_sorted_by(|a, b| a < b), "{}", advice);
        let before = before.ok();
        if before.as_ref().is_some_and(|plan| plan.full_offload) {
            prop_assert!(advice.changes.is_empty());
        }
        let is_first = |change: &&Change| matches!(change.kinds[..], [ChangeKind::FirstCard { .. }]);
        for change in advice.changes.iter().filter(is_first) {
            let plan = make(&asked, &advice, change).unwrap();
            prop_assert!(plan.full_offload && Outcome::from(&plan) == change.outcome, "{}", change);
            prop_assert_eq!(change.effect == Effect::Fits, before.is_none());
        }
        for change in advice.changes.iter().filter(|change| !is_first(change)) {
            let plan = make(&asked, &advice, change).unwrap();
            prop_assert_eq!(Outcome::from(&plan), change.outcome);
            let fits = plan.full_offload || asked.1.gpus.is_empty();
            prop_assert_eq!(change.effect == Effect::Fits, fits);
            prop_assert_eq!(change.effect == Effect::Loads, !fits && before.is_none());
            if let (Some(before), false) = (&before, fits) {
                let whole = |plan: &Plan| (plan.n_gpu_layers - plan.split_blocks, plan.n_gpu_layers);
                prop_assert!(whole(&plan) > whole(before));
                if let (Some(after), Some(before)) = (&plan.speed, &before.speed) {
                    prop_assert!(after.tokens_per_second >= 1.1 * before.tokens_per_second);
                }
            }
        }
    }
}
