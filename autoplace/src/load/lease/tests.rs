//! The book of leases by itself: threads and processes that take and drop leases, die with them, and
//! leave garbage behind.

use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::machine::PciId;

/// Bytes of each of the cards below.
const CAPACITY: u64 = 1000;

fn card(bus: u8) -> Gpu {
    Gpu::new("card").device(format!("CUDA{bus}")).pci_id(PciId::new(0, bus, 0, 0)).total(CAPACITY)
}

fn cards() -> [Gpu; 2] {
    [card(1), card(2)]
}

/// Leases here, waiting for nobody.
fn hasty(folder: &Path) -> Leases {
    Leases::in_dir(folder).patience(Duration::ZERO)
}

/// Waits as long as it takes.
fn patient(folder: &Path) -> Leases {
    Leases::in_dir(folder).patience(Duration::MAX)
}

fn hold(leases: &Leases, gpu: &Gpu, bytes: u64) -> Lease {
    let section = leases.enter(std::slice::from_ref(gpu));
    section.write([(gpu, bytes)].into_iter())
}

/// What others hold of a card, as one sees who waits for nobody.
fn others(folder: &Path, gpu: &Gpu) -> u64 {
    hasty(folder).enter(std::slice::from_ref(gpu)).others(gpu)
}

/// The leases that lie in a folder.
fn left(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".lease")).collect()
}

#[test]
fn what_one_holds_the_next_is_told_until_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (card(1), card(2));
    let leases = hasty(folder.path());
    let one = hold(&leases, &first, 100);
    let two = hold(&leases, &first, 20);
    assert_eq!(others(folder.path(), &first), 120);
    assert_eq!(others(folder.path(), &second), 0);
    // From any thread.
    thread::spawn(|| drop(one)).join().unwrap();
    assert_eq!(others(folder.path(), &first), 20);
    drop(two);
    assert_eq!(others(folder.path(), &first), 0);
    assert!(left(folder.path()).is_empty());
}

#[test]
fn a_lease_says_whose_it_is_to_people() {
    let folder = tempfile::tempdir().unwrap();
    let _lease = hold(&hasty(folder.path()), &card(1), 100);
    let [name] = left(folder.path()).try_into().unwrap();
    let text = fs::read_to_string(folder.path().join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["pid"], std::process::id());
    assert_eq!(json["device"], "0000:01:00.0");
    assert_eq!(json["bytes"], 100);
    assert!(json["since"].as_u64() > Some(1_700_000_000));
}

#[test]
fn a_load_waits_until_those_before_it_are_done() {
    let folder = tempfile::tempdir().unwrap();
    let lease = hold(&hasty(folder.path()), &card(1), 100);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let section = patient(folder.path()).enter(&cards());
            (done.load(Ordering::SeqCst), section.others(&card(1)))
        });
        thread::sleep(3 * PAUSE);
        done.store(true, Ordering::SeqCst);
        drop(lease);
        assert_eq!(waiting.join().unwrap(), (true, 0));
    });
}

#[test]
fn one_at_a_time_reads_and_plans_for_a_card() {
    let folder = tempfile::tempdir().unwrap();
    let section = hasty(folder.path()).enter(&cards());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let section = hasty(folder.path()).enter(&[card(2)]);
            (done.load(Ordering::SeqCst), section.others(&card(2)))
        });
        // Nobody waits for another card.
        assert_eq!(others(folder.path(), &card(3)), 0);
        thread::sleep(3 * PAUSE);
        done.store(true, Ordering::SeqCst);
        let gpu = card(2);
        let _lease = section.write([(&gpu, 70)].into_iter());
        assert_eq!(waiting.join().unwrap(), (true, 70));
    });
}

