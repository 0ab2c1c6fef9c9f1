//! Fuzzes every parser of untrusted bytes. A parser must accept the bytes or report an error, quickly and with little
//! memory.
//!
//! `cargo xtask fuzz` runs one target in each process, named by `FUZZ_TARGET`. Without a name, this program prints the
//! targets.

#![no_main]

mod targets;

use std::{env, fs, panic, path::Path, process, thread};

use libfuzzer_sys::fuzz_target;
use targets::{TARGETS, Target};

fn target() -> &'static Target {
    let Ok(name) = env::var("FUZZ_TARGET") else {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        process::exit(0);
    };
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("there is no target {name}"))
}

/// Writes the target's seeds into its corpus, the folder that libFuzzer receives.
fn plant() {
    let target = target();
    if let Some(corpus) = env::args().skip(1).find(|argument| Path::new(argument).is_dir()) {
        for (index, seed) in (target.seeds)().into_iter().enumerate() {
            fs::write(Path::new(&corpus).join(format!("seed-{index}")), seed).expect("a seed");
        }
    }
    let abort = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        // A panic in llguidance is not a fault: llguidance catches it, and the constraint reports an error.
        if thread::current().name() != Some("autoplace-constraint") {
            abort(panic);
        }
    }));
}

fuzz_target!(init: plant(), |data: &[u8]| (target().run)(data));
