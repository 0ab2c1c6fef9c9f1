//! The invariants of the store: for the tokens of a text, it returns exactly the bytes that were stored for them, and
//! it keeps its bounds, whatever happens to its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use llama_sys::Token;
use proptest::prelude::*;
use tempfile::TempDir;
use test_support::wait;

use super::folder::Folder;
use super::{Added, Found, MediaRows, NewPiece, Opened, PromptStore, StoreOptions, StoreUse, Text};

const BLOCK: usize = 4;
/// Bytes of rows for each token.
const ROW: usize = 300;

/// Stand-in for the rows of a token: bytes that depend on all tokens up to it.
fn row(tokens: &[Token]) -> Vec<u8> {
    let hash = tokens.iter().fold(7u64, |hash, token| (hash ^ *token as u64).wrapping_mul(0x0100_0000_01b3));
    hash.to_le_bytes().into_iter().cycle().take(ROW).collect()
}

/// Stand-in for the rest of a text.
fn rest(tokens: &[Token]) -> Vec<u8> {
    let mut rest = row(tokens);
    rest.reverse();
    rest
}

/// Stores a text as a session does. Returns the number of tokens whose rows the store has taken.
fn put(store: &PromptStore, root: &str, tokens: &[Token], with_rest: bool) -> usize {
    put_text(store, root, Text::plain(tokens), with_rest)
}

fn put_text(store: &PromptStore, root: &str, text: Text<'_>, with_rest: bool) -> usize {
    let (root, tokens) = (store.root(root), text.tokens);
    store.learn(root, "a model", Some(0.01), with_rest);
    while let Some(missing) = store.missing_rows(root, text, BLOCK) {
        let data = missing.clone().flat_map(|at| row(&tokens[..=at])).collect();
        let rows = NewPiece::Rows { from: missing.start, data };
        match store.add(root, text.first(missing.end), rows) {
            Added::Yes { .. } => {}
            Added::Later => store.flush().unwrap(),
            Added::No => return missing.start,
        }
    }
    if with_rest && store.lacks_rest(root, text) {
        store.add(root, text, NewPiece::Rest(rest(tokens)));
    }
    tokens.len()
}

/// Checks that the store returns the tokens of a text as they were put in. Returns the number of these tokens.
fn get(store: &PromptStore, root: &str, tokens: &[Token], with_rest: bool) -> usize {
    get_text(store, root, Text::plain(tokens), with_rest)
}

fn get_text(store: &PromptStore, root: &str, text: Text<'_>, with_rest: bool) -> usize {
    let (root, tokens) = (store.root(root), text.tokens);
    store.learn(root, "a model", Some(0.01), with_rest);
    for _ in 0..100 {
        let found: Found = store.find(root, text);
        let Some(brought) = store.bring(&found) else { continue };
        let mut at = 0;
        for (data, held, wanted) in &brought.pieces {
            assert_eq!(data.len(), held * ROW);
            for one in data.chunks(ROW).take(*wanted) {
                at += 1;
                assert_eq!(one, row(&tokens[..at]), "token {at} of {tokens:?}");
            }
        }
        assert_eq!(at, found.tokens);
        assert_eq!(brought.rest.map(|rest| rest.to_vec()), (with_rest && at > 0).then(|| rest(&tokens[..at])));
        return at;
    }
    panic!("each search finds another damaged piece");
}

fn within_bounds(store: &PromptStore) -> StoreUse {
    let usage = store.usage();
    assert!(usage.memory_bytes <= usage.memory_limit, "{usage:?}");
    assert!(usage.folder_bytes <= usage.folder_limit, "{usage:?}");
    usage
}

fn pieces(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|ending| ending == "piece"));
    all.sort();
    all
}

/// Bytes of the folder's files in whole blocks.
fn on_disk(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    files.map(|bytes| bytes.next_multiple_of(4096)).sum()
}

fn in_folder(folder: &TempDir, bytes: u64) -> PromptStore {
    PromptStore::open(StoreOptions::new(0).folder(folder.path().join("store"), bytes)).unwrap()
}

fn text() -> impl Strategy<Value = Vec<Token>> {
    proptest::collection::vec(0..3 as Token, 1..40)
}

