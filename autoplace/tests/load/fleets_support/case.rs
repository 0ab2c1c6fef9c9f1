//! A random case: a model, cards, a host and a request.

use autoplace::llama_sys::sim::{Rules, SimGpu};
use autoplace::machine::{Gpu, GpuKind, Host, Machine, Reading, gib, mib};
use autoplace::memory::{Estimate, FlashAttention, Headroom, KvType, PeakSizes};
use autoplace::plan::{Context, HostParts, KvCache, KvPlace, Policy, Request};

use super::{Model, Models};
use crate::rig::{Card, backend, vulkan};
use test_support::random_weights::Dice;

/// A model on a fleet, with a request.
pub(crate) struct Case {
    pub(crate) number: u64,
    model: usize,
    cards: Vec<CardKind>,
    host: Host,
    pub(crate) request: Request,
    /// How many tokens the prompt has in addition to one full computation.
    pub(crate) remainder: usize,
}

/// The description of a card.
#[derive(Debug, Clone)]
struct CardKind {
    rules: Rules,
    kind: GpuKind,
    asynchronous: bool,
    total: u64,
    /// The bytes that other programs have taken.
    taken: u64,
    bytes_per_second: Option<u64>,
}

impl Case {
    pub(crate) fn new(number: u64, models: &Models) -> Self {
        let mut dice = Dice::new(number);
        let index = dice.below(models.all.len());
        let model = &models.all[index];
        let mut request = request(&mut dice);
        let needs = Needs::new(model, &request);
        if let Headroom::Bytes(bytes) = &mut request.headroom {
            *bytes += needs.growth();
        }
        let count = dice.one_of(&[0, 1, 1, 1, 2, 2, 3, 3, 4, 4]);
        let asynchronous = dice.percent(50);
        // These models have a thousandth of the size of real ones. If memory is slower by the same factor, the speed
        // depends on how fast weights are read, as it does in reality.
        let unit = dice.one_of(&[1_000_000_000, 1_000_000, 1_000_000, 1_000_000]);
        let same_rules = dice.percent(60).then(|| rules(&mut dice));
        let cards = (0..count)
            .map(|_| {
                let rules = same_rules.unwrap_or_else(|| rules(&mut dice));
                // If there is a card, a plan ignores an integrated GPU. So in most cases here, an integrated GPU is
                // alone.
                let kind =
                    if dice.percent(if count == 1 { 25 } else { 6 }) { GpuKind::Integrated } else { GpuKind::Discrete };
                let usable = match dice.below(20) {
                    0..=1 => dice.share(needs.gpu, 0, 10),
                    2..=16 => dice.share(needs.gpu, 15, 160 / (count + 1)),
                    _ => dice.share(needs.gpu, 100, 150),
                };
                let speed = match dice.below(10) {
                    0 => None,
                    1 => Some(10 + dice.below(40)),
                    _ => Some(100 + dice.below(1900)),
                };
                let taken = if dice.percent(40) { dice.below(mib(64)) } else { 0 };
                CardKind {
                    rules,
                    kind,
                    asynchronous,
                    total: needs.total_with(usable, taken, rules, &request),
                    taken,
                    bytes_per_second: speed.map(|speed| speed * unit),
                }
            })
            .collect();
        let room = match dice.below(10) {
            0..=5 => dice.share(needs.host, 150, 500),
            6..=7 => dice.share(needs.host, 60, 120),
            _ => dice.share(needs.host, 5, 100),
        };
        let host = Host::new(gib(16));
        let headroom = Headroom::of_host(&host, &needs.workload, count > 0, 0);
        let host = host.available(room + headroom.total()).bandwidth((20 + dice.below(80)) * unit);
        Self { number, model: index, cards, host, remainder: 1 + dice.below(request.params.n_ubatch as usize), request }
    }

    pub(crate) fn model<'m>(&self, models: &'m Models) -> &'m Model {
        &models.all[self.model]
    }

    /// A description of the whole case, for debugging.
    pub(crate) fn describe(&self, models: &Models) -> String {
        let Self { number, cards, host, request, remainder, .. } = self;
        let title = &self.model(models).title;
        format!("case {number}: {title} on {cards:?}, {host:?}: {request:?}, {remainder} tokens more")
    }

    pub(crate) fn has_gpus(&self) -> bool {
        !self.cards.is_empty()
    }

    /// Registers the cards in this process. `pools` returns how much memory the pools of a card take at the first
    /// computation.
    pub(crate) fn fleet(&self, mut pools: impl FnMut() -> u64) -> Vec<Card> {
        self.cards.iter().zip(["A", "B", "C", "D"]).map(|(card, name)| card.register(name, pools())).collect()
    }

    pub(crate) fn machine(&self, fleet: &[Card]) -> Machine {
        fleet.iter().map(|card| card.gpu.clone()).fold(Machine::new(self.host.clone()), Machine::with_gpu)
    }
}

impl CardKind {
    fn register(&self, name: &str, pools: u64) -> Card {
        let backend = backend(self.rules);
        let sim = SimGpu::builder(format!("SIM {backend} {name}"))
            .total(self.total)
            .taken(self.taken)
            .rules(self.rules)
            .backend(backend)
            .asynchronous(self.asynchronous)
            .growth(pools)
            .register()
            .unwrap();
        let gpu = Gpu::new(name)
            .device(sim.device().name())
            .backend(backend)
            .kind(self.kind)
            .total(sim.total())
            .free(sim.free());
        let gpu = match self.bytes_per_second {
            Some(bytes) => read(gpu.bandwidth(bytes)),
            None => read(gpu),
        };
        Card { sim, gpu }
    }
}

