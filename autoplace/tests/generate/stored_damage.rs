//! Rounds in which workers are killed (`kill -9`), files are damaged, and disks are full, in the folder of a prompt
//! store. Every text is the same as llama.cpp's own. The folder never has more bytes than its limit.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use autoplace::llama_sys::Token;
use autoplace::plan::Request;
use autoplace::store::{PromptStore, StoreOptions};
use autoplace::{Isolation, Model, ModelBuilder, OnDeath, memory};

use crate::text_support::{SEED, answered, random, raw_by_chance, request, sampled, words, worker};

const ANSWER: usize = 16;
/// The limit of the folder, in bytes. It is so low that with each kind of model, files of earlier texts are evicted.
const FOLDER: u64 = 3 << 20;
/// The number of rounds if `--ignored` is not given.
const FEW: usize = 12;

/// A generator of random numbers, which are the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// A kind of model, with a folder in which its prompt store keeps texts.
struct Kind {
    arch: &'static str,
    path: PathBuf,
    folder: PathBuf,
    /// For each prompt, the text that llama.cpp itself generates.
    expected: HashMap<Vec<Token>, Vec<Token>>,
    /// The names of all files that have ever been in the folder.
    names: BTreeSet<String>,
}

impl Kind {
    fn builder(&self) -> ModelBuilder {
        let mut request: Request = request(512, 1, false).n_batch(64);
        request.params.flash_attn = memory::FlashAttention::Off;
        request.params.swa_full = false;
        request.params.type_k = memory::KvType::F32;
        request.params.type_v = memory::KvType::F32;
        Model::builder(&self.path).request(request).n_threads(1)
    }

    /// Loads the model in a worker, which is replaced when it dies. The store is in the model's folder.
    fn load(&self) -> Model {
        let store = PromptStore::open(StoreOptions::new(1 << 20).folder(&self.folder, FOLDER)).unwrap();
        let worker = worker().on_death(OnDeath::Resume { attempts: 4 });
        self.builder().prompt_store(store).isolation(Isolation::Process(worker)).load().unwrap()
    }

    /// The text that llama.cpp itself generates after this prompt.
    fn expect(&mut self, prompt: &[Token]) -> &[Token] {
        if !self.expected.contains_key(prompt) {
            let text = raw_by_chance(&self.builder().load().unwrap(), prompt, ANSWER);
            self.expected.insert(prompt.to_vec(), text);
        }
        &self.expected[prompt]
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        // The lock file does not count. The links that `fill` makes do not count either, because they lead to a device.
        let is_piece = |file: &Path| fs::symlink_metadata(file).is_ok_and(|metadata| metadata.is_file());
        files.retain(|file| file.extension().is_some() && is_piece(file));
        files.sort();
        files
    }

    /// The bytes of the files in the folder. Each file is rounded up to whole blocks.
    fn bytes(&self) -> u64 {
        let of = |file: PathBuf| fs::symlink_metadata(file).map_or(0, |metadata| metadata.len().next_multiple_of(4096));
        self.files().into_iter().map(of).sum()
    }

    /// Damages a file, if there is one.
    fn damage(&self, chance: &mut Chance) {
        let files = self.files();
        let Some(file) = files.get(chance.below(files.len())) else { return };
        let Ok(mut bytes) = fs::read(file) else { return };
        let at = chance.below(bytes.len());
        // The worker is running, and may have removed the file meanwhile.
        let done = match chance.below(5) {
            _ if bytes.is_empty() => fs::remove_file(file),
            0 => {
                bytes[at] ^= 1 << (at % 8);
                fs::write(file, bytes)
            }
            1 => fs::write(file, &bytes[..at]),
            2 => fs::remove_file(file),
            3 => {
                // The file gets bytes of another piece, but not more than it had.
                let mut other = fs::read(&files[chance.below(files.len())]).unwrap_or_default();
                other.truncate(bytes.len());
                fs::write(file, other)
            }
            _ => fs::write(file, vec![0; bytes.len()]),
        };
        drop(done);
    }

    /// Makes the next writes to some files fail, as they would on a full disk (Linux).
    fn fill(&self, chance: &mut Chance) {
        for name in &self.names {
            if chance.below(2) == 0 {
                let unfinished = self.folder.join(name).with_extension("unfinished");
                drop(symlink("/dev/full", unfinished));
            }
        }
    }
}