proptest! {
    #[test]
    fn what_is_found_is_what_was_stored_for_these_tokens_and_never_more_than_the_bound(
        texts in proptest::collection::vec((text(), any::<bool>()), 1..30),
        limit in 2_000..100_000u64,
        with_rest: bool,
    ) {
        let store = PromptStore::new(limit);
        for (text, asks) in &texts {
            let held = if *asks { text.len() } else { put(&store, "one", text, with_rest) };
            let got = get(&store, "one", text, with_rest);
            prop_assert!(*asks || with_rest || got >= held, "{got} of {held}");
            within_bounds(&store);
            prop_assert_eq!(get(&store, "another", text, with_rest), 0);
        }
        store.clear().unwrap();
        prop_assert_eq!(store.usage().pieces, 0);
    }

    #[test]
    fn with_room_every_text_is_found_up_to_its_longest_beginning(
        texts in proptest::collection::vec(text(), 1..20),
        asked in text(),
    ) {
        let store = PromptStore::new(1 << 30);
        for text in &texts {
            put(&store, "one", text, false);
        }
        let common = |other: &Vec<Token>| asked.iter().zip(other).take_while(|(a, b)| a == b).count();
        prop_assert_eq!(get(&store, "one", &asked, false), texts.iter().map(common).max().unwrap());
    }

    #[test]
    fn a_rest_is_found_where_a_text_has_ended_and_nowhere_else(
        texts in proptest::collection::vec(text(), 1..20),
        asked in text(),
    ) {
        let store = PromptStore::new(1 << 30);
        for text in &texts {
            put(&store, "one", text, true);
        }
        let ended = texts.iter().filter(|text| asked.starts_with(text)).map(Vec::len).max();
        prop_assert_eq!(get(&store, "one", &asked, true), ended.unwrap_or(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_to_files_is_found_and_costs_only_what_depends_on_them(
        texts in proptest::collection::vec(text(), 1..8),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), 0..5u8, any::<prop::sample::Index>()), 0..6),
        with_rest: bool,
        while_open: bool,
    ) {
        let folder = TempDir::new().unwrap();
        let mut opened = Some(in_folder(&folder, 1 << 30));
        if let Some(store) = &opened {
            for text in &texts {
                put(store, "one", text, with_rest);
            }
            store.flush().unwrap();
            // Little is left in memory.
            store.limit_memory(64 << 10);
            store.flush().unwrap();
        }
        let path = folder.path().join("store");
        opened = opened.filter(|_| while_open);
        for (file, kind, place) in &damage {
            let files = pieces(&path);
            let Some(file) = (!files.is_empty()).then(|| file.get(&files)) else { break };
            let mut bytes = fs::read(file).unwrap();
            if bytes.is_empty() {
                // It was cut off before.
                continue;
            }
            let at = place.index(bytes.len());
            match kind {
                0 => bytes[at] ^= 1 << (at % 8),
                1 => bytes.truncate(at),
                2 => bytes.extend(vec![0; at + 1]),
                3 => bytes = vec![0; bytes.len()],
                _ => {
                    // The content of another piece's file gets this name.
                    bytes = fs::read(place.get(&files)).unwrap();
                }
            }
            fs::write(file, bytes).unwrap();
        }
        let store = opened.unwrap_or_else(|| in_folder(&folder, 1 << 30));
        for text in &texts {
            let got = get(&store, "one", text, with_rest);
            prop_assert!(!damage.is_empty() || got == text.len(), "{} of {}", got, text.len());
        }
        // The lost pieces are stored again.
        for text in &texts {
            put(&store, "one", text, with_rest);
            within_bounds(&store);
        }
    }

    #[test]
    fn the_folder_never_holds_more_than_its_bound_and_what_it_holds_outlives_the_store(
        texts in proptest::collection::vec(text(), 1..12),
        limit in 0..200_000u64,
    ) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("store");
        for text in &texts {
            let store = in_folder(&folder, limit);
            put(&store, "one", text, false);
            store.flush().unwrap();
            prop_assert!(on_disk(&path) <= limit);
            let usage = within_bounds(&store);
            prop_assert_eq!(usage.folder_bytes, on_disk(&path));
            drop(store);
            let again = in_folder(&folder, limit);
            prop_assert_eq!(again.usage().folder_bytes, on_disk(&path));
            prop_assert!(get(&again, "one", text, false) * 4096 <= limit as usize * BLOCK);
        }
        // A smaller bound takes effect at once.
        within_bounds(&in_folder(&folder, limit / 3));
        prop_assert!(on_disk(&path) <= limit / 3);
    }
}

