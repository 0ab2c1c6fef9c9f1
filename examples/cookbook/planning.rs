//! Planning for other machines: predicts a model's placement on cards that you do not have. Nothing is loaded;
//! `autoplace-planner` alone can do this without llama.cpp.

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
