//! A conversation's cache goes through a file and comes back, or is refused: through the public API, on the demo model.

use std::fs;
use std::path::{Path, PathBuf};

use crate::native_support::demo_path;
use crate::sim_support::card;
use crate::text_support::{Raw, SYSTEM, Texts, demo, greedy, load, request, tokens_of, told};
use autoplace::Model;
use autoplace::generate::{Error, SavedCacheError};
use autoplace::machine::mib;
use autoplace::memory::{FlashAttention, Headroom, KvType};
use autoplace::plan::{GpuLayers, Request};

fn load_demo() -> Model {
    demo(512, 1, false)
}

/// A saved turn of a conversation, and the prompt of the next.
struct Saved {
    _folder: tempfile::TempDir,
    path: PathBuf,
    prompt: String,
}

impl Saved {
    fn new() -> Self {
        let model = load_demo();
        let answer = told(greedy(&model, SYSTEM), &model).text;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("turn.kv");
        let saved = model.save_cache(&path).unwrap();
        assert_eq!(saved.tokens, tokens_of(&model, SYSTEM).len() + 23);
        assert_eq!(saved.bytes, fs::metadata(&path).unwrap().len());
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing is left beside it: {names:?}");
        Self { _folder: folder, path, prompt: format!("{SYSTEM}{answer} And he said,") }
    }