#[test]
fn texts_with_one_beginning_hold_it_once() {
    let store = PromptStore::new(1 << 30);
    let system: Vec<Token> = (0..400).collect();
    let of = |text: i32| [&system[..], &[1000 + text; 8]].concat();
    put(&store, "one", &of(0), false);
    let first = store.usage().memory_bytes;
    for text in 1..50 {
        put(&store, "one", &of(text), false);
    }
    assert!(store.usage().memory_bytes < 4 * first);
    assert_eq!(store.usage().tokens, 400 + 50 * 8);
    assert!((0..50).all(|text| get(&store, "one", &of(text), false) == 408));
}

#[test]
fn a_picture_is_found_by_its_whole_hash_and_its_projector() {
    for with_rest in [false, true] {
        let folder = TempDir::new().unwrap();
        let tokens: Vec<Token> = [1, 2].into_iter().chain((7..13).map(|row| -row)).chain(3..6).collect();
        let picture = |hash: u8| [MediaRows { from: 2, len: 6, part: 0, hash: [hash; 32] }];
        let (one, other) = (picture(1), picture(2));
        let text = |media, projector| Text { tokens: &tokens, media, projector };
        let store = in_folder(&folder, 1 << 30);
        assert_eq!(put_text(&store, "one", text(&one, 5), with_rest), tokens.len());
        // The same tokens stand for another picture, which is stored in addition to the first one.
        let before = if with_rest { 0 } else { 2 };
        assert_eq!(get_text(&store, "one", text(&other, 5), with_rest), before);
        assert_eq!(put_text(&store, "one", text(&other, 5), with_rest), tokens.len());
        drop(store);
        let store = in_folder(&folder, 1 << 30);
        for media in [&one, &other] {
            assert_eq!(get_text(&store, "one", text(media, 5), with_rest), tokens.len());
            assert_eq!(get_text(&store, "one", text(media, 6), with_rest), before);
        }
        // A longer text takes over the children of a shorter text's last piece, if both texts have the same pictures.
        let longer = [&tokens[..], &[8, 9]].concat();
        let longer = Text { tokens: &longer, ..text(&other, 5) };
        assert_eq!(put_text(&store, "one", longer, with_rest), longer.tokens.len());
        assert_eq!(get_text(&store, "one", longer, with_rest), longer.tokens.len());
        assert_eq!(get_text(&store, "one", text(&one, 5), with_rest), tokens.len());
    }
}

#[test]
fn one_long_text_does_not_displace_all_others() {
    let store = PromptStore::new(100_000);
    let short: Vec<Token> = (0..20).collect();
    put(&store, "one", &short, false);
    let long: Vec<Token> = (1000..3000).collect();
    let taken = put(&store, "one", &long, false);
    assert!((1..2000).contains(&taken), "{taken}");
    assert_eq!(get(&store, "one", &short, false), 20);
    assert_eq!(get(&store, "one", &long, false), taken);
}

#[test]
fn what_was_not_used_for_long_goes_before_the_end_of_what_was() {
    let store = PromptStore::new(49_200);
    let of = |text: i32| -> Vec<Token> { (100 * text..100 * text + 40).collect() };
    for text in 0..3 {
        put(&store, "one", &of(text), false);
    }
    for _ in 0..4 {
        assert!([1, 2].iter().all(|text| get(&store, "one", &of(*text), false) == 40));
    }
    put(&store, "one", &of(3), false);
    let held = [1, 2, 3].map(|text| get(&store, "one", &of(text), false));
    // The store evicts slightly more bytes than the new text needs.
    assert!(held.iter().all(|tokens| *tokens >= 40 - 2 * BLOCK), "{held:?}");
    assert!(get(&store, "one", &of(0), false) < 20);
}

#[test]
fn memory_is_given_back_and_the_bound_stays() {
    let store = PromptStore::new(1 << 20);
    for text in 0..20 {
        put(&store, "one", &(100 * text..100 * text + 40).collect::<Vec<Token>>(), false);
    }
    let before = store.usage();
    store.give_back(before.memory_bytes / 2);
    let after = store.usage();
    assert!(after.memory_bytes <= before.memory_bytes.div_ceil(2), "{before:?}, {after:?}");
    assert_eq!(after.memory_limit, before.memory_limit);
    store.give_back(u64::MAX);
    assert_eq!(store.usage().pieces, 0);
    // The store accepts new texts again.
    assert_eq!(put(&store, "one", &[1; 40], false), 40);
}