/// A small disk. It is mounted as long as this value lives. Only root can mount it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let arguments = ["-t", "tmpfs", "-o", "size=700k,mode=700", "tmpfs"];
        let mounted =
            Command::new("mount").args(arguments).arg(at).output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.0).output());
    }
}

/// One of a few prompts. Beginnings of several lengths occur in more than one of them.
fn prompt(chance: &mut Chance) -> Vec<Token> {
    let system = words(1, 90);
    let one = [&system[..], &words(2 + chance.below(3) as u32, 30)].concat();
    match chance.below(3) {
        0 => one,
        1 => [&one[..], &words(10 + chance.below(2) as u32, 40)].concat(),
        _ => [&system[..50 + chance.below(2) * 20], &words(20, 40)].concat(),
    }
}

/// Kills the model's worker after this time, whatever the worker is doing then.
fn kill_later(model: &Model, after: Duration) -> thread::JoinHandle<()> {
    let id = model.worker_id();
    thread::spawn(move || {
        thread::sleep(after);
        if let Some(id) = id {
            drop(Command::new("kill").args(["-KILL", &id.to_string()]).output());
        }
    })
}

fn rounds(count: usize, seed: u64, has_small_disk: bool) {
    let folder = tempfile::tempdir().unwrap();
    let archs = [("llama", None), ("gpt-oss", Some(224)), ("mamba2", None), ("jamba", None), ("falcon-h1", None)];
    let mut kinds = archs.map(|(arch, window)| Kind {
        arch,
        path: random(arch, window, folder.path()),
        folder: folder.path().join(format!("{arch}-store")),
        expected: HashMap::new(),
        names: BTreeSet::new(),
    });
    let disk = has_small_disk.then(|| SmallDisk::mount(&kinds[0].folder)).flatten();
    let mut chance = Chance(seed);
    let (mut kills, mut damages, mut full, mut restored) = (0, 0, 0, 0);
    for round in 0..count {
        let kind = &mut kinds[chance.below(archs.len())];
        let prompts = [prompt(&mut chance), prompt(&mut chance)];
        prompts.iter().for_each(|prompt| drop(kind.expect(prompt).to_vec()));
        let model = kind.load();
        for (number, prompt) in prompts.iter().enumerate() {
            // The first text opens the folder, and unfinished files are then removed. So the folder is filled only
            // before later texts.
            if number > 0 && chance.below(2) == 0 {
                kind.fill(&mut chance);
                full += 1;
            }
            let killer = (chance.below(2) == 0).then(|| {
                kills += 1;
                kill_later(&model, Duration::from_micros(chance.below(60_000) as u64))
            });
            let text = answered(
                sampled(&model, &prompt[..], SEED)
                    .max_tokens(ANSWER)
                    .cache_prompt(true)
                    .stream()
                    .expect("a worker starts"),
            );
            assert_eq!(text.tokens, kind.expected[prompt], "round {round}, {}: {:?}", kind.arch, text.statistics());
            restored += text.statistics().restored_tokens;
            assert!(kind.bytes() <= FOLDER, "round {round}, {}: {} bytes", kind.arch, kind.bytes());
            if chance.below(2) == 0 {
                kind.damage(&mut chance);
                damages += 1;
            }
            if let Some(killer) = killer {
                killer.join().unwrap();
            }
        }
        drop(model);
        let names = kind.files().into_iter().filter_map(|file| Some(file.file_name()?.to_str()?.to_owned()));
        kind.names.extend(names);
    }
    println!(
        "{count} rounds: {kills} kills, {damages} damaged files, {full} with writes that fail, {} small disk; {restored} \
         tokens came from the store",
        disk.map_or("no", |_| "a")
    );
    assert!(restored > count, "{restored}");
}

#[test]
fn no_kill_no_damage_and_no_full_disk_changes_a_text() {
    rounds(FEW, 7, false);
}

#[test]
#[ignore = "500 rounds, or as many as AUTOPLACE_STORE_ROUNDS says, take minutes; AUTOPLACE_STORE_SEED makes others"]
fn five_hundred_kills_damages_and_full_disks_change_no_text() {
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let count = number("AUTOPLACE_STORE_ROUNDS").map_or(500, |count| count as usize);
    rounds(count, number("AUTOPLACE_STORE_SEED").unwrap_or(11), true);
}
