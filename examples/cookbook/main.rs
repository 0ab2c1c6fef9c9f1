//! Runs every recipe of the cookbook on the demo model, and checks that each recipe is short.

#![allow(unreachable_pub, reason = "recipes are written as in an application")]

mod batch;
mod cli;
mod desktop;
mod draft;
mod isolation;
mod lora;
mod pictures;
mod planning;
mod pool;
mod search;
mod server;
mod sounds;
mod sse;
mod structured;
mod tools;

use std::fs;
use std::path::Path;

use autoplace::gguf::{Header, TensorType};
use autoplace_examples::DEMO_MODEL;
use libtest_mimic::{Arguments, Failed, Trial};
use test_support::lora::Adapter;

type Recipe = fn(&Path) -> anyhow::Result<()>;

const RECIPES: [(&str, Recipe); 15] = [
    ("batch", batch::run),
    ("cli", cli::run),
    ("desktop", desktop::run),
    ("draft", |model| draft::run(model, model)),
    ("isolation", isolation::run),
    ("lora", with_adapter),
    ("pictures", with_pictures),
    ("planning", planning::run),
    ("pool", pool::run),
    ("search", search::run),
    ("server", server::run),
    ("sounds", with_a_sound),
    ("sse", sse::run),
    ("structured", structured::run),
    ("tools", tools::run),
];

fn main() {
    autoplace::worker_main();
    let runs = RECIPES.map(|(name, recipe)| {
        Trial::test(name, move || recipe(Path::new(DEMO_MODEL)).map_err(|error| Failed::from(format!("{error:#}"))))
    });
    let mut trials = Vec::from(runs);
    trials.push(Trial::test("no_recipe_is_long", no_recipe_is_long));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn with_adapter(model: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let takes = |name: &str| name.contains("attn_q");
    let adapter = Adapter::new("llama").of_weights(&Header::open(model)?, 8, TensorType::F32, takes);
    lora::run(model, &adapter.write_random(folder.path(), "style", 1, 0.2))
}

fn with_pictures(model: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let projector = folder.path().join("mmproj.gguf");
    test_support::synthetic::mmproj::named("Small LLaVA").write_sparse(&projector)?;
    test_support::random_weights::fill(&projector);
    // The folder contains a picture with two pixels of 24 bits. It also contains the projector, which is not a picture
    // and is skipped.
    let mut picture = b"BM\x3e\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\x18\0".to_vec();
    picture.resize(62, 0);
    fs::write(folder.path().join("dots.bmp"), picture)?;
    pictures::run(model, &projector, folder.path())
}

fn with_a_sound(model: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let projector = folder.path().join("mmproj.gguf");
    test_support::synthetic::mmproj::named("Small Ultravox").write_sparse(&projector)?;
    test_support::random_weights::fill(&projector);
    let tone = (0..16_000_u16).map(|at| (f32::from(at) * 0.17).sin() / 2.0).collect();
    let file = folder.path().join("tone.wav");
    fs::write(&file, autoplace::Sound::from_samples(16_000, tone)?.to_wav().unwrap_or_default())?;
    sounds::run(model, &projector, &file)
}

fn no_recipe_is_long() -> Result<(), Failed> {
    const MAX_LINES: usize = 30;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cookbook");
    let mut recipes = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.ends_with("main.rs") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let is_code = |line: &&str| !line.is_empty() && !line.starts_with("use ") && !line.starts_with("//!");
        let lines = text.lines().filter(is_code).count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines", path.display());
        recipes += 1;
    }
    assert_eq!(recipes, RECIPES.len());
    Ok(())
}