#[test]
fn a_cleared_store_is_empty_in_memory_and_on_disk_and_takes_texts_again() {
    let folder = TempDir::new().unwrap();
    let store = in_folder(&folder, 1 << 30);
    let of = |text: i32| -> Vec<Token> { (100 * text..100 * text + 40).collect() };
    for text in 0..20 {
        put(&store, "one", &of(text), true);
    }
    store.flush().unwrap();
    assert!(store.usage().folder_bytes > 0);
    store.clear().unwrap();
    let usage = store.usage();
    assert_eq!((usage.pieces, usage.tokens, usage.folder_bytes), (0, 0, 0));
    assert_eq!(pieces(&folder.path().join("store")), [] as [PathBuf; 0]);
    assert_eq!(get(&store, "one", &of(3), true), 0);
    assert_eq!(put(&store, "one", &of(3), true), 40);
    assert_eq!(get(&store, "one", &of(3), true), 40);
}

#[test]
fn a_models_file_is_hashed_once_for_all_loads_with_a_store() {
    let store = PromptStore::new(1 << 20);
    let mut hashed = 0;
    for clone in [store.clone(), store.clone(), store] {
        for stamp in ["one", "other"] {
            let hash = clone.file_hash(stamp, || {
                hashed += 1;
                Ok(stamp.repeat(2))
            });
            assert_eq!(hash.unwrap(), stamp.repeat(2));
        }
        // After a failure, the hash is computed again.
        assert!(clone.file_hash("gone", || Err(std::io::ErrorKind::NotFound.into())).is_err());
    }
    assert_eq!(hashed, 2);
}

#[test]
fn what_belongs_to_one_owner_is_not_found_by_another() {
    let folder = TempDir::new().unwrap();
    let of = |owner: &str| {
        let options = StoreOptions::new(1 << 20).folder(folder.path().join("store"), 1 << 30).owner(owner);
        PromptStore::open(options).unwrap()
    };
    let text: Vec<Token> = (0..20).collect();
    put(&of("key one"), "one", &text, false);
    assert_eq!(get(&of("key two"), "one", &text, false), 0);
    assert_eq!(get(&of("key one"), "one", &text, false), 20);
    // The name itself is in no file.
    let files = pieces(&folder.path().join("store"));
    assert!(files.iter().all(|file| !fs::read(file).unwrap().windows(7).any(|bytes| bytes == b"key one")));
}

#[test]
fn one_process_writes_to_a_folder_and_others_only_read_there() {
    let folder = TempDir::new().unwrap();
    let text: Vec<Token> = (0..20).collect();
    let writer = in_folder(&folder, 1 << 30);
    put(&writer, "one", &text, false);
    writer.flush().unwrap();
    let reader = in_folder(&folder, 1 << 30);
    assert_eq!(get(&reader, "one", &text, false), 20);
    let other: Vec<Token> = (100..120).collect();
    let before = pieces(&folder.path().join("store"));
    put(&reader, "one", &other, false);
    reader.flush().unwrap();
    assert_eq!(reader.usage().folder_limit, 0);
    assert_eq!(pieces(&folder.path().join("store")), before);
    // The writer removes a file that the reader has in its index.
    writer.clear().unwrap();
    drop(writer);
    let reader_of_nothing = PromptStore::open(reader.options().clone()).unwrap();
    assert_eq!(get(&reader_of_nothing, "one", &text, false), 0);
}

#[test]
fn the_next_store_of_a_folder_goes_on_writing_when_the_writer_is_gone() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let of = |text: i32| -> Vec<Token> { (100 * text..100 * text + 20).collect() };
    let writer = in_folder(&folder, 1 << 30);
    put(&writer, "one", &of(0), true);
    put(&writer, "one", &of(1), true);
    writer.flush().unwrap();
    let next = in_folder(&folder, 1 << 30);
    put(&next, "one", &of(2), true);
    next.flush().unwrap();
    assert_eq!(next.usage().folder_limit, 0);
    // The next store has files in its index that are gone, and lacks others.
    writer.clear().unwrap();
    put(&writer, "one", &of(3), true);
    writer.flush().unwrap();
    drop(writer);
    put(&next, "one", &of(4), true);
    next.flush().unwrap();
    let usage = within_bounds(&next);
    assert_eq!((usage.folder_limit, usage.folder_bytes), (1 << 30, on_disk(&path)));
    let found = |store: &PromptStore| [0, 1, 2, 3, 4].map(|text| get(store, "one", &of(text), true));
    assert_eq!(found(&next), [0, 0, 20, 20, 20]);
    drop(next);
    assert_eq!(found(&in_folder(&folder, 1 << 30)), [0, 0, 20, 20, 20]);
}

