//! A simulated GPU of several processes: none gets what another has, and what a process had that is gone is free again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::sim::{MIB, context, greedy, load};
use llama_sys::sim::SimGpu;

/// Where a child finds the card's file.
const CARD: &str = "LLAMA_SYS_TEST_CARD";

fn card(file: &Path, total: u64) -> SimGpu {
    SimGpu::builder("SIM shared card").total(total).shared(file).register().unwrap()
}

/// Another process that has loaded the demo model onto the card and keeps it until it is killed.
struct Other(Child);

impl Other {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args("--exact sim_shared::the_other_process --ignored --nocapture".split(' '))
            .env(CARD, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("loaded")), "it loads");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "the other process of these tests, by itself nothing"]
fn the_other_process() {
    let Some(file) = std::env::var_os(CARD) else {
        return;
    };
    let gpu = card(Path::new(&file), 64 * MIB);
    let model = load(&[&gpu], -1);
    let _context = context(&model);
    println!("loaded");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn what_another_process_takes_is_missing_here_and_what_it_had_is_free_once_it_is_killed() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("card");
    let gpu = card(&file, 64 * MIB);
    let other = Other::start(&file);
    let theirs = gpu.shared_used().unwrap();
    assert!(theirs > MIB, "{theirs}");
    assert_eq!((gpu.used(), gpu.free()), (0, 64 * MIB - theirs));

    let model = load(&[&gpu], -1);
    let mut context = context(&model);
    greedy(&mut context, 2);
    assert_eq!(gpu.shared_used().unwrap(), theirs + gpu.used());
    assert_eq!(gpu.free(), 64 * MIB - theirs - gpu.used());
    let both = theirs + gpu.used();

    other.kill();
    assert_eq!(gpu.shared_used().unwrap(), gpu.used());
    drop((context, model));
    assert_eq!(gpu.shared_used(), Some(0));
    assert_eq!((gpu.free(), gpu.shared_peak()), (64 * MIB, Some(both)));
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_that_names_it() {
    own_process!();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no such folder").join("card");
    let error = SimGpu::builder("SIM card").shared(&file).register();
    let text = error.unwrap_err().to_string();
    assert!(text.contains("no such folder"), "{text}");
}