#[test]
fn the_machine_is_read_again_behind_the_gate_and_others_bytes_are_not_free() {
    let folder = tempfile::tempdir().unwrap();
    let leases = hasty(folder.path());
    let lease = hold(&leases, &card(1), 300);
    let calls = AtomicU64::new(0);
    let read = || {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        let machine = Machine::new(crate::machine::Host::new(1));
        let gpus = cards().map(|gpu| gpu.free(CAPACITY - 100 * call));
        Ok::<_, ()>(gpus.into_iter().fold(machine, Machine::with_gpu))
    };
    let (machine, section) = leases.machine(read).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let free: Vec<u64> = machine.gpus.iter().map(|gpu| gpu.free).collect();
    assert_eq!(free, [600, 900]);
    let [note] = &machine.notes[..] else { panic!("{:?}", machine.notes) };
    assert_eq!(note.about, "CUDA1");
    drop((section, lease));

    // More than all of it, and nothing to lease for.
    let _lease = hold(&leases, &card(1), u64::MAX);
    let (machine, _section) = leases.machine(read).unwrap();
    assert_eq!(machine.gpus[0].free, 0);
    calls.store(0, Ordering::SeqCst);
    let (machine, section) = Leases::none().machine(read).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(machine.gpus[0].free, CAPACITY);
    let lease = section.write([(&card(1), 1)].into_iter());
    assert_eq!((lease.entries.len(), lease.unleased), (0, Some(Unleased::Asked)));
}

#[test]
fn a_folder_that_cannot_be_made_is_no_error_but_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let leases = patient(&file.join("folder"));
    let section = leases.enter(&cards());
    assert_eq!(section.others(&card(1)), 0);
    // Who takes nothing needs no lease.
    let nothing = leases.enter(&cards()).write([(&card(1), 0)].into_iter());
    assert_eq!(nothing.unleased, None);
    let lease = section.write([(&card(1), 1)].into_iter());
    assert!(lease.entries.is_empty());
    let why = lease.unleased.unwrap().to_string();
    assert!(why.starts_with(&file.display().to_string()), "{why}");
}