#[test]
fn a_folder_that_vanishes_costs_what_it_held_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let store = in_folder(&folder, 1 << 30);
    let text: Vec<Token> = (0..40).collect();
    put(&store, "one", &text, false);
    store.flush().unwrap();
    fs::remove_dir_all(folder.path().join("store")).unwrap();
    store.limit_memory(8 << 10);
    let held = get(&store, "one", &text, false);
    assert!(held < 40, "{held}");
    store.limit_memory(u64::MAX);
    put(&store, "one", &text, false);
    store.flush().unwrap();
    assert_eq!(get(&store, "one", &text, false), 40);
    assert_eq!(within_bounds(&store).folder_bytes, 0);
}

/// A store whose folder is opened only once the sender is dropped.
fn with_a_hung_folder(folder: &TempDir) -> (PromptStore, mpsc::Sender<()>) {
    let path = folder.path().join("store");
    let store = PromptStore::described(StoreOptions::new(64 << 20).folder(&path, 1 << 30));
    let (answer, answered) = mpsc::channel::<()>();
    let named = path.clone();
    let open = move |reads: &dyn Fn()| {
        let _ = answered.recv();
        Folder::open(&path, reads)
    };
    store.inner.opened.set(Opened::with(store.options(), named, open, Duration::from_millis(1))).unwrap();
    (store, answer)
}

#[test]
fn a_store_whose_folder_does_not_answer_is_one_in_memory_until_it_answers() {
    let folder = TempDir::new().unwrap();
    let (before, meanwhile): (Vec<Token>, Vec<Token>) = ((0..20).collect(), (100..120).collect());
    put(&in_folder(&folder, 1 << 30), "one", &before, false);
    let (store, answer) = with_a_hung_folder(&folder);
    put(&store, "one", &meanwhile, false);
    let found = |store: &PromptStore| [&before, &meanwhile].map(|text| get(store, "one", text, false));
    assert_eq!(found(&store), [0, 20]);
    assert_eq!(within_bounds(&store).folder_bytes, 0);
    drop(answer);
    wait("answers", || store.flush().is_ok());
    assert_eq!(found(&store), [20, 20]);
    assert_eq!(within_bounds(&store).folder_bytes, on_disk(&folder.path().join("store")));
    drop(store);
    assert_eq!(found(&in_folder(&folder, 1 << 30)), [20, 20]);
}

#[test]
fn who_waits_for_a_folder_that_does_not_answer_gets_an_error_that_names_it() {
    let folder = TempDir::new().unwrap();
    let text: Vec<Token> = (0..20).collect();
    put(&in_folder(&folder, 1 << 30), "one", &text, false);
    let (store, answer) = with_a_hung_folder(&folder);
    put(&store, "one", &[7, 8, 9], false);
    let expected = format!("{}: the folder has not answered within 10 s", folder.path().join("store").display());
    for waited in [store.wait_for_folder(), store.flush(), store.clear()] {
        let error = waited.unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (std::io::ErrorKind::TimedOut, expected.clone()));
    }
    // The memory is empty. The files were not known, so they stay.
    assert_eq!(get(&store, "one", &[7, 8, 9], false), 0);
    drop(answer);
    wait("answers", || store.wait_for_folder().is_ok());
    assert_eq!(get(&store, "one", &text, false), 20);
    store.clear().unwrap();
    assert_eq!(pieces(&folder.path().join("store")), [] as [PathBuf; 0]);
}