    /// Another file, of the same bytes but for a change.
    fn changed(&self, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
        let mut bytes = fs::read(&self.path).unwrap();
        change(&mut bytes);
        let path = self.path.with_extension("changed");
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn refused(model: &Model, path: &Path) -> SavedCacheError {
    match model.restore_cache(path) {
        Err(Error::Saved(error)) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_conversation_goes_on_after_a_restart_at_no_prompt_cost() {
    let saved = Saved::new();
    let model = load_demo();
    let raw = Raw::text(&model, &tokens_of(&model, &saved.prompt), 24);
    let restored = model.restore_cache(&saved.path).unwrap();
    let told = told(greedy(&model, &*saved.prompt).cache_prompt(true), &model);
    assert_eq!(told.tokens, raw);
    let cached = told.statistics().cached_tokens;
    assert!(cached >= restored.tokens - 1, "{restored:?} {cached}");
}

#[test]
fn a_running_text_is_saved_and_goes_on_there_and_here() {
    let model = load_demo();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("running.kv");
    let prompt = tokens_of(&model, SYSTEM);
    let raw = Raw::text(&model, &prompt, 24);
    let mut session = model.session().unwrap();
    let mut texts = Texts::default();
    let sequence = session.begin(greedy(&model, SYSTEM)).unwrap();
    let nothing = session.save(sequence, &path).unwrap_err();
    assert_is!(&nothing, Error::Saved(error) if matches!(**error, SavedCacheError::Nothing { .. }));
    texts.steps(&mut session, 10);
    session.save(sequence, &path).unwrap();
    texts.run(&mut session);
    assert_eq!(texts.of(sequence).tokens, raw);

    let other = load_demo();
    other.restore_cache(&path).unwrap();
    let mut so_far = prompt;
    so_far.extend(&raw[..10]);
    let rest = greedy(&other, &*so_far).max_tokens(14).cache_prompt(true);
    let rest = told(rest, &other);
    assert_eq!(rest.tokens, raw[10..]);
    assert_eq!(rest.statistics().cached_tokens, so_far.len() - 1);
}

#[test]
fn it_is_restored_on_another_placement() {
    own_process!();
    let gpu = card(mib(64));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("turn.kv");
    let on = |layers| {
        let request = request(512, 1, false).headroom(Headroom::Bytes(0));
        let builder = Model::builder(demo_path()).request(request).n_threads(1);
        let builder = builder.n_gpu_layers(GpuLayers::Exactly(layers));
        builder.machine(autoplace::load::detect().unwrap()).load().unwrap()
    };
    let raw = {
        let model = on(99);
        assert!(gpu.used() > 0);
        let answer = told(greedy(&model, SYSTEM), &model);
        model.save_cache(&path).unwrap();
        answer.tokens
    };
    for layers in [0, 2, 99] {
        let model = on(layers);
        model.restore_cache(&path).unwrap();
        let told = told(greedy(&model, SYSTEM).cache_prompt(true), &model);
        assert_eq!(told.tokens, raw, "{layers}");
        assert!(told.statistics().cached_tokens > 0);
    }
}

#[test]
fn another_model_other_weights_and_another_cache_are_foreign() {
    let saved = Saved::new();
    let folder = tempfile::tempdir().unwrap();
    let tiny = folder.path().join("tiny.gguf");
    fs::write(&tiny, crate::native_support::tiny_llama().to_bytes().unwrap()).unwrap();
    let tiny = load(&tiny, request(512, 1, false));
    assert_is!(refused(&tiny, &saved.path), SavedCacheError::OtherModel { .. });
    type Change = fn(&mut Request);
    let fields: [(&str, Change); 4] = [
        ("type_k", |it| it.params.type_k = KvType::F32),
        ("type_v", |it| it.params.type_v = KvType::F32),
        ("flash_attn", |it| it.params.flash_attn = FlashAttention::On),
        ("streams", |it| *it = request(1024, 2, false)),
    ];
    for (name, change) in fields {
        let mut request = request(1024, 1, false);
        change(&mut request);
        let error = refused(&load(&demo_path(), request), &saved.path);
        assert_is!(error, SavedCacheError::OtherCache { field, .. } if field == name, "{name}");
    }
    let short = refused(&demo(32, 1, false), &saved.path);
    assert_is!(short, SavedCacheError::TooLong { context: 32, .. });
    // The same header with another byte of weights, and the same weights elsewhere.
    let tuned = folder.path().join("tuned.gguf");
    let mut bytes = fs::read(demo_path()).unwrap();
    let header = autoplace::gguf::Header::open(demo_path()).unwrap();
    let tensor = header.tensor("blk.1.ffn_up.weight").unwrap();
    fs::write(&tuned, &bytes).unwrap();
    let model = load(&tuned, request(512, 1, false));
    model.restore_cache(&saved.path).unwrap();
    drop(model);
    bytes[(tensor.offset() + tensor.bytes() / 2) as usize] ^= 1;
    fs::write(&tuned, &bytes).unwrap();
    let model = load(&tuned, request(512, 1, false));
    assert_is!(refused(&model, &saved.path), SavedCacheError::OtherWeights { .. });
}

#[test]
fn every_altered_byte_and_every_missing_one_is_noticed() {
    let saved = Saved::new();
    let model = load_demo();
    let length = fs::metadata(&saved.path).unwrap().len() as usize;
    // All of what comes before the state, and a sample of the rest.
    let offsets = (0..700).chain((700..length).step_by(length / 60)).chain(length - 40..length);
    let lengths = (0..60).chain((60..length).step_by(length / 40));
    let is_noticed = |at: usize, path: &Path, what: &str| {
        let error = refused(&model, path);
        let noticed = match at {
            0..8 => matches!(error, SavedCacheError::NotSaved { .. }),
            _ => matches!(error, SavedCacheError::Altered { .. }),
        };
        assert!(noticed, "{what} at byte {at}: {error}");
    };
    offsets.for_each(|at| is_noticed(at, &saved.changed(|bytes| bytes[at] ^= 1 << (at % 8)), "altered"));
    lengths.for_each(|at| is_noticed(at, &saved.changed(|bytes| bytes.truncate(at)), "cut off"));
    let path = saved.changed(|bytes| bytes.push(0));
    let error = refused(&model, &path);
    assert_is!(error, SavedCacheError::Altered { .. });
    // The model is as good as before.
    model.restore_cache(&saved.path).unwrap();
}

#[test]
fn a_file_that_cannot_be_written_or_read_is_named_and_the_old_one_stays() {
    let saved = Saved::new();
    let before = fs::read(&saved.path).unwrap();
    let model = load_demo();
    let error = model.save_cache(&saved.path).unwrap_err();
    assert!(error.to_string().contains("nothing to save"), "{error}");
    assert_eq!(fs::read(&saved.path).unwrap(), before);
    told(greedy(&model, SYSTEM), &model);
    let nowhere = saved.path.join("below").join("a file.kv");
    let error = model.save_cache(&nowhere).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error}");
    let error = model.restore_cache(&nowhere).unwrap_err();
    assert!(error.to_string().contains("cannot read"), "{error}");
    let error = refused(&model, saved.path.parent().unwrap());
    assert_is!(error, SavedCacheError::NotSaved { .. } | SavedCacheError::Io { .. });
}

/// The file with the checksum that its bytes have now.
fn sealed(bytes: &mut [u8]) {
    let end = bytes.len() - 16;
    let checksum = xxhash_rust::xxh3::xxh3_128(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
}

#[test]
fn forged_files_are_refused_or_harmless() {
    let saved = Saved::new();
    let model = load_demo();
    let bytes = fs::read(&saved.path).unwrap();
    let described = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let tokens = tokens_of(&model, SYSTEM).len() + 23;
    let state = 16 + described;
    // What llama.cpp reads of the state before its data: counts, positions, types and sizes.
    let of_state = state..state + 12 * tokens + 64;
    for offset in (8..16 + described).chain(of_state) {
        for flip in [0x01, 0x80] {
            let path = saved.changed(|bytes| {
                bytes[offset] ^= flip;
                sealed(bytes);
            });
            let _ = model.restore_cache(&path);
        }
    }
    let raw = Raw::text(&model, &tokens_of(&model, SYSTEM), 24);
    assert_eq!(told(greedy(&model, SYSTEM), &model).tokens, raw);
}
