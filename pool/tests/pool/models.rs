//! Models of real size, without data, on machines of the catalogue.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use autoplace::machine::{Gpu, Host, Machine};
use autoplace::plan::{self, Context, Plan, Planner, Request};
use autoplace::profile::ModelProfile;
use autoplace_pool::{Ladder, ModelState, PoolState};
use test_support::synthetic;

/// The models: a short name, and the title in the list of full-size models.
pub(crate) const MODELS: [(&str, &str); 6] = [
    ("1b", "llama Llama 3.2 1B"),
    ("3b", "llama Llama 3.2 3B"),
    ("8b", "llama Llama 3.1 8B"),
    ("14b", "qwen2 Qwen2.5 14B"),
    ("30b-a3b", "qwen3moe Qwen3 30B A3B"),
    ("32b", "qwen3 Qwen3 32B"),
];

pub(crate) fn profile(name: &str) -> &'static ModelProfile {
    static PROFILES: LazyLock<BTreeMap<&str, ModelProfile>> = LazyLock::new(|| {
        let profile = |(name, title)| {
            let header = synthetic::named(title).builder().header().unwrap();
            (name, ModelProfile::from_header(&header).unwrap())
        };
        MODELS.map(profile).into_iter().collect()
    });
    &PROFILES[name]
}

/// A machine of the catalogue whose disk reads two gigabytes per second.
pub(crate) fn machine(cards: &[&str], host: &str, ram_gib: u64) -> Machine {
    let mut host = Host::named(host, ram_gib << 30).unwrap();
    host.disk = Some(autoplace::machine::DiskRate::new(2_000_000_000, autoplace::machine::DiskRateSource::Stated));
    let card = |(index, name): (usize, &&str)| Gpu::named(name).unwrap().device(format!("CUDA{index}"));
    cards.iter().enumerate().map(card).fold(Machine::new(host), Machine::with_gpu)
}

pub(crate) fn request(n_ctx: u32) -> Request {
    Request::new().context(Context::Tokens(n_ctx))
}

pub(crate) fn planned(name: &str, request: &Request, machine: &Machine) -> Result<Plan, plan::Error> {
    Planner::new(profile(name), machine).request(request.clone()).plan()
}

/// A model of a pool on this machine. Its ladder is made only once.
pub(crate) fn model(name: &str, machine: &Machine, request: &Request) -> Result<ModelState, plan::Error> {
    static KNOWN: Mutex<Vec<(String, Machine, Request, Ladder)>> = Mutex::new(Vec::new());
    let is_known = |known: &&(String, Machine, Request, Ladder)| {
        (known.0.as_str(), &known.1, &known.2) == (name, machine, request)
    };
    if let Some(known) = KNOWN.lock().unwrap().iter().find(is_known) {
        return Ok(ModelState::new(name, known.3.clone()));
    }
    let ladder = Ladder::new(machine, request, |request, machine| planned(name, request, machine))?;
    KNOWN.lock().unwrap().push((name.to_owned(), machine.clone(), request.clone(), ladder.clone()));
    Ok(ModelState::new(name, ladder))
}

/// A pool of these models, none of them loaded.
pub(crate) fn pool(machine: &Machine, models: &[&str], n_ctx: u32) -> PoolState {
    let mut state = PoolState::new(machine.clone());
    state.models = models.iter().map(|name| model(name, machine, &request(n_ctx)).unwrap()).collect();
    state
}