#[test]
fn a_folder_is_waited_for_as_long_as_it_reads_file_after_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let store = PromptStore::described(StoreOptions::new(64 << 20).folder(&path, 1 << 30));
    let (file, files) = mpsc::channel::<()>();
    let (done, is_read) = mpsc::channel();
    let named = path.clone();
    let open = move |reads: &dyn Fn()| {
        for () in files {
            reads();
            done.send(()).unwrap();
        }
        Folder::open(&path, reads)
    };
    store.inner.opened.set(Opened::with(store.options(), named, open, Duration::from_millis(1))).unwrap();
    store.wait_for_folder().unwrap_err();
    file.send(()).unwrap();
    is_read.recv().unwrap();
    let waiting = store.clone();
    let waited = std::thread::spawn(move || waiting.wait_for_folder());
    std::thread::sleep(Duration::from_millis(50));
    drop(file);
    waited.join().unwrap().unwrap();
}

/// The writing of a piece never ends, because its unfinished file is a pipe without a reader.
#[test]
#[cfg(unix)]
fn nobody_waits_for_the_removal_of_a_piece_by_a_folder_that_does_not_answer() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let (before, next): (Vec<Token>, Vec<Token>) = ((0..20).collect(), (100..104).collect());
    let store = in_folder(&folder, 1 << 30);
    put(&store, "one", &before, false);
    store.flush().unwrap();
    let files = pieces(&path);
    assert_eq!(files.len(), 5);
    // The names of the pieces of the next text are those that another store gives them.
    let other = TempDir::new().unwrap();
    let named = in_folder(&other, 1 << 30);
    put(&named, "one", &next, false);
    named.flush().unwrap();
    let [file] = &pieces(&other.path().join("store"))[..] else { panic!("it has one piece") };
    let pipe = path.join(file.file_name().unwrap()).with_extension("unfinished");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    put(&store, "one", &next, false);
    wait("writes the piece", || store.usage().folder_bytes == 6 * 4096);
    // Both of this removes files.
    let found = store.find(store.root("one"), Text::plain(&before));
    store.forget(&found);
    store.give_back(u64::MAX);
    assert_eq!(get(&store, "one", &before, false), 0);
    assert_eq!((pieces(&path), within_bounds(&store).folder_bytes), (files, 4096));
    // Who asks for it waits, but not for ever.
    let error = store.flush().unwrap_err().to_string();
    assert_eq!(error, format!("{}: the folder has not answered within 10 s", path.display()));
    // The folder answers. What was the pipe is the piece of the second text then.
    fs::read(&pipe).unwrap();
    wait("answers", || store.flush().is_ok());
    assert_eq!(pieces(&path), [pipe.with_extension("piece")]);
    assert_eq!(get(&store, "one", &next, false), 4);
}

#[test]
fn a_store_ends_although_its_folder_does_not_answer() {
    let folder = TempDir::new().unwrap();
    let (store, answer) = with_a_hung_folder(&folder);
    put(&store, "one", &[1, 2, 3], false);
    drop(store);
    // The folder answers when its store is gone. The thread then leaves the folder to the next store.
    drop(answer);
    wait("writes to the folder", || in_folder(&folder, 1 << 30).usage().folder_limit > 0);
}

#[test]
fn unfinished_files_and_other_versions_are_removed_and_foreign_files_are_left() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let text: Vec<Token> = (0..20).collect();
    put(&in_folder(&folder, 1 << 30), "one", &text, false);
    let mut old = fs::read(&pieces(&path)[0]).unwrap();
    old[7] += 1;
    let named = |name: &str| path.join(name);
    fs::write(named("00000000000000000000000000000001.piece"), old).unwrap();
    fs::write(named("00000000000000000000000000000002.unfinished"), b"half").unwrap();
    fs::write(named("notes.txt"), b"mine").unwrap();
    let store = in_folder(&folder, 1 << 30);
    assert_eq!(get(&store, "one", &text, false), 20);
    assert_eq!(pieces(&path).len(), 5);
    assert!(!named("00000000000000000000000000000002.unfinished").exists());
    assert!(named("notes.txt").exists());
}

#[test]
#[cfg(unix)]
fn only_this_user_can_read_what_a_folder_holds() {
    use std::os::unix::fs::PermissionsExt;

    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    put(&in_folder(&folder, 1 << 30), "one", &[1, 2, 3], false);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert!(fs::read_dir(&path).unwrap().all(|entry| mode(&entry.unwrap().path()) == 0o600));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
    let error = PromptStore::open(StoreOptions::new(0).folder(&path, 1 << 30)).unwrap_err().to_string();
    assert!(error.contains("chmod 700") && error.contains("store"), "{error}");
}