/// The GPU, with its memory as ggml would report it.
fn read(mut gpu: Gpu) -> Gpu {
    gpu.ggml = Some(Reading::new(gpu.total, gpu.free));
    gpu
}

/// How much memory a model needs. The sizes of a case's cards depend on it.
struct Needs {
    /// Bytes of all layers if they are on one GPU. The field `host` has their bytes if they are on the host.
    gpu: u64,
    host: u64,
    workload: PeakSizes,
}

impl Needs {
    /// By how much compute buffers may grow after the load. llama.cpp reserves them for the largest prompt over all
    /// sequences, and for one token of each sequence. Another number of tokens, or a single sequence, may be computed
    /// on another device and need more memory. This is because a GPU takes over work of the host only from 32 tokens on
    /// (llama-context.cpp, `sched_reserve`). The default headroom includes this growth. If the user sets the
    /// headroom as a number of bytes, it may be less than this growth.
    fn growth(&self) -> u64 {
        2 * self.workload.activations
    }

    /// The size of a card with which a plan can take `usable` bytes.
    fn total_with(&self, usable: u64, taken: u64, rules: Rules, request: &Request) -> u64 {
        if let Headroom::Percent(percent) = request.headroom {
            // On a small card, a percentage may be less than the possible growth of the buffers.
            let share = f64::from(percent) / 100.0;
            let enough = (usable + taken) as f64 / (1.0 - share);
            return enough.max(self.growth() as f64 / share) as u64;
        }
        let gpu = Gpu::new("card").backend(backend(rules)).total(gib(1));
        let headroom = request.headroom.of_gpu(&read(gpu), &self.workload, 0, false);
        usable + taken + headroom.total()
    }

    fn new(model: &Model, request: &Request) -> Self {
        let profile = &model.profile;
        let mut params = request.params.clone();
        params.n_ctx = request.context.tokens(profile);
        params.flash_attn = FlashAttention::Auto;
        params.type_v = params.type_k;
        let card = Gpu::new("card").total(gib(1));
        let estimate = Estimate::new(profile, &[&card], &params).unwrap();
        let footprints = estimate.footprints(profile.full_offload());
        let on_host = Estimate::new(profile, &[], &params).unwrap().footprints(0);
        Self {
            gpu: footprints.gpus[0].total(),
            host: on_host.host.total(),
            workload: PeakSizes::new(profile, estimate.sizes()),
        }
    }
}

fn rules(dice: &mut Dice) -> Rules {
    let alignment = dice.one_of(&[16, 64, 256]);
    // With the smallest limit there is room for the largest tensor, but a computation may need several buffers.
    let max_alloc = dice.one_of(&[mib(8), gib(1), gib(4)]);
    dice.one_of(&[Rules::Cuda, Rules::Cuda, vulkan(alignment, max_alloc), Rules::Metal])
}

fn request(dice: &mut Dice) -> Request {
    let tokens = dice.one_of(&[280, 300, 512, 1000, 2048, 4096]);
    let context = match dice.percent(15) {
        true => Context::AtLeast(tokens),
        false => Context::Tokens(tokens),
    };
    let n_ubatch = dice.one_of(&[16, 32, 48, 64, 128]);
    let mut request = Request::new()
        .context(context)
        .policy(match dice.percent(15) {
            true => Policy::MostLayers,
            false => Policy::Fastest,
        })
        .headroom(match dice.below(10) {
            0..=4 => Headroom::Bytes(dice.below(mib(1))),
            5..=7 => Headroom::Default,
            8 => Headroom::Tight,
            _ => Headroom::Percent(dice.one_of(&[2.5, 7.5, 15.0])),
        })
        .host_parts(dice.one_of(&[HostParts::None, HostParts::Experts, HostParts::Experts, HostParts::FeedForward]))
        .n_ubatch(n_ubatch)
        .n_batch(n_ubatch * dice.one_of(&[1, 2, 4]))
        .n_seq_max(dice.one_of(&[1, 1, 1, 2, 3]))
        .n_outputs_max(dice.one_of(&[1, 1, 1, 0, 4]));
    request.params.flash_attn = dice.one_of(&[FlashAttention::Auto, FlashAttention::Auto, FlashAttention::On]);
    // With quantised values, attention must be fused.
    if dice.below(10) > 5 {
        let both = dice.one_of(&[KvType::Q8_0, KvType::Q5_1, KvType::Q4_0]);
        (request.params.type_k, request.params.type_v) = (both, both);
    } else if dice.percent(20) {
        request.params.flash_attn = FlashAttention::Off;
    }
    request.params.offload_kqv = dice.percent(88);
    request.params.op_offload = dice.percent(80);
    request.params.kv_unified = dice.percent(30);
    request.params.swa_full = dice.percent(50);
    request.params.mmap = dice.percent(80);
    request.params.repack = dice.percent(80);
    // Settings that the planner may choose, in addition to the placement.
    if dice.percent(20) {
        request = request.min_ubatch(n_ubatch / 4);
    }
    if dice.percent(15) {
        request = request.kv_place(KvPlace::Auto);
    }
    if dice.percent(15) {
        request = request.kv_cache(KvCache::Auto);
    }
    request
}
