//! Planning for other machines: what would this model do on cards that one does not have? Nothing is loaded, and
//! `autoplace-planner` alone does it without llama.cpp.

use std::path::Path;

use anyhow::Result;
use autoplace::Planner;
use autoplace::gguf::Header;
use autoplace::machine::{Gpu, Host, Machine, gib};
use autoplace::plan::Request;
use autoplace::profile::ModelProfile;

pub fn run(path: &Path) -> Result<()> {
    let profile = ModelProfile::from_header(&Header::open(path)?)?;
    for card in ["RTX 3060 12GB", "RTX 4090"] {
        let machine = Machine::new(Host::new(gib(64))).with_gpu(Gpu::named(card)?);
        let plan = Planner::new(&profile, &machine).request(Request::new().n_ctx(8192)).plan()?;
        let speed = plan.speed.as_ref().map(|speed| speed.tokens_per_second);
        println!("{card}: {} layers, {speed:?} tok/s", plan.n_gpu_layers);
        println!("{plan}");
    }
    Ok(())
}
