//! On random fleets of simulated cards, models follow the depth of their texts. Meanwhile, other programs take and
//! release memory. No card ever has too many bytes, no load lacks memory, and every text is the same as that of a model
//! that stays on the host.
//!
//! The number of a case determines everything in it. `cargo test` runs the first 40 cases. This command runs all 1,000:
//!
//! ```text
//! cargo test -p autoplace --test load depth_fleets:: -- --ignored --nocapture
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use autoplace::Model;
use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::machine::mib;
use autoplace::memory::{Headroom, KvType, Place, TensorOverride};
use autoplace::plan::{GpuLayers, Plan, Request};
use test_support::demo_path;
use test_support::random_weights::Dice;

use crate::depth_support::crossing;
use crate::fleets_support::run_all;
use crate::replace_support::{builder, generations, load};
use crate::rig::{backend, vulkan};
use crate::text_support::PROMPT;

/// The minimum number of cases of each kind among a thousand cases.
const MIN_PER_THOUSAND: [(&str, u64); 8] = [
    ("moved", 300),
    ("moved back", 150),
    ("stayed while another program took memory", 10),
    ("two placements on cards", 200),
    ("several cards", 200),
    ("feed-forward matrices on the host", 50),
    ("another program took memory", 400),
    ("quantised cache", 200),
];

/// The number of tokens of the long text, and of the short text after it.
const TOKENS: [usize; 2] = [90, 6];

fn request(dice: &mut Dice) -> Request {
    let mut request = Request::new().headroom(Headroom::Bytes(1 << 20)).n_ctx(512).n_ubatch(dice.one_of(&[32, 64]));
    request.params.repack = false;
    let kv = dice.one_of(&[KvType::F16, KvType::F16, KvType::Q8_0]);
    request.type_k(kv).type_v(kv)
}

fn cards(dice: &mut Dice) -> Vec<SimGpu> {
    let count = dice.one_of(&[1, 1, 2, 3]);
    let cards = (0..count).map(|_| {
        let rules = dice.one_of(&[Rules::Cuda, Rules::Cuda, vulkan(64, mib(1024)), Rules::Metal]);
        let card = SimGpu::builder("SIM card").rules(rules).backend(backend(rules)).asynchronous(dice.percent(50));
        card.total(mib(3) + dice.below(mib(24))).register().unwrap()
    });
    cards.collect()
}

/// A plan for the memory that is free now, with at most this number of layers on cards. In `on_host` blocks, the
/// feed-forward matrices stay on the host.
fn plan(path: &Path, request: &Request, layers: u32, on_host: u32) -> Result<Plan, String> {
    let mut request = request.clone().n_gpu_layers(GpuLayers::AtMost(layers));
    if on_host > 0 {
        let pattern = format!(r"^blk\.[0-{}]\.ffn_(gate|up|down)\.weight", on_host - 1);
        request = request.overrides([TensorOverride::new(pattern, Place::Host)]);
    }
    builder(path, &request).plan().map_err(|error| error.to_string())
}

/// Runs a text. Before each tenth piece of the text, other programs take another share of the memory that the model
/// leaves free.
fn text(
    model: &Model,
    cards: &[SimGpu],
    tokens: usize,
    dice: &mut Dice,
    others: bool,
) -> Result<(String, u64), String> {
    let mut stream = generations(model, PROMPT, tokens)[1].clone().stream().map_err(|error| error.to_string())?;
    let mut text = String::new();
    for index in 0.. {
        if others && index % 10 == 0 {
            for card in cards {
                let left = card.total() - card.used();
                card.set_taken(if dice.percent(50) { 0 } else { dice.below(left + 1) });
            }
        }
        let Some(piece) = stream.next() else { break };
        text += &piece.map_err(|error| error.to_string())?;
        if let Some(Err(error)) = stream.last_replaced() {
            return Err(format!("a move failed: {error}"));
        }
        for card in cards {
            let (used, taken, total) = (card.used(), card.taken(), card.total());
            if used + taken > total || card.peak() > total {
                return Err(format!("{used} bytes and {taken} of others, of {total}; at most {}", card.peak()));
            }
        }
    }
    Ok((text, u64::from(stream.statistics().moves)))
}

fn case(number: u64, expected: &mut BTreeMap<(u32, String), [String; 2]>) -> Result<Vec<String>, String> {
    let path = demo_path();
    let mut dice = Dice::new(number);
    let request = request(&mut dice);
    let kv = request.params.type_k;
    let expected = expected.entry((request.params.n_ubatch, kv.to_string())).or_insert_with(|| {
        let stays = load(&path, &request, 0);
        TOKENS.map(|tokens| generations(&stays, PROMPT, tokens)[1].clone().text().unwrap())
    });
    let cards = cards(&mut dice);
    let layers = [dice.below(8_u32), dice.below(8_u32)];
    let on_host = dice.one_of(&[0, 0, 2, 5]);
    let crossing_at = 40 + dice.below(90_u32);
    let others = dice.percent(60);
    let describe = |what: String| {
        let totals: Vec<u64> = cards.iter().map(SimGpu::total).collect();
        format!("case {number}: {layers:?} layers, {on_host} parted, {totals:?}, crossing at {crossing_at}: {what}")
    };
    let shallow = plan(&path, &request, layers[0], 0).map_err(describe)?;
    let deep = plan(&path, &request, layers[1], on_host).map_err(describe)?;
    let saved = crossing(&path, &request, [&shallow, &deep], crossing_at);
    let builder = Model::builder(&path).n_threads(1).attempts(1).follow(saved);
    let model = builder.load().map_err(|error| describe(error.to_string()))?;

    let (long, moves) = text(&model, &cards, TOKENS[0], &mut dice, others).map_err(describe)?;
    cards.iter().for_each(|card| card.set_taken(0));
    let (short, back) = text(&model, &cards, TOKENS[1], &mut dice, false).map_err(describe)?;
    if [&long, &short] != [&expected[0], &expected[1]] {
        return Err(describe(format!("another text: {long:?}, {short:?}")));
    }
    drop(model);
    if cards.iter().any(|card| card.used() > 0) {
        return Err(describe("a card still holds something".to_owned()));
    }
    let kinds = [
        ("moved", moves > 0),
        ("moved back", back > 0),
        ("stayed while another program took memory", others && moves == 0 && shallow.split() != deep.split()),
        ("two placements on cards", shallow.n_gpu_layers > 0 && deep.n_gpu_layers > 0),
        ("several cards", cards.len() > 1),
        ("feed-forward matrices on the host", on_host > 0 && deep.n_gpu_layers > 2),
        ("another program took memory", others),
        ("quantised cache", kv != KvType::F16),
    ];
    let mut kinds: Vec<String> = kinds.iter().filter(|(_, is)| *is).map(|(kind, _)| (*kind).to_owned()).collect();
    kinds.push(format!("{} moves", moves + back));
    Ok(kinds)
}

fn fleets(cases: u64) {
    let mut expected = BTreeMap::new();
    run_all(cases, &MIN_PER_THOUSAND, |number| case(number, &mut expected));
}

#[test]
fn random_fleets_never_take_more_than_is_free_while_they_follow_the_depth() {
    own_process!();
    fleets(40);
}

#[test]
#[ignore = "a quarter of an hour: the 40 above and 960 more"]
fn a_thousand_random_fleets_that_follow_the_depth_never_take_more_than_is_free() {
    own_process!();
    fleets(1000);
}