#[test]
fn what_others_left_behind_is_cleared_and_what_is_held_and_unreadable_counts_as_everything() {
    let folder = tempfile::tempdir().unwrap();
    let garbage: [(&str, &[u8]); 4] = [
        ("empty", b""),
        ("half", br#"{"pid":1,"since":1,"devi"#),
        ("bytes", b"\xff\xfe\0"),
        ("whole", br#"{"pid":1,"since":1,"device":"0000:01:00.0","bytes":999}"#),
    ];
    for (name, text) in garbage {
        let path = folder.path().join(format!("0000-01-00-0.{name}.lease"));
        fs::write(&path, text).unwrap();
        let held = File::open(&path).unwrap();
        held.lock_shared().unwrap();
        let expected = if name == "whole" { 999 } else { u64::MAX };
        assert_eq!(others(folder.path(), &card(1)), expected, "{name}");
        held.unlock().unwrap();
        assert_eq!(others(folder.path(), &card(1)), 0, "{name}");
        assert!(left(folder.path()).is_empty(), "{name}");
    }
}

/// A pipe would be waited for, and whose a link is cannot be known: what it leads to may be held.
#[cfg(target_os = "linux")]
#[test]
fn what_is_no_file_is_neither_read_nor_deleted() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(format!("0000-01-00-0.{name}.lease"));
    fs::create_dir(path("folder")).unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, path("link")).unwrap();
    mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let pipe = File::options().read(true).write(true).open(path("pipe")).unwrap();
    pipe.lock().unwrap();
    assert_eq!(others(folder.path(), &card(1)), 0);
    assert_eq!(left(folder.path()).len(), 3);

    // Nor does a pipe stand in the way of a load.
    mknodat(CWD, folder.path().join("0000-02-00-0.gate"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let unleased = hold(&patient(folder.path()), &card(2), 1).unleased.unwrap().to_string();
    assert!(unleased.ends_with("0000-02-00-0.gate: not a regular file"), "{unleased}");
}

/// Numbers that look random, the same in each run.
struct Dice(u64);

impl Dice {
    /// Below `end`: xorshift (Marsaglia 2003).
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

/// Takes and drops leases at random. `judge` is told of each grant and its end.
fn play(folder: &Path, seed: u64, turns: u64, judge: &dyn Fn(usize, i64)) {
    let cards = cards();
    let mut dice = Dice(seed);
    for _ in 0..turns {
        let patience = Duration::from_millis([0, 0, 5][dice.below(3) as usize]);
        let leases = Leases::in_dir(folder).patience(patience);
        let of = [0..1, 1..2, 0..2][dice.below(3) as usize].clone();
        let section = leases.enter(&cards[of.clone()]);
        let mut grants = Vec::new();
        for index in of {
            let others = section.others(&cards[index]);
            assert!(others <= CAPACITY, "{others} bytes of {CAPACITY} are leased");
            grants.push((index, dice.below(CAPACITY - others + 1)));
        }
        match dice.below(8) {
            // Planned, and found that it does not fit.
            0 => continue,
            1 => {
                let path = folder.join(format!("0000-01-00-0.{}.lease", dice.below(100)));
                let text = &br#"{"pid":7,"since":7,"bytes":1000"#[..dice.below(32) as usize];
                fs::write(path, text).unwrap();
            }
            _ => {}
        }
        let bytes = grants.iter().map(|(index, bytes)| (&cards[*index], *bytes));
        let lease = section.write(bytes);
        for (index, bytes) in &grants {
            judge(*index, bytes.cast_signed());
        }
        thread::sleep(Duration::from_micros(dice.below(500)));
        for (index, bytes) in &grants {
            judge(*index, -bytes.cast_signed());
        }
        if dice.below(8) == 0 {
            let panicked = catch_unwind(AssertUnwindSafe(move || {
                let _lease = lease;
                std::panic::resume_unwind(Box::new("a load that panics"));
            }));
            assert!(panicked.is_err());
        }
    }
}

/// Where a child finds its folder and its seed.
const FOLDER: &str = "AUTOPLACE_TEST_LEASES";
const SEED: &str = "AUTOPLACE_TEST_SEED";

#[test]
#[ignore = "the other process of these tests, by itself nothing"]
fn the_other_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    play(Path::new(&folder), seed, 200, &|_, _| {});
}

/// Another process that plays.
fn start(folder: &Path, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "load::lease::tests::the_other_process";
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command.env(FOLDER, folder).env(SEED, seed.to_string());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Half of the processes are killed somewhere in the middle, and what they had in hand is free again.
#[test]
fn threads_and_processes_never_get_more_than_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let granted: [AtomicU64; 2] = std::array::from_fn(|_| AtomicU64::new(0));
    let judge = |index: usize, bytes: i64| {
        let before = granted[index].fetch_add(bytes.cast_unsigned(), Ordering::SeqCst);
        let sum = before.wrapping_add(bytes.cast_unsigned());
        assert!(sum <= CAPACITY, "{sum} bytes of {CAPACITY} are granted");
    };
    thread::scope(|scope| {
        for seed in 1..=3 {
            let judge = &judge;
            scope.spawn(move || play(folder, seed, 200, judge));
        }
        for seed in 11..=14 {
            scope.spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..3 {
                    let mut child = start(folder, 1 + dice.below(u64::MAX - 1));
                    if dice.below(2) == 0 {
                        thread::sleep(Duration::from_millis(5 + dice.below(60)));
                        child.kill().unwrap();
                        child.wait().unwrap();
                    } else {
                        let ended = child.wait_with_output().unwrap();
                        let said = String::from_utf8_lossy(&ended.stdout);
                        assert!(ended.status.success(), "{said}");
                    }
                }
            });
        }
    });
    for card in &cards() {
        assert_eq!(others(folder, card), 0);
    }
    assert_eq!(left(folder), Vec::<String>::new());
}

#[cfg(unix)]
#[test]
fn the_users_folder_is_for_the_user_alone() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    let base = tempfile::tempdir().unwrap();
    let me = rustix::process::getuid().as_raw();
    let folder = base.path().join("mine");
    private(&folder, me).unwrap();
    assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
    private(&folder, me).unwrap();

    assert!(private(&folder, me + 1).is_err(), "somebody else's");
    let link = base.path().join("link");
    symlink(&folder, &link).unwrap();
    assert!(private(&link, me).is_err(), "a link");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
    let error = private(&folder, me).unwrap_err().to_string();
    assert!(error.contains("mine"), "{error}");
    // Nor is one that was named.
    let unleased = hold(&hasty(&folder), &card(1), 1).unleased.unwrap();
    assert_eq!(unleased, Unleased::Failed(error));
}
